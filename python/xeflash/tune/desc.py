"""Descriptions of kernels: what a kernel is made for, and the sizes that it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from xeflash.call.score_mod import ScoreMod

DTYPE_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # by the short ones of the command line


@dataclass(frozen=True)
class Algorithm:
    """An algorithm: its file in kernels/, its entry points in the extension's order, and a launch's parameters."""

    headers: tuple[str, ...]
    entries: tuple[str, ...]
    params: str = "FwdParams"
    of: str = "attention"  # the kind of its description; else "products", "softmax", or "heads" of language models
    multiplies_tiles: bool = True  # by instructions that multiply tiles, as AMX has them


def _head(*entries: str, params: str) -> Algorithm:
    return Algorithm(entries[:1], entries, params, "heads", multiplies_tiles=False)


ALGORITHMS = {
    "flash_fwd": Algorithm(("flash_fwd",), ("flash_fwd",)),
    "flash_decode": Algorithm(("flash_decode", "combine"), ("flash_decode", "combine"), multiplies_tiles=False),
    "standard_attention": Algorithm(
        ("standard_attention",), ("scores", "softmax_rows", "weighted_sum"), "StandardParams"
    ),
    "flash_bwd_dq": Algorithm(("flash_bwd_dq",), ("flash_bwd_dq",), "BwdParams"),
    "flash_bwd_dkv": Algorithm(("flash_bwd_dkv",), ("flash_bwd_dkv",), "BwdParams"),
    "flash_bwd": Algorithm(("flash_bwd",), ("flash_bwd",), "BwdParams"),
    "flash_bwd_bias": Algorithm(("flash_bwd_bias",), ("flash_bwd_bias",), "BwdParams"),
    "flash_bwd_captures": Algorithm(("flash_bwd_captures",), ("flash_bwd_captures", "add_captures"), "BwdParams"),
    "flash_bwd_heads": Algorithm(("flash_bwd_heads",), ("flash_bwd_heads",), "BwdParams", multiplies_tiles=False),
    "attention_probs": Algorithm(("attention_probs",), ("attention_probs",), "ProbsParams"),
    "document_spans": Algorithm(("document_spans",), ("document_spans",), multiplies_tiles=False),
    "mask_blocks": Algorithm(
        ("mask_blocks",), ("mask_blocks", "pack_blocks"), "ScoreModParams", multiplies_tiles=False
    ),
    "append": Algorithm(("append",), ("append",), "AppendParams", multiplies_tiles=False),
    "write_to_cache": Algorithm(("append",), ("write_to_cache",), "WriteParams", multiplies_tiles=False),
    "merge_states": Algorithm(("merge_states",), ("merge_states",), "MergeParams", multiplies_tiles=False),
    "linear": Algorithm(("linear",), ("linear",), "LinearParams", "products", multiplies_tiles=False),
    "matmul_softmax": Algorithm(("matmul_softmax",), ("matmul_softmax",), "MatmulSoftmaxParams", "softmax"),
    "linear_cross_entropy": _head("linear_cross_entropy", "loss_of_rows", "sum_of_losses", params="CrossEntropyParams"),
    "logit_slopes": _head("logit_slopes", "sums_of_slopes", params="CrossEntropyParams"),
    "matmul_add": _head("matmul_add", params="MatmulAddParams"),
    "linear_top_k": _head("linear_top_k", "merge_top_k", params="TopKParams"),
    "sample_tokens": _head("sample_tokens", params="SampleParams"),
    "peak": Algorithm(("peak",), ("multiply_peak", "read_peak")),
}


class _OfAlgorithm:
    """The base of all descriptions: a kernel's algorithm."""

    algorithm: str

    @property
    def headers(self) -> tuple[str, ...]:
        """Returns the files of the kernel."""
        return (*ALGORITHMS[self.algorithm].headers, *self._merging)

    @property
    def entries(self) -> tuple[str, ...]:
        """Returns the entry points of the kernel."""
        return (*ALGORITHMS[self.algorithm].entries, *self._merging)

    @property
    def _merging(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class Desc(_OfAlgorithm):
    """A kernel of attention: what changes its code, in the order of Desc in host/attention/desc.hpp, and its device."""

    algorithm: str
    arch: str
    dtype: str
    head_dim: int
    head_dim_v: int
    rows: int
    hooks: tuple[str, ...] = ()  # changes of scores: structs of kernels/attention/variant.hpp, in their order
    bias: str | None = None
    score_mod: ScoreMod | None = None
    mask_mod: ScoreMod | None = None  # a condition, of the mask Listed
    mask: str = "Window"  # the keys that a row sees: a struct of kernels/attention/
    dropout: bool = False
    packed_heads: bool = False  # few queries: the rows of a tile are those of all heads that share a KV head
    split_keys: bool = False  # tiles are few and keys many: groups, and on GPUs their threads, share out the keys
    cache: str = ""  # the places of the rows of K and V: in the array's order, "paged" or by "beam"
    page_unit: int = 16  # pages are multiples of so many keys
    cache_dtype: str | None = None  # the type of K and V, if it is not dtype
    cache_scales: bool = False  # a factor per row of K, and of V if it has 8 bits
    nibbles: bool = False  # V is in 4 bits
    unified_max: bool = False  # decoding with a maximum that is known beforehand
    bias_gradient: str | None = None  # flash_bwd_bias: of a bias, and its type
    sums_slopes: bool = False  # flash_bwd_bias: of ALiBi's slopes
    adds_up: bool = False  # results join what is in memory, in fp32: of other keys, or queries
    learned: int = 0  # flash_bwd_captures: which of the captured arrays, a bit each
    access: str = ""  # GPUs: how rows are read (Access in kernels/xe/vec.hpp)
    device: str = ""
    driver: str = ""

    @property
    def _merging(self) -> tuple[str, ...]:
        """Returns what merges the splits of the keys; decoding always has its own."""
        return ("combine",) if self.algorithm == "flash_fwd" and self.split_keys else ()

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Desc:
        """Makes a description from what the extension passes."""
        snippets = ("score_mod", "mask_mod")
        return cls(**values | {name: values[name] and ScoreMod(*values[name]) for name in snippets})


@dataclass(frozen=True)
class ProductDesc(_OfAlgorithm):
    """A kernel of a product, in the order of ProductDesc in host/products/desc.hpp."""

    algorithm: str
    arch: str
    dtype: str
    rows: int  # the rows of the call, up to those of a tile
    width: int  # outputs are at most 2^width
    weight: str | None = None  # the type of weights, if it is not dtype; "uint8" is two of 4 bits
    scale: str | None = None  # the type of their scales
    group: int = 0  # inputs that share a scale; 0: all
    wide: bool = False  # results are in fp32
    access: str = ""  # GPUs: how rows are read (Access in kernels/xe/vec.hpp)
    device: str = ""
    driver: str = ""


@dataclass(frozen=True)
class SoftmaxDesc(_OfAlgorithm):
    """A kernel of a product with softmax, or of a head, in the order of SoftmaxDesc in host/products/desc.hpp.

    Those of heads say the inputs of a step; they have columns = 0, as these change nothing.
    """

    algorithm: str
    arch: str
    dtype: str
    rows: int  # the rows of the call, up to those of a tile
    columns: int  # at most 2^columns
    inputs: int  # as many as there are, up to 128; of more 256, 128, or 32 (CPUs: 128), what divides them
    more_inputs: bool  # there are more than `inputs`
    bias: str | None = None
    access: str = ""  # GPUs: how rows are read (Access in kernels/xe/vec.hpp)
    device: str = ""
    driver: str = ""


AnyDesc: TypeAlias = Desc | ProductDesc | SoftmaxDesc


def desc_of(values: dict[str, Any]) -> AnyDesc:
    """Makes a description of any kind from what the extension passes."""
    of = ALGORITHMS[values["algorithm"]].of
    if of == "attention":
        return Desc.from_dict(values)
    return ProductDesc(**values) if of == "products" else SoftmaxDesc(**values)


@dataclass(frozen=True)
class Config:
    """The choice for a kernel: rows and keys of a tile, and the shares of threads.

    Of products: rows, inputs of a step, and outputs of a thread; threads take turns at the inputs.
    """

    block_q: int
    block_k: int
    block_v: int  # columns of the output that a thread owns
    parts: int = 1  # parts of the output's columns
    threads: int = 1  # threads of a work-group
    turns: int = 1  # threads that take turns at the keys of the same rows
    block_d: int = 0  # backward: columns of dQ or dK that a thread owns; those of dV are block_v
    team: int = 1  # threads of a block of rows: each owns a part of the columns, and scores some of the keys
    pairs: bool = False  # two teams have the same rows, and each does half of the work
    in_order: bool = False  # products keep the order of their steps
    products: int = 1  # matmul_softmax: 2 where scores are made twice, and not kept

    @property
    def rows_in_group(self) -> int:
        """Returns the rows of a work-group."""
        return self.block_q * (self.threads // (self.turns * self.team * (2 if self.pairs else 1)))

    @property
    def groups_of_rows(self) -> int:
        """Returns the work-groups that have the same rows: one, or one for each part of the columns."""
        return self.parts // self.team
