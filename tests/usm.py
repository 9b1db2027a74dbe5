"""Arrays in USM, as SYCL programs in Python have them: dpctl memory with a shape."""

from __future__ import annotations

import functools
import itertools
import types
from typing import Any

import dpctl
import dpctl.memory
import numpy as np
import torch
from xeflash.selftest.arrays import Usm

MEMORY = {
    "device": dpctl.memory.MemoryUSMDevice,
    "shared": dpctl.memory.MemoryUSMShared,
    "host": dpctl.memory.MemoryUSMHost,
}


@functools.cache
def gpu_queue() -> dpctl.SyclQueue:
    """The in-order queue of the first GPU, a real or a simulated one; raises dpctl.SyclQueueCreationError without."""
    return dpctl.SyclQueue("level_zero:gpu", property="in_order")


class UsmArray(Usm):
    """The values of a torch tensor, with its strides, in USM of a kind and queue, after `offset` elements."""

    def __init__(self, values: torch.Tensor, queue: dpctl.SyclQueue, kind: str = "device", offset: int = 0) -> None:
        flat = values.as_strided((values.untyped_storage().nbytes() // values.element_size(),), (1,), 0)
        padded = torch.cat([torch.full((offset,), 77, dtype=values.dtype), flat]).contiguous()
        memory = MEMORY[kind](max(1, padded.nbytes), queue=queue)
        if padded.numel():
            memory.copy_from_host(padded.view(torch.uint8).numpy())
        strides, offset = None if values.is_contiguous() else values.stride(), offset + values.storage_offset()
        super().__init__(
            memory._pointer, values.shape, str(values.dtype).removeprefix("torch."), queue, strides, offset, memory
        )


def read(array: Any) -> torch.Tensor:
    """The values of a contiguous array with a __sycl_usm_array_interface__, on the host."""
    interface = array.__sycl_usm_array_interface__
    assert interface["strides"] is None
    dtype = getattr(torch, str(array.dtype))
    size = int(np.prod(interface["shape"])) * dtype.itemsize
    if size == 0:
        return torch.empty(interface["shape"], dtype=dtype)
    host = np.empty(size, np.uint8)
    interface["syclobj"].wait()
    as_bytes = types.SimpleNamespace(
        __sycl_usm_array_interface__={**interface, "typestr": "|u1", "shape": (size,)}, owner=array
    )
    interface["syclobj"].memcpy(host, dpctl.memory.as_usm_memory(as_bytes), size)
    return torch.from_numpy(host).view(dtype).reshape(interface["shape"])


def spread(places: int, gap: int, size: int, queue: dpctl.SyclQueue) -> tuple[list[Any], int]:
    """Memory, the first one first, in which `places` of `size` bytes lie about `gap` bytes apart, and how far exactly.

    One allocation, or, where the device has none so large, as many of a GiB as it takes, if they lie side by side.
    """
    try:
        return [dpctl.memory.MemoryUSMDevice((places - 1) * gap + size, queue=queue)], gap
    except dpctl.memory.USMAllocationError:
        steps = -(-gap // 2**30)
        memory = [dpctl.memory.MemoryUSMDevice(gap // steps, queue=queue) for _ in range((places - 1) * steps + 1)]
        distances = {b._pointer - a._pointer for a, b in itertools.pairwise(memory)}
        if len(distances) > 1 or min(distances) < gap // steps:
            raise
        return memory, distances.pop() * steps


def far_apart(values: torch.Tensor, queue: dpctl.SyclQueue, axis: int, gap: int) -> Any:
    """The same values where what follows along `axis` lies about `gap` bytes apart."""
    pieces = [piece.contiguous() for piece in values.unbind(axis)]
    memory, gap = spread(len(pieces), gap, pieces[0].nbytes, queue)
    first = memory[0]._pointer
    strides = list(pieces[0].stride())
    strides.insert(axis, gap // values.element_size())
    for number, piece in enumerate(pieces):
        flat = piece.view(torch.uint8).numpy().reshape(-1)
        place = {"data": (first + number * gap, False), "shape": flat.shape, "strides": None}
        place |= {"typestr": "|u1", "version": 1, "syclobj": queue}
        there = types.SimpleNamespace(__sycl_usm_array_interface__=place, owner=memory)
        queue.memcpy(dpctl.memory.as_usm_memory(there), flat, flat.size)
    return Usm(first, values.shape, str(values.dtype).removeprefix("torch."), queue, tuple(strides), memory=memory)
