"""``flash_attn.layers.rotary``: the rotation of queries and keys by position, of torch's own operations.

``flash_attn_with_kvcache`` rotates what it appends by itself; these are for code that rotates before it.
"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

__all__ = ["__getattr__", "apply_rotary_emb", "apply_rotary_emb_func", "apply_rotary_emb_torch", "rotate_half"]


def rotate_half(x: Tensor, interleaved: bool = False) -> Tensor:
    """Turns every pair (a, b) of the last dimension into (-b, a); pairs are neighbours, or the two halves."""
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((-b, a), dim=-1).flatten(-2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def apply_rotary_emb_torch(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Rotates the first dimensions of x (B, S, H, D) by cos and sin, (S, rotary / 2) or (B, S, rotary / 2)."""
    return _rotate(x, cos[..., None, :], sin[..., None, :], interleaved)


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """Rotates x (B, S, H, D), or packed (tokens, H, D) with `cu_seqlens`, by the positions of its tokens.

    Args:
        cos, sin: (positions, rotary / 2), with all positions of x; dimensions of x behind rotary stay.
        interleaved: pairs are neighbours (GPT-J), else the two halves (GPT-NeoX).
        inplace: the result is written into x, too, and returned; without gradients.
        seqlen_offsets: the position of the first token: a number, or one for each sequence.
        cu_seqlens: int32 (B + 1,): where packed sequences start.
        max_seqlen: the tokens of the longest of them, or more; cos and sin must have as many positions.
    """
    rows = x.shape[1] if cu_seqlens is None else max_seqlen or 0
    rows += 0 if isinstance(seqlen_offsets, Tensor) else seqlen_offsets
    if cos.dim() != 2 or cos.shape != sin.shape or cos.shape[0] < rows:
        raise ValueError(
            f"apply_rotary_emb: cos and sin must have one shape (rows, rotary / 2) with at least {rows} rows, "
            f"got {list(cos.shape)} and {list(sin.shape)}"
        )
    if cu_seqlens is None:
        first = seqlen_offsets[:, None] if isinstance(seqlen_offsets, Tensor) else seqlen_offsets
        places = torch.arange(x.shape[1], device=x.device) + first
    else:
        tokens = torch.arange(x.shape[0], device=x.device)
        sequence = torch.bucketize(tokens, cu_seqlens[1:], right=True)
        first = seqlen_offsets[sequence] if isinstance(seqlen_offsets, Tensor) else seqlen_offsets
        places = tokens - cu_seqlens[sequence] + first
    out = _rotate(x, cos[places, None], sin[places, None], interleaved)
    return x.copy_(out) if inplace else out


apply_rotary_emb_func = apply_rotary_emb


def __getattr__(name: str) -> NoReturn:
    """Raises the error of an import of flash-attn's class, or of a name that it does not have either."""
    if name == "RotaryEmbedding":
        raise ImportError(
            "xeflash has no flash_attn.layers.rotary.RotaryEmbedding: apply_rotary_emb takes the cos and sin of a model"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    rotary = 2 * cos.shape[-1]
    if rotary > x.shape[-1]:
        raise ValueError(
            f"apply_rotary_emb: cos must have at most half the head_dim of x ({x.shape[-1]}), got {cos.shape[-1]}"
        )
    cos, sin = (y.repeat_interleave(2, -1) if interleaved else torch.cat((y, y), -1) for y in (cos, sin))
    moved = x[..., :rotary].float()
    moved = moved * cos.float() + rotate_half(moved, interleaved) * sin.float()
    return torch.cat((moved.to(x.dtype), x[..., rotary:]), -1)
