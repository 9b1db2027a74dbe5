"""Writing of new keys and values into the pages of a cache, by slot numbers, for servers that own the cache."""

from __future__ import annotations

import torch
from torch import Tensor


def write_slots(function: str, new: Tensor, cache: Tensor, slots: Tensor, scale: float | Tensor = 1.0) -> None:
    """Writes new (tokens, H, D) / scale to cache[slot // page, slot % page] for each slot that is not negative.

    The cache is (pages, page, H, D). The row of a negative slot becomes a copy of the first other row, so that nothing
    has to wait for a device.
    """
    tokens = slots.shape[0]
    if new.shape[1:] != cache.shape[2:] or new.shape[0] < tokens or slots.dim() != 1:
        raise ValueError(
            f"{function}: keys and values must be (tokens >= {tokens}, {cache.shape[2]}, {cache.shape[3]}) as cache "
            f"and slot_mapping say, got {list(new.shape)}"
        )
    for name, x in (("keys and values", new), ("slot_mapping", slots)):
        if x.device != cache.device:
            raise ValueError(f"{function}: {name} must be on the device of the cache ({cache.device}), got {x.device}")
    if not tokens:
        return
    new, slots = new[:tokens], slots.long()
    if cache.dtype is not new.dtype:
        new = (new / scale).to(cache.dtype)
    if cache.dtype.itemsize == 1:  # torch indexes no 8-bit floats
        new, cache = new.view(torch.int8), cache.view(torch.int8)
    page = cache.shape[1]
    used = slots >= 0
    first = used.int().argmax(keepdim=True)  # one row: torch would ask the device for an index without dimensions
    place = slots[first].clamp(min=0)
    value = torch.where(used[first, None, None], new[first], cache[place // page, place % page])
    slots = torch.where(used, slots, place)
    cache[slots // page, slots % page] = torch.where(used[:, None, None], new, value)
