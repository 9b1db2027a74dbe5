"""The arguments of the extension's ``forward``, by name: one list for the extension, the operators and all callers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypedDict

if TYPE_CHECKING:
    from typing_extensions import Required, Unpack


class Arguments(TypedDict, total=False):
    """FwdRequest in request.hpp; what is not given has the default there."""

    function: Required[str]  # the public function, for messages
    layout: Required[int]
    q: Required[Any]
    k: Any  # with k_cache: the keys to append to it
    v: Any
    out: Any
    softmax_scale: float | None
    causal: bool
    window_left: int
    window_right: int
    bottom_right: bool
    softcap: float
    alibi_slopes: Any
    s_aux: Any
    attn_mask: Any
    score_mod: tuple[str, dict[str, Any]] | None  # from _common.snippet
    dropout_p: float
    seed: int | None  # from _common.seeds
    offset: int
    return_lse: bool
    rest: Any  # what rounding takes from the output, as the backward pass reads it: an array like the output
    enable_gqa: bool
    num_splits: int
    unified_max: float | None
    cu_seqlens_q: Any
    cu_seqlens_k: Any
    max_seqlen_q: int
    max_seqlen_k: int
    seqused_k: Any
    k_cache: Any  # rows that lie where block_table or beam_index say, or in the order of the array
    v_cache: Any
    cache_seqlens: Any
    cache_length: int  # of every sequence; -1: all of the cache
    cache_batch_idx: Any
    cache_leftpad: Any
    block_table: Any
    beam_index: Any
    k_scale: Any  # an array or a number
    v_scale: Any
    rotary_cos: Any
    rotary_sin: Any
    rotary_interleaved: bool


ARRAYS = frozenset(
    {
        *("q", "k", "v", "out", "alibi_slopes", "s_aux", "attn_mask", "cu_seqlens_q", "cu_seqlens_k", "seqused_k"),
        *("k_cache", "v_cache", "cache_seqlens", "cache_batch_idx", "cache_leftpad", "block_table", "beam_index"),
        *("k_scale", "v_scale", "rotary_cos", "rotary_sin", "rest"),
    }
)


class Engine(Protocol):
    """What runs calls: the extension, or torch_ops in its place."""

    def forward(self, **arguments: Unpack[Arguments]) -> tuple[Any, Any]:
        """(out, LSE or None)."""

    def refuse_shared(self, function: str, out: Any, name: str, other: Any, /) -> None:
        """Raises if writing `out` would change another array."""

    def merge_states(self, outs: list[Any], lses: list[Any], /) -> tuple[Any, Any]:
        """(out, LSE)."""
