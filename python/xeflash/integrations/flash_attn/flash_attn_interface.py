"""``flash_attn.flash_attn_interface``: the functions, and the two halves of a call for those who differentiate it.

Programs that share a sequence among devices call a forward and a backward pass by themselves, with an output and an LSE
of keys that lie elsewhere, too. What these return and write is what flash-attn's do; none of them is recorded for
gradients. The state of dropout's generator is a tensor that the backward pass takes back, and nothing else is to read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from xeflash import torch_ops  # noqa: F401  torch.ops.xeflash has its operators then
from xeflash.call.schema import BSHD, THD
from xeflash.integrations.flash_attn import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__all__ = [
    "_flash_attn_backward",
    "_flash_attn_forward",
    "_flash_attn_varlen_backward",
    "_flash_attn_varlen_forward",
    "_wrapped_flash_attn_backward",
    "_wrapped_flash_attn_forward",
    "_wrapped_flash_attn_varlen_backward",
    "_wrapped_flash_attn_varlen_forward",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


def _flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    return_softmax: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Computes (out, LSE (B, H, Sq), no elements, state of dropout) of tensors (B, S, H, D)."""
    _refuse_probabilities("_flash_attn_forward", return_softmax)
    with torch.no_grad():
        out, lse, state, _ = torch.ops.xeflash.flash_attn(
            q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes,
            return_lse=True, function="_flash_attn_forward",
        )  # fmt: skip
    return out, lse, q.new_empty(0), state


def _flash_attn_varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
    block_table: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    zero_tensors: bool = False,
    num_splits: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Computes (out, LSE (H, tokens), no elements, state of dropout) of packed tensors (tokens, H, D).

    ``zero_tensors`` changes nothing: rows without keys give 0 in any case.
    """
    _refuse_probabilities("_flash_attn_varlen_forward", return_softmax)
    if leftpad_k is not None:
        raise NotImplementedError(
            f"_flash_attn_varlen_forward: leftpad_k must be None, got {type(leftpad_k).__name__}: "
            "use flash_attn_with_kvcache with cache_leftpad"
        )
    with torch.no_grad():
        out, lse, state, _ = torch.ops.xeflash.flash_attn_varlen(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, softmax_scale, causal,
            window_size_left, window_size_right, softcap, alibi_slopes, block_table, seqused_k=seqused_k,
            num_splits=num_splits, return_lse=True, function="_flash_attn_varlen_forward",
        )  # fmt: skip
    return out, lse, q.new_empty(0), state


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
) -> Tensor:
    """Writes the gradients to dq, dk and dv, as far as they are given; returns rowsum(dout out), fp32 (B, H, Sq).

    ``out`` and ``softmax_lse`` may be those of rows of more keys than ``k`` has. ``deterministic`` changes nothing: the
    bits are the same each time.
    """
    _write_gradients(
        {"dq": dq, "dk": dk, "dv": dv}, dout, q, k, v, out, softmax_lse, rng_state, BSHD,
        dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal, window_left=window_size_left,
        window_right=window_size_right, softcap=softcap, alibi_slopes=alibi_slopes, function="_flash_attn_backward",
    )  # fmt: skip
    return (dout.float() * out.float()).sum(-1).transpose(1, 2)


def _flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
    zero_tensors: bool = False,
) -> Tensor:
    """Computes _flash_attn_backward for packed tensors; returns rowsum(dout out) as (H, tokens)."""
    _write_gradients(
        {"dq": dq, "dk": dk, "dv": dv}, dout, q, k, v, out, softmax_lse, rng_state, THD,
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
        dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal, window_left=window_size_left,
        window_right=window_size_right, softcap=softcap, alibi_slopes=alibi_slopes,
        function="_flash_attn_varlen_backward",
    )  # fmt: skip
    return (dout.float() * out.float()).sum(-1).T


_wrapped_flash_attn_forward = _flash_attn_forward
_wrapped_flash_attn_varlen_forward = _flash_attn_varlen_forward
_wrapped_flash_attn_backward = _flash_attn_backward
_wrapped_flash_attn_varlen_backward = _flash_attn_varlen_backward


def _refuse_probabilities(function: str, return_softmax: bool) -> None:
    if return_softmax:
        raise NotImplementedError(
            f"{function}: return_softmax must be False, got {return_softmax}: "
            "use flash_attn_func with return_attn_probs"
        )


def _write_gradients(
    into: dict[str, Tensor | None],
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    state: Tensor | None,
    layout: int,
    **options: Any,
) -> None:
    """Computes only the gradients that have a tensor to be written to."""
    if options["dropout_p"] and (state is None or state.numel() != 2):
        got = "None" if state is None else f"shape {list(state.shape)}"
        raise ValueError(
            f"{options['function']}: rng_state must be what the forward pass gave with dropout_p = "
            f"{options['dropout_p']}, got {got}"
        )
    wanted = [name for name, x in into.items() if x is not None]
    with torch.no_grad():
        gradients = torch.ops.xeflash.attention_backward(
            dout, None, q, k, v, out, lse, out.new_empty(0) if state is None else state, layout,
            [name[1:] for name in wanted], longer=True, **options,
        )  # fmt: skip
        for name, gradient in zip(wanted, gradients, strict=True):
            place = into[name]
            assert place is not None
            if place.shape != gradient.shape:
                raise ValueError(
                    f"{options['function']}: {name} must have the shape of {name[1:]} {list(gradient.shape)}, "
                    f"got {list(place.shape)}"
                )
            place.copy_(gradient)
