"""vLLM's caches in which each token has scales: a head's key, value and their scales of a token lie side by side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

K8V4 = "turboquant_k8v4"  # keys in int8 and values in 4 bits; vLLM's own has keys in e4m3, and other values
KEYS = {"int8_per_token_head": torch.int8, "fp8_per_token_head": torch.float8_e4m3fn, K8V4: torch.int8}
UNIT = 64  # columns of a value in 4 bits that share a scale
_ALIGNED = 16  # bytes


def _sizes(name: str, dim: int) -> tuple[int, int, int, int]:
    """Returns the bytes of a key, of a value, and of their scales."""
    return (dim, dim // 2, 4, 2 * dim // UNIT) if name == K8V4 else (dim, dim, 4, 4)


def bytes_of_token(name: str, dim: int) -> int:
    """Returns the bytes that a token has in the cache of a head."""
    return -(-sum(_sizes(name, dim)) // _ALIGNED) * _ALIGNED


def arrays_of(name: str, kv_cache: Tensor, dim: int) -> dict[str, Any]:
    """Returns what a cache (pages, Hk, page, bytes) holds as (pages, page, Hk, ...), by their keywords."""
    sizes = _sizes(name, dim)
    tokens = kv_cache.view(torch.uint8).transpose(1, 2)[..., : sum(sizes)]
    k, v, k_scale, v_scale = tokens.split(sizes, dim=-1)
    in_nibbles = name == K8V4
    return {
        "k_cache": k.view(KEYS[name]),
        "v_cache": v if in_nibbles else v.view(KEYS[name]),
        "k_scale": k_scale.view(torch.float32).squeeze(-1),
        "v_scale": v_scale.view(torch.float16) if in_nibbles else v_scale.view(torch.float32).squeeze(-1),
    }
