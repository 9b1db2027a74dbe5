"""Caches in the types of --kv-dtype, and the numbers that they stand for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from xeflash.bench.cases import Case
from xeflash.integrations.xe_cache import nibbles


def array_sizes(case: Case) -> dict[str, tuple[tuple[int, ...], str]]:
    """Returns the shapes and types of a case's cache by their keywords; scales are those of rows."""
    keys, dim = (case.batch, case.seq_k, case.kv_heads), case.head_dim
    kept = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "float8_e4m3fn"}.get(case.cached, "int8")
    found: dict[str, tuple[tuple[int, ...], str]]
    found = {name: ((*keys, dim), kept) for name in ("k_cache", "v_cache")}
    if case.cached == case.dtype:
        return found
    found |= {name: (keys, "float32") for name in ("k_scale", "v_scale")}
    if case.cached == "k8v4":
        (values, of_values), (scales, of_scales) = nibbles.arrays_of(dim)
        found["v_cache"] = ((*keys, *values), str(of_values).removeprefix("torch."))
        found["v_scale"] = ((*keys, *scales), str(of_scales).removeprefix("torch."))
    return found


def filled(case: Case, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
    """Returns a cache to which our call has appended keys and values (B, Hk, S, D)."""
    attention: Any = importlib.import_module("xeflash").flash_attn_with_kvcache
    sizes = array_sizes(case)
    arrays = {
        name: torch.zeros(shape, dtype=getattr(torch, dtype), device=q.device) for name, (shape, dtype) in sizes.items()
    }
    no_rows = q[:, :, :0].transpose(1, 2)
    attention(no_rows, **arrays, k=k.transpose(1, 2), v=v.transpose(1, 2), cache_seqlens=0)
    return arrays


def numbers(arrays: Mapping[str, Tensor]) -> list[Tensor]:
    """Returns the keys and values of a cache as (B, Hk, S, D): in fp32, or as they are without scales."""
    found = []
    for letter in "kv":
        rows, scales = arrays[f"{letter}_cache"], arrays.get(f"{letter}_scale")
        if scales is not None:
            is_packed = rows.dtype is torch.uint8
            rows = nibbles.unpacked(rows, scales) if is_packed else rows.float() * scales[..., None]
        found.append(rows.transpose(1, 2))
    return found
