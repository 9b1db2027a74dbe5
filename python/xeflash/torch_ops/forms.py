"""The operators of torch that schema.py describes: the keywords of each, their order and names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from xeflash.call.schema import (
    BHSD,
    BSHD,
    DEFAULTS_OF_ATTENTION,
    FORWARD_ONLY,
    OF_ATTENTION,
    ROWS,
    ROWS_OF_CROSS_ENTROPY,
    ROWS_OF_LINEAR,
    ROWS_OF_SAMPLE,
    ROWS_OF_SOFTMAX,
    ROWS_OF_TOP_K,
    ROWS_OF_WRITES,
    THD,
    Row,
)

_TYPES = {"object": "Tensor", "int": "SymInt", "float": "float", "bool": "bool", "str": "str"}
# Keywords that a schema has several words for: a number that may be an array is two, snippets are five.
_SEVERAL = {
    "words": ["str[]? words=None"],  # ours and the caller's in turn
    "seed": ["SymInt? seed=None"],  # None: the operator draws its own
    "residual": ["bool keep_rest=False"],  # the operator gives it back
    "k_scale": ["Tensor? k_scale=None", "float? k_factor=None"],
    "v_scale": ["Tensor? v_scale=None", "float? v_factor=None"],
    "score_mod": [
        *("str? score_mod=None", "str[]? capture_names=None", "Tensor[]? capture_arrays=None"),
        "Scalar[]? capture_numbers=None",
    ],
    "mask_mod": ["str? mask_mod=None"],  # with the captures of both
}
_RESULTS = {"None": "()", "One": "Tensor", "Pair": "(Tensor, Tensor)", "Three": "(Tensor, Tensor, Tensor)"}
_RESULTS |= {"Results": "(Tensor, Tensor, Tensor, Tensor)"}


@dataclass(frozen=True)
class Form:
    """The form of an operator, for one layout of arrays."""

    name: str
    function: str  # the public one that it is for
    layout: int
    letter: str  # in Keyword.ops
    places: str  # arguments by position; programs rely on them, so they never change
    needed: int  # the first of them have no default
    results: str = "Results"  # or "Three", "Pair", "One", "None"
    written: tuple[str, ...] = ()
    names: dict[str, str] = field(default_factory=dict)  # the operator's words for ours
    defaults: Mapping[str, Any] = field(default_factory=dict)  # defaults that differ from the extension's
    table: Mapping[str, Row] = field(default_factory=lambda: ROWS)

    @cached_property
    def rows(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns our words for arguments that may be given by position, and for the others."""
        places = tuple(self.places.split())
        mine = (name for name, row in self.table.items() if self.letter in row.more.ops)
        return places, (*(name for name in mine if name not in (*places, "function")), "function")

    @cached_property
    def schema(self) -> str:
        """Returns the operator's schema in the words of torch's dispatcher."""
        places, others = self.rows
        words = [w for at, name in enumerate(places) for w in self.words(self.table[name], at < self.needed)]
        words += ["*", *(w for name in others for w in self.words(self.table[name], False))]
        return f"{self.name}({', '.join(words)}) -> {_RESULTS[self.results]}"

    @cached_property
    def by_place(self) -> tuple[str, ...]:
        """Returns the operator's words for its first arguments."""
        return tuple(self.names.get(name, name) for name in self.rows[0])

    def words(self, row: Row, needed: bool) -> list[str]:
        """Returns a keyword in the words of a schema."""
        if row.name in _SEVERAL and self.table is ROWS:
            return [self._marked(words) for words in _SEVERAL[row.name]]
        name = self.names.get(row.name, row.name)
        optional = row.kind.endswith("?") or (row.is_array and (not needed or row.name == "cu_seqlens_k"))
        word = f"{_TYPES[row.kind.rstrip('?')]}{'?' if optional else ''} {name}"
        default = self.function if name == "function" else self.defaults.get(row.name, row.more.default)
        if isinstance(default, str):
            default = f'"{default}"'
        return [self._marked(word) if needed else self._marked(f"{word}={default}")]

    def _marked(self, word: str) -> str:
        """Returns a word of the schema with a mark if the operator writes to that argument."""
        name = word.split()[1].partition("=")[0]
        if name not in self.written:
            return word
        return word.replace("Tensor", f"Tensor({'abcd'[self.written.index(name)]}!)", 1)


FLASH = "q k v dropout_p softmax_scale causal window_left window_right softcap alibi_slopes"
FORMS = [
    Form(
        "attention", "attention", BHSD, "a", "q k v attn_mask dropout_p causal softmax_scale enable_gqa", 3,
        names=OF_ATTENTION, defaults=DEFAULTS_OF_ATTENTION,
    ),
    Form("flash_attn", "flash_attn_func", BSHD, "d", FLASH, 3),
    Form(
        "flash_attn_varlen", "flash_attn_varlen_func", THD, "p",
        FLASH.replace("v d", "v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k d") + " block_table", 7,
    ),
    Form(
        "flash_attn_with_kvcache", "flash_attn_with_kvcache", BSHD, "c",
        "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad block_table "
        "softmax_scale causal window_left window_right softcap rotary_interleaved alibi_slopes num_splits", 3,
        results="Pair", written=("k_cache", "v_cache", "k_scale", "v_scale"),
    ),
]  # fmt: skip
LINEAR = Form("linear", "linear", BSHD, "l", "x weight bias", 2, results="One", table=ROWS_OF_LINEAR)
MATMUL_SOFTMAX = Form(
    "matmul_softmax", "matmul_softmax", BSHD, "m", "a b bias", 2, results="One", table=ROWS_OF_SOFTMAX
)
LINEAR_CROSS_ENTROPY = Form(
    "linear_cross_entropy", "linear_cross_entropy", BSHD, "h", "input linear_weight target linear_bias", 3,
    results="Three", table=ROWS_OF_CROSS_ENTROPY,
)  # fmt: skip
LINEAR_TOP_K = Form(
    "linear_top_k", "linear_top_k", BSHD, "h", "input linear_weight k linear_bias", 2,
    results="Pair", table=ROWS_OF_TOP_K,
)  # fmt: skip
SAMPLE = Form("sample", "sample", BSHD, "s", "logits", 1, results="One", table=ROWS_OF_SAMPLE)
WRITE_TO_CACHE = Form(
    "write_to_cache", "write_to_cache", BSHD, "w", "k v k_cache v_cache slots", 5,
    results="None", written=("k_cache", "v_cache", "k_scale", "v_scale"), table=ROWS_OF_WRITES,
)  # fmt: skip


def backward_schema(name: str) -> str:
    """Returns the schema of the backward operator; it takes every keyword of the differentiable forward operators."""
    form = Form(name, name, BHSD, "", "q k v", 3, defaults=DEFAULTS_OF_ATTENTION)
    others = (*FORWARD_ONLY, "function", "residual", "q", "k", "v")
    keywords = [name for name, row in ROWS.items() if row.more.ops and name not in others]
    words = [word for row in (*keywords, "function") for word in form.words(ROWS[row], needed=False)]
    first = "Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor rng"
    own = "Tensor? rest=None, bool longer=False"
    return f"{name}({first}, SymInt layout, str[] wanted, *, {own}, {', '.join(words)}) -> Tensor[]"
