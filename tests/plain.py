"""Plain calls: arrays of the usual sizes, attention on them, and results with rows before heads."""

from __future__ import annotations

from typing import Any

import torch
import xeflash
from tolerance import check_attention
from xeflash.selftest.reference import Features


def make(
    rows: int = 63, keys: int = 127, batch: int = 2, heads: int = 4, heads_k: int = 2, dim: int = 64, dim_v: int = 64,
    dtype: torch.dtype = torch.float32,
) -> list[torch.Tensor]:  # fmt: skip
    """q, k, v of (B, H, S, D)."""
    shapes = [(batch, heads, rows, dim), (batch, heads_k, keys, dim), (batch, heads_k, keys, dim_v)]
    return [torch.randn(shape).to(dtype) for shape in shapes]


def make_rows_first(*sizes: int, **more: Any) -> list[torch.Tensor]:
    """The same in memory of (B, S, H, D)."""
    return [x.transpose(1, 2).contiguous() for x in make(*sizes, **more)]


def call(*arrays: Any, **options: Any) -> Any:
    """(out, LSE)."""
    return xeflash.attention(*arrays, enable_gqa=True, return_lse=True, **options)


def check_rows_first(
    case: str, qkv: Any, out: torch.Tensor, lse: torch.Tensor | None = None, f: Features = Features(), gpu: bool = False
) -> None:
    """Of (B, S, H, D), and LSEs of (B, H, S)."""
    q, k, v, got = (x.transpose(1, 2) for x in (*qkv, out.cpu()))
    check_attention(case, q, k, v, f, got, None if lse is None else lse.cpu(), gpu)
