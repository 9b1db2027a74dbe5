"""flash-attn 3's module ``flash_attn_interface``: its order of arguments, which is not that of flash-attn 2.

With ``return_attn_probs`` the functions return (out, LSE). What they have beside flash-attn 2's is taken or refused by
name as ``xeflash.flash_attn_func`` does it. The forward and backward passes by themselves are for programs that share a
sequence among devices; none of them is recorded for gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import xeflash
from xeflash.call.values import shown
from xeflash.integrations.flash_attn import flash_attn_interface as two

__all__ = [
    "_flash_attn_backward",
    "_flash_attn_forward",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Sequence[Any] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    *,
    s_aux: Tensor | None = None,
) -> Any:
    """Computes attention of q (B, Sq, H, D) on k (B, Sk, Hk, D) and v (B, Sk, Hk, Dv)."""
    given = locals()
    given["return_lse"] = given.pop("return_attn_probs")
    return xeflash.flash_attn_func(**given)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    window_size: Sequence[Any] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
    *,
    s_aux: Tensor | None = None,
) -> Any:
    """Computes attention of packed sequences: q (tokens, H, D), k (tokens, Hk, D) and v (tokens, Hk, Dv)."""
    given = locals()
    given["return_lse"] = given.pop("return_attn_probs")
    return xeflash.flash_attn_varlen_func(**given)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    qv: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    page_table: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k_new: Tensor | None = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[Any] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
    *,
    s_aux: Tensor | None = None,
) -> Any:
    """Computes attention of q (B, Sq, H, D) on a cache, after appending k and v to it in place."""
    return xeflash.flash_attn_with_kvcache(**locals())


_FORWARD_REFUSED = (
    *("k_new", "v_new", "qv", "out", "cu_seqlens_k_new", "seqused_q", "page_table", "kv_batch_idx", "leftpad_k"),
    *("rotary_cos", "rotary_sin", "seqlens_rotary", "q_descale", "k_descale", "v_descale", "scheduler_metadata"),
    "sm_margin",
)


def _flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_new: Tensor | None,
    v_new: Tensor | None,
    qv: Tensor | None,
    out: Tensor | None,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    cu_seqlens_k_new: Tensor | None,
    seqused_q: Tensor | None,
    seqused_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    page_table: Tensor | None,
    kv_batch_idx: Tensor | None,
    leftpad_k: Tensor | None,
    rotary_cos: Tensor | None,
    rotary_sin: Tensor | None,
    seqlens_rotary: Tensor | None,
    q_descale: Tensor | None,
    k_descale: Tensor | None,
    v_descale: Tensor | None,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Tensor | None = None,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
) -> tuple[Tensor, Tensor, None, None]:
    """Computes (out, LSE, None, None) of tensors (B, S, H, D), or of packed ones (tokens, H, D) with cu_seqlens_q.

    ``pack_gqa`` changes nothing, nor does ``rotary_interleaved`` without an angle.
    """
    _refuse("_flash_attn_forward", _FORWARD_REFUSED, locals())
    options: dict[str, Any] = {
        "softmax_scale": softmax_scale,
        "causal": causal,
        "window_left": window_size_left,
        "window_right": window_size_right,
        "softcap": softcap,
        "attention_chunk": attention_chunk,
        "num_splits": num_splits,
        "return_lse": True,
        "function": "_flash_attn_forward",
    }
    with torch.no_grad():
        if cu_seqlens_q is None:
            _refuse("_flash_attn_forward", ("cu_seqlens_k", "seqused_k"), locals())
            result, lse, *_ = torch.ops.xeflash.flash_attn(q, k, v, **options)
        else:
            lengths = _lengths("_flash_attn_forward", cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
            result, lse, *_ = torch.ops.xeflash.flash_attn_varlen(q, k, v, *lengths, **options, seqused_k=seqused_k)
    return result, lse, None, None


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    sequed_q: Tensor | None,
    sequed_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    softmax_scale: float | None,
    is_causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    deterministic: bool = False,
    sm_margin: int = 0,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor]:
    """Computes (dq, dk, dv, rowsum(dout out)); writes the gradients into the tensors that are given."""
    _refuse("_flash_attn_backward", ("sequed_q", "sequed_k", "sm_margin"), locals())
    options: dict[str, Any] = {  # the words of flash-attn 2, which has dropout and ALiBi besides
        "dropout_p": 0.0,
        "softmax_scale": softmax_scale,
        "causal": is_causal,
        "window_size_left": window_size_left,
        "window_size_right": window_size_right,
        "softcap": softcap,
        "alibi_slopes": None,
        "deterministic": deterministic,
    }
    given = (dout, q, k, v, out, softmax_lse, dq, dk, dv)
    if cu_seqlens_q is None:
        _refuse("_flash_attn_backward", ("cu_seqlens_k",), locals())
        sums = two._flash_attn_backward(*given, **options)
    else:
        lengths = _lengths("_flash_attn_backward", cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
        sums = two._flash_attn_varlen_backward(*given, *lengths, **options)
    return dq, dk, dv, sums


def _refuse(function: str, names: Sequence[str], given: dict[str, Any]) -> None:
    for name in names:
        value = given[name]
        if value is not None and not (isinstance(value, int) and value == 0):
            raise NotImplementedError(f"{function}: {name} must be None, got {shown(value)}")


def _lengths(
    function: str, starts_q: Tensor, starts_k: Tensor | None, longest_q: int | None, longest_k: int | None
) -> tuple[Tensor, Tensor, int, int]:
    if starts_k is None or longest_q is None or longest_k is None:
        raise ValueError(
            f"{function}: cu_seqlens_k, max_seqlen_q and max_seqlen_k must be given with cu_seqlens_q, got None"
        )
    return starts_q, starts_k, longest_q, longest_k
