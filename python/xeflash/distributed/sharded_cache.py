"""Rows of a cache that lies on all ranks, as each rank writes them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from xeflash.api.attention.kv_cache import attend_cache
from xeflash.call.call import Call
from xeflash.call.schema import BSHD
from xeflash.distributed.owners import Owners

EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
_SCALES = ("k_scale", "v_scale")


@dataclass(frozen=True)
class Rows:
    """New keys and values (B, new, Hk, D), as a cache holds them; scales are None, numbers or fp32 (B, new, Hk)."""

    k: Tensor
    v: Tensor
    k_scale: Any = None
    v_scale: Any = None

    def of(self, columns: Any) -> Rows:
        """Returns some columns of the new rows."""
        scales = {x: s[:, columns] if isinstance(s := getattr(self, x), Tensor) else s for x in _SCALES}
        return replace(self, k=self.k[:, columns], v=self.v[:, columns], **scales)

    def arguments(self) -> dict[str, Any]:
        """Returns the rows as the arguments of a call on a cache."""
        scales = {x: s for x in _SCALES if (s := getattr(self, x)) is not None}
        return {"k_cache": self.k, "v_cache": self.v, **scales}


def rows_of(call: Call, k: Tensor, v: Tensor) -> Rows:
    """Returns new rows in the cache's type; the kernel that appends quantises them."""
    k_cache, v_cache = call["k_cache"], call["v_cache"]
    if k_cache.dtype not in EIGHT_BITS:
        return Rows(k, v)
    scales = {x: call.get(x) for x in _SCALES}
    for x, scale in scales.items():
        if isinstance(scale, Tensor):
            scales[x] = scale.new_empty(k.shape[:3])
    rows = Rows(k.new_empty(k.shape, dtype=k_cache.dtype), v.new_empty(v.shape, dtype=v_cache.dtype), **scales)
    if k.shape[1]:  # one query is the least that a call can have
        new = {"q": k[:, :1], "k": k, "v": v, "cache_length": 0, **rows.arguments()}
        attend_cache(Call({"function": call.function, "layout": BSHD, **new}))
    return rows


def append(rows: Rows, positions: Tensor, owners: Owners, cache: Call, kept: Tensor | None = None) -> None:
    """Writes those rows that are this rank's own into its cache.

    Nothing is read from the device: shapes do not depend on how many those are. In the place of any other row, the
    first of them is written once more; if there is none, what the cache has is written.

    Args:
        positions: (B, new).
        cache: a call that has k_cache, v_cache, and what says where its rows are.
        kept: bool (B, new): which rows there are; default all.
    """
    at = owners.local(positions)
    table, index = cache.get("block_table"), cache.get("cache_batch_idx")
    per_page = cache["k_cache"].shape[1]
    room = per_page if table is None else per_page * table.shape[1]
    is_mine = owners.owns(positions) & (at < room)
    if owners.is_ranges:
        is_mine &= positions < owners.turn
    mine = (is_mine if kept is None else is_mine & kept).flatten()
    if table is None:
        places = torch.arange(len(at), device=at.device) if index is None else index
        places = places[:, None].expand(at.shape)
    else:
        places = table.gather(1, (at // per_page).clamp(max=table.shape[1] - 1).long())
        at = at % per_page
    first = mine.int().argmax()
    source = torch.where(mine, torch.arange(len(mine), device=mine.device), first)
    place, row = (torch.where(mine, x.flatten(), 0)[source].long() for x in (places, at))
    is_any = mine.any()
    for name in ("k", "v"):
        pairs = [(cache[f"{name}_cache"], getattr(rows, name))]
        if isinstance(scale := cache.get(f"{name}_scale"), Tensor):
            pairs.append((scale, getattr(rows, f"{name}_scale")))
        for to, new in pairs:
            if to.dtype in EIGHT_BITS:
                to, new = to.view(torch.uint8), new.view(torch.uint8)
            to[place, row] = torch.where(is_any, new.flatten(0, 1)[source], to[0, 0])
