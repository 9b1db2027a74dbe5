"""Rotary position embedding (Su et al., 2021) of rows whose positions no kernel can count."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def check_tables(function: str, q: Tensor, cos: Any, sin: Any) -> None:
    """Checks rotary_cos and rotary_sin by the rules of flash_attn_with_kvcache."""
    for name, table in (("rotary_cos", cos), ("rotary_sin", sin)):
        if not isinstance(table, Tensor):
            raise TypeError(
                f"{function}: {name} must be a torch tensor if the other one is, got {type(table).__name__}"
            )
        if table.dtype is not q.dtype:
            raise TypeError(f"{function}: {name} must have the dtype of q ({q.dtype}), got {table.dtype}")
        if table.ndim != 2 or table.shape != cos.shape:
            raise ValueError(
                f"{function}: {name} must have the shape (positions, columns) of both, got {list(table.shape)}"
            )
        if table.device != q.device:
            raise ValueError(f"{function}: {name} must be on the device of q ({q.device}), got {table.device}")
    columns = cos.shape[1]
    if columns < 8 or columns % 8 or 2 * columns > q.shape[-1]:
        raise ValueError(
            f"{function}: rotary_cos.columns must be a multiple of 8, at most half of head_dim ({q.shape[-1]}), "
            f"got {columns}"
        )


def rotate(x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotates the first dimensions of x (B, rows, H, D), in fp32, by its rows' positions (B or 1, rows)."""
    at = positions.clamp(0, cos.shape[0] - 1).long()  # lengths on a device are trusted
    c, s = (table[at].float().unsqueeze(-2) for table in (cos, sin))
    half = cos.shape[1]
    turned, unrotated = x[..., : 2 * half].float(), x[..., 2 * half :]
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])
    pairs = (a * c - b * s, a * s + b * c)
    both = torch.stack(pairs, -1).flatten(-2) if interleaved else torch.cat(pairs, -1)
    return torch.cat([both.to(x.dtype), unrotated], -1)
