"""Arrays in USM, as SYCL programs in Python have them: dpctl memory with a shape, and a stand-in for torch on xpu."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import dpctl
import dpctl.memory
import numpy as np
import torch

TYPESTRS = {
    torch.float32: "<f4",
    torch.float16: "<f2",
    torch.bfloat16: "<V2",
    torch.int32: "<i4",
    torch.bool: "|b1",
}
TYPES = {typestr: dtype for dtype, typestr in TYPESTRS.items()}
MEMORY = {
    "device": dpctl.memory.MemoryUSMDevice,
    "shared": dpctl.memory.MemoryUSMShared,
    "host": dpctl.memory.MemoryUSMHost,
}


@functools.cache
def gpu_queue() -> dpctl.SyclQueue:
    """The in-order queue of the first GPU, a real or a simulated one; raises dpctl.SyclQueueCreationError without."""
    return dpctl.SyclQueue("level_zero:gpu", property="in_order")


class UsmArray:
    """The values of a torch tensor, with its strides, in USM of a kind and queue, after `offset` elements."""

    def __init__(self, values: torch.Tensor, queue: dpctl.SyclQueue, kind: str = "device", offset: int = 0) -> None:
        flat = values.as_strided((values.untyped_storage().nbytes() // values.element_size(),), (1,), 0)
        padded = torch.cat([torch.full((offset,), 77, dtype=values.dtype), flat]).contiguous()
        self.memory = MEMORY[kind](max(1, padded.nbytes), queue=queue)
        if padded.numel():
            self.memory.copy_from_host(padded.view(torch.uint8).numpy())
        self.__sycl_usm_array_interface__ = {
            "data": (self.memory._pointer, False),
            "shape": tuple(values.shape),
            "strides": None if values.is_contiguous() else tuple(values.stride()),
            "typestr": TYPESTRS[values.dtype],
            "offset": offset + values.storage_offset(),
            "version": 1,
            "syclobj": queue,
        }
        self.shape = tuple(values.shape)


def read(array: Any) -> torch.Tensor:
    """The values of a contiguous array with a __sycl_usm_array_interface__, on the host."""
    interface = array.__sycl_usm_array_interface__
    assert interface["strides"] is None
    dtype = TYPES[interface["typestr"]]
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


def stand_in_module(queue: dpctl.SyclQueue) -> types.ModuleType:
    """A module with what is asked of torch for tensors on xpu: `Tensor` and `xpu.current_stream(device).sycl_queue`."""
    module = types.ModuleType("xpu_stand_in")
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.bool)
    stream = types.SimpleNamespace(sycl_queue=queue.addressof_ref())
    module.xpu = types.SimpleNamespace(current_stream=lambda device: stream)
    for dtype in dtypes:
        setattr(module, str(dtype).removeprefix("torch."), dtype)

    class Tensor:
        __module__ = "xpu_stand_in"
        device = types.SimpleNamespace(type="xpu", index=0)

        def __init__(self, values: torch.Tensor) -> None:
            self.array = UsmArray(values.contiguous(), queue, "shared")
            self.dtype, self.shape, self._stride = (
                values.dtype,
                values.shape,
                values.contiguous().stride(),
            )

        def data_ptr(self) -> int:
            return int(self.array.memory._pointer)

        def stride(self) -> tuple[int, ...]:
            return self._stride

        def new_empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            return Tensor(torch.full(shape, 7).to(dtype))

        def cpu(self) -> torch.Tensor:
            return read(self.array)

    module.Tensor = Tensor
    sys.modules[module.__name__] = module
    return module


def far_apart(values: torch.Tensor, queue: dpctl.SyclQueue, head_bytes: int) -> Any:
    """A (1, heads, S, D) tensor whose heads lie `head_bytes` apart in one allocation."""
    one, heads, rows, dim = values.shape
    assert one == 1
    memory = dpctl.memory.MemoryUSMDevice((heads - 1) * head_bytes + rows * dim * values.element_size(), queue=queue)
    for head in range(heads):
        piece = values[0, head].contiguous().view(torch.uint8).numpy().reshape(-1)
        place = {"data": (memory._pointer + head * head_bytes, False), "shape": piece.shape, "strides": None}
        place |= {"typestr": "|u1", "version": 1, "syclobj": queue}
        there = types.SimpleNamespace(__sycl_usm_array_interface__=place, owner=memory)
        queue.memcpy(dpctl.memory.as_usm_memory(there), piece, piece.size)
    interface = {"data": (memory._pointer, False), "shape": tuple(values.shape), "version": 1, "syclobj": queue}
    interface |= {"typestr": TYPESTRS[values.dtype]}
    interface |= {"strides": (heads * head_bytes // values.element_size(), head_bytes // values.element_size(), dim, 1)}
    return types.SimpleNamespace(__sycl_usm_array_interface__=interface, memory=memory, shape=tuple(values.shape))
