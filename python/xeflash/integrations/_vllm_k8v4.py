"""vLLM's cache of keys in int8 and values in 4 bits: a head's key, value and scales of a token lie side by side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NAME = "turboquant_k8v4"  # vLLM's own has keys in e4m3, and other values
UNIT = 64  # columns of a value that share a scale
_ALIGNED = 16  # bytes


def _sizes(dim: int) -> tuple[int, int, int, int]:
    """Returns the bytes of a key, of a value, and of their scales."""
    return dim, dim // 2, 4, 2 * dim // UNIT


def bytes_of_token(dim: int) -> int:
    """Returns the bytes that a token has in the cache of a head."""
    return -(-sum(_sizes(dim)) // _ALIGNED) * _ALIGNED


def arrays_of(kv_cache: Tensor, dim: int) -> dict[str, Any]:
    """Returns what a cache (pages, Hk, page, bytes) holds as (pages, page, Hk, ...), by their keywords."""
    sizes = _sizes(dim)
    k, v, k_scale, v_scale = kv_cache.transpose(1, 2)[..., : sum(sizes)].split(sizes, dim=-1)
    return {
        "k_cache": k.view(torch.int8),
        "v_cache": v,
        "k_scale": k_scale.view(torch.float32).squeeze(-1),
        "v_scale": v_scale.view(torch.float16),
    }
