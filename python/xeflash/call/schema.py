"""The keywords of a call of attention: each stands here once, and every other list is made from this one.

The order is that of the fields of FwdRequest in host/attention/request.hpp, whose names, types and defaults ``check``
compares at import.
"""

from __future__ import annotations

import itertools
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeAlias, TypedDict

BSHD, THD, BHSD = 0, 1, 2  # Layout in request.hpp
Array: TypeAlias = Any  # a torch tensor, a numpy array, or one of __sycl_usm_array_interface__
Factor: TypeAlias = Any  # an array or a number
Snippet: TypeAlias = tuple[str, dict[str, Any]]
Words: TypeAlias = dict[str, str]


@dataclass(frozen=True)
class Keyword:
    """The properties of a keyword that its type does not say."""

    default: Any = None
    ops: str = "adpc"  # operators that have it: attention, dense, packed, cache
    learned: bool = False
    attention: str = ""  # its name in attention(), if that differs
    forward_only: str = ""  # why the backward pass does without it; else it has it, too


_ANY = Keyword()
_PACKED = Keyword(ops="p")
_PART = Keyword(ops="")
_NO_GRADIENT = "caches have no gradients"
_CACHE, _PAGES = Keyword(ops="c", forward_only=_NO_GRADIENT), Keyword(ops="pc", forward_only=_NO_GRADIENT)


class _Given(TypedDict):
    function: Annotated[str, Keyword("")]  # the public function, for messages
    layout: Annotated[int, Keyword(BSHD, ops="")]
    q: Annotated[Array, Keyword(learned=True, attention="query")]


class Arguments(_Given, total=False):
    """The arguments of a call and their defaults."""

    words: Annotated[Words | None, Keyword(ops="adpc")]  # the caller's words, for messages, by the words of this table
    k: Annotated[Array, Keyword(learned=True, attention="key")]  # with k_cache: the keys to append to it
    v: Annotated[Array, Keyword(learned=True, attention="value")]
    out: Annotated[Array, Keyword(ops="", forward_only="it is the result")]
    softmax_scale: Annotated[float | None, Keyword(attention="scale")]
    causal: Annotated[bool, Keyword(False, attention="is_causal")]
    window_left: Annotated[int, Keyword(-1)]
    window_right: Annotated[int, Keyword(-1)]
    attention_chunk: Annotated[int, Keyword(0)]
    bottom_right: Annotated[bool, Keyword(True, ops="a")]
    softcap: Annotated[float, Keyword(0.0)]
    attn_mask: Annotated[Array, Keyword(ops="a", learned=True)]
    alibi_slopes: Annotated[Array, Keyword(learned=True)]
    s_aux: Annotated[Array, Keyword(learned=True, attention="sinks")]
    score_mod: Annotated[Snippet | None, _ANY]  # from snippet()
    mask_mod: Annotated[Snippet | None, _ANY]  # likewise: the condition under which a row sees a key
    document_ids: Annotated[Array, Keyword(ops="ad")]  # ids of the rows of k; the rows of q are the last ones
    picks: Annotated[Array, Keyword(ops="ad")]  # a bit of each row and key, in words of 32 keys
    picked_spans: Annotated[Array, Keyword(ops="ad")]  # which words have a bit, for spans of 64 rows
    blocks: Annotated[Array, _ANY]  # two bits of each block of rows and keys: listed, full (listed.hpp)
    block_rows: Annotated[int, Keyword(0)]
    block_keys: Annotated[int, Keyword(0)]
    dropout_p: Annotated[float, Keyword(0.0, ops="adp")]
    seed: Annotated[int, Keyword(0, ops="adp", forward_only="rng has it")]  # from seeds()
    offset: Annotated[int, Keyword(0, ops="adp", forward_only="rng has it")]
    return_lse: Annotated[bool, Keyword(False, forward_only="it has the LSE")]
    residual: Annotated[Array, Keyword(ops="adp")]  # what rounding takes from out: written, or read by gradients
    enable_gqa: Annotated[bool, Keyword(True, ops="a")]
    num_splits: Annotated[int, Keyword(0, ops="dpc", forward_only="it splits no keys")]
    unified_max: Annotated[float | None, _CACHE]
    cu_seqlens_q: Annotated[Array, _PACKED]
    cu_seqlens_k: Annotated[Array, _PACKED]
    max_seqlen_q: Annotated[int, Keyword(0, ops="p")]
    max_seqlen_k: Annotated[int, Keyword(0, ops="p")]
    seqused_k: Annotated[Array, _PACKED]
    # These say which part of a larger attention a call is; no operator has them.
    other_lse: Annotated[Array, Keyword(ops="", forward_only="it has the LSE of all")]  # `out` joins it, in fp32
    q_start: Annotated[Factor, _PART]  # the position of the first row of q; of each sequence, or a number for all
    k_start: Annotated[Factor, _PART]
    first_head: Annotated[int, Keyword(0, ops="")]  # the first head of q among all heads
    all_heads: Annotated[int, Keyword(0, ops="")]  # 0: they are all
    k_cache: Annotated[Array, _CACHE]  # rows that lie where block_table or beam_index say, or in the array's order
    v_cache: Annotated[Array, _CACHE]
    cache_seqlens: Annotated[Array, _CACHE]
    cache_length: Annotated[int, Keyword(-1, "c", forward_only=_NO_GRADIENT)]  # -1: all of the cache
    cache_batch_idx: Annotated[Array, _CACHE]
    cache_leftpad: Annotated[Array, _CACHE]
    block_table: Annotated[Array, _PAGES]
    beam_index: Annotated[Array, _CACHE]
    tree_mask: Annotated[Array, _PAGES]  # a bit for each row and node, in words of 32 nodes
    k_scale: Annotated[Factor, _PAGES]
    v_scale: Annotated[Factor, _PAGES]
    rotary_cos: Annotated[Array, _CACHE]
    rotary_sin: Annotated[Array, _CACHE]
    rotary_positions: Annotated[Array, _CACHE]  # of the new keys
    rotary_interleaved: Annotated[bool, Keyword(True, "c", forward_only=_NO_GRADIENT)]


class BackwardArguments(Arguments, total=False):
    """The arguments of a backward pass: a call, its results, their gradients, and the names of the wanted gradients."""

    lse: Array
    dout: Array
    dlse: Array
    delta: Array  # in the place of out and dlse: rowsum(dO O) - dLSE, fp32
    dq: Array  # fp32: what the gradients of q, k and v are added to
    dk: Array
    dv: Array
    longer: bool  # out and lse are of rows of more keys than these
    wanted: tuple[str, ...]  # names of LEARNED, or "captures['NAME']"


_PRODUCT = Keyword(ops="l")
_LEARNED_OF_PRODUCT = Keyword(ops="l", learned=True)


class LinearArguments(TypedDict, total=False):
    """The arguments of a product of rows with weights."""

    function: Annotated[str, Keyword("linear")]
    x: Annotated[Array, _LEARNED_OF_PRODUCT]
    weight: Annotated[Array, _LEARNED_OF_PRODUCT]
    bias: Annotated[Array, _LEARNED_OF_PRODUCT]
    scales: Annotated[Array, _PRODUCT]
    zeros: Annotated[Array, _PRODUCT]
    group: Annotated[int, Keyword(0, ops="l")]
    wide: Annotated[bool, Keyword(False, ops="")]  # the result is in fp32


_SCORES = Keyword(ops="m", learned=True)


class MatmulSoftmaxArguments(TypedDict, total=False):
    """The arguments of a product of matrices whose rows become their softmax."""

    function: Annotated[str, Keyword("matmul_softmax")]
    a: Annotated[Array, _SCORES]
    b: Annotated[Array, _SCORES]
    bias: Annotated[Array, _SCORES]
    scale: Annotated[float, Keyword(1.0, ops="m")]
    b_layout: Annotated[str, Keyword("nk", ops="m")]
    log: Annotated[bool, Keyword(False, ops="m")]
    out: Annotated[Array, Keyword(ops="")]


_HEAD, _LEARNED_OF_HEAD = Keyword(ops="h"), Keyword(ops="h", learned=True)


class CrossEntropyArguments(TypedDict, total=False):
    """The arguments of the loss of a language model's head."""

    function: Annotated[str, Keyword("linear_cross_entropy")]
    input: Annotated[Array, _LEARNED_OF_HEAD]
    linear_weight: Annotated[Array, _LEARNED_OF_HEAD]
    target: Annotated[Array, _HEAD]
    linear_bias: Annotated[Array, _LEARNED_OF_HEAD]
    reduction: Annotated[str, Keyword("mean", ops="h")]
    ignore_index: Annotated[int, Keyword(-100, ops="h")]
    label_smoothing: Annotated[float, Keyword(0.0, ops="h")]
    softcap: Annotated[float, Keyword(0.0, ops="h")]
    logit_scale: Annotated[float, Keyword(1.0, ops="h")]
    z_loss: Annotated[float, Keyword(0.0, ops="h")]
    divisor: Annotated[float, Keyword(0.0, ops="h")]  # 0: the rows that count
    log_prob: Annotated[bool, Keyword(False, ops="h")]  # the negative of a loss of rows that all count
    workspace: Annotated[int, Keyword(0, ops="h")]  # bytes of logits, of which gradients are made in the forward pass
    logits: Annotated[Array, Keyword(ops="")]  # the array that they are written to


class TopKArguments(TypedDict, total=False):
    """The arguments of the largest logits of a language model's head."""

    function: Annotated[str, Keyword("linear_top_k")]
    input: Annotated[Array, _HEAD]
    linear_weight: Annotated[Array, _HEAD]
    k: Annotated[int, Keyword(1, ops="h")]
    linear_bias: Annotated[Array, _HEAD]
    softcap: Annotated[float, Keyword(0.0, ops="h")]
    logit_scale: Annotated[float, Keyword(1.0, ops="h")]
    argmax: Annotated[bool, Keyword(False, ops="h")]  # results have no dimension of k


_SAMPLED = Keyword(ops="s")


class SampleArguments(TypedDict, total=False):
    """The arguments of sampling; plural words have a value for each row, in place of the singular ones."""

    function: Annotated[str, Keyword("sample")]
    logits: Annotated[Array, _SAMPLED]
    seed: Annotated[int, Keyword(0, ops="s")]
    position: Annotated[int, Keyword(0, ops="s")]
    temperature: Annotated[float, Keyword(1.0, ops="s")]
    top_k: Annotated[int, Keyword(0, ops="s")]
    top_p: Annotated[float, Keyword(1.0, ops="s")]
    min_p: Annotated[float, Keyword(0.0, ops="s")]
    seeds: Annotated[Array, _SAMPLED]
    positions: Annotated[Array, _SAMPLED]
    temperatures: Annotated[Array, _SAMPLED]
    top_ks: Annotated[Array, _SAMPLED]
    top_ps: Annotated[Array, _SAMPLED]
    min_ps: Annotated[Array, _SAMPLED]
    softcap: Annotated[float, Keyword(0.0, ops="s")]
    logit_scale: Annotated[float, Keyword(1.0, ops="s")]
    min_p_last: Annotated[bool, Keyword(False, ops="s")]
    first_row: Annotated[int, Keyword(0, ops="s")]  # the index of the first one, where one seed is for all


_WRITTEN = Keyword(ops="w")


class WriteArguments(TypedDict, total=False):
    """The arguments of writing keys and values to slots of a cache; a scale that is a number is called factor."""

    function: Annotated[str, Keyword("write_to_cache")]
    k: Annotated[Array, _WRITTEN]
    v: Annotated[Array, _WRITTEN]
    k_cache: Annotated[Array, _WRITTEN]
    v_cache: Annotated[Array, _WRITTEN]
    slots: Annotated[Array, _WRITTEN]
    k_scale: Annotated[Array, _WRITTEN]
    v_scale: Annotated[Array, _WRITTEN]
    k_factor: Annotated[float | None, _WRITTEN]
    v_factor: Annotated[float | None, _WRITTEN]


class Row(NamedTuple):
    """A keyword, with its type in a word."""

    name: str
    kind: str  # object, str, bool, int, float; with ? where None is one
    is_array: bool
    more: Keyword


def _rows(table: type) -> dict[str, Row]:
    found = {}
    for name, hint in typing.get_type_hints(table, include_extras=True).items():
        kind, more = typing.get_args(hint)
        is_array = kind is Any
        if is_array or kind in (Snippet | None, Words | None):
            word = "object"
        elif isinstance(kind, types.UnionType):
            word = kind.__args__[0].__name__ + "?"
        else:
            word = kind.__name__
        found[name] = Row(name, word, is_array, more)
    return found


ROWS: Mapping[str, Row] = _rows(Arguments)
ROWS_OF_LINEAR: Mapping[str, Row] = _rows(LinearArguments)
ROWS_OF_SOFTMAX: Mapping[str, Row] = _rows(MatmulSoftmaxArguments)
ROWS_OF_CROSS_ENTROPY: Mapping[str, Row] = _rows(CrossEntropyArguments)
ROWS_OF_TOP_K: Mapping[str, Row] = _rows(TopKArguments)
ROWS_OF_SAMPLE: Mapping[str, Row] = _rows(SampleArguments)
ROWS_OF_WRITES: Mapping[str, Row] = _rows(WriteArguments)
ARRAYS = frozenset(name for name, row in ROWS.items() if row.is_array)
LEARNED = tuple(name for name, row in ROWS.items() if row.more.learned)  # the order of backward's results
OF_ATTENTION = {name: row.more.attention for name, row in ROWS.items() if row.more.attention}
WITH_GRADIENTS = frozenset({*LEARNED, "captures"})
WITH_GRADIENTS_OF_ATTENTION = frozenset(OF_ATTENTION.get(name, name) for name in WITH_GRADIENTS)

DEFAULTS_OF_ATTENTION = {"bottom_right": False, "enable_gqa": False}  # torch's
FORWARD_ONLY = frozenset(name for name, row in ROWS.items() if row.more.forward_only)


Fields: TypeAlias = tuple[tuple[str, str, Any, str], ...]


_OF_PRODUCTS = (
    ROWS_OF_LINEAR, ROWS_OF_SOFTMAX, ROWS_OF_CROSS_ENTROPY, ROWS_OF_TOP_K, ROWS_OF_SAMPLE, ROWS_OF_WRITES,
)  # fmt: skip


def check(call: Fields, products: Mapping[str, Fields], learned: tuple[str, ...]) -> None:
    """Raises an ImportError where the extension's keywords, types, defaults or gradients differ from these tables."""
    found_of_products = [products.get(rows["function"].more.default, ()) for rows in _OF_PRODUCTS]
    for rows, found in zip((ROWS, *_OF_PRODUCTS), (call, *found_of_products), strict=True):
        here = [(row.name, row.kind, row.more.default, row.more.attention) for row in rows.values()]
        for ours, theirs in itertools.zip_longest(here, found):
            if ours != theirs:
                raise ImportError(f"xeflash._core has the keyword {theirs} where schema.py has {ours}; build it anew")
    if learned != LEARNED:
        raise ImportError(f"xeflash._core has gradients of {learned}, schema.py of {LEARNED}; build it anew")
