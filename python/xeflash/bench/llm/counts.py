"""A model's attention on a simulated GPU: what its machine code does for a token."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch

from xeflash import sim
from xeflash.bench.llm.cells import Cell, Implementation
from xeflash.bench.llm.generation import generate, make_cache, prompt_of, use
from xeflash.bench.llm.models import kv_bytes
from xeflash.bench.llm.rows import row_without_times
from xeflash.bench.rows import Result

_OURS = Implementation("xeflash", "xe")
_TYPESTRS = {torch.bfloat16: "<V2", torch.float16: "<f2", torch.float32: "<f4", torch.int32: "<i4", torch.bool: "|b1"}


class _Bytes:
    """A USM array as bytes: dpctl knows no bfloat16."""

    def __init__(self, array: Any, size: int) -> None:
        interface = array.__sycl_usm_array_interface__
        self.__sycl_usm_array_interface__ = {**interface, "shape": (size,), "typestr": "|u1"}


def _tensor_of(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """A copy of a contiguous USM array on the host."""
    from dpctl import memory

    size = math.prod(array.shape) * dtype.itemsize
    return torch.from_numpy(memory.as_usm_memory(_Bytes(array, size)).copy_to_host()).view(dtype).view(array.shape)


class _DeviceArray:
    """A copy of a CPU tensor in USM memory of a queue's device."""

    def __init__(self, tensor: torch.Tensor, queue: Any) -> None:
        from dpctl import memory

        self.tensor, self.shape, self.sycl_queue = tensor, tuple(tensor.shape), queue
        self._before = tensor.contiguous().reshape(-1).view(torch.uint8).clone()
        self._memory = memory.MemoryUSMDevice(max(1, tensor.nbytes), queue=queue)
        if tensor.nbytes:
            self._memory.copy_from_host(self._before.numpy())

    @property
    def __sycl_usm_array_interface__(self) -> dict[str, Any]:
        return {
            "data": (self._memory._pointer, False),
            "shape": self.shape,
            "strides": None,
            "typestr": _TYPESTRS[self.tensor.dtype],
            "offset": 0,
            "version": 1,
            "syclobj": self.sycl_queue,
        }

    def copy_back(self) -> None:
        """Write what the device changed into the tensor."""
        now = torch.from_numpy(self._memory.copy_to_host())[: self.tensor.nbytes]
        if not torch.equal(now, self._before):
            self.tensor.copy_(now.view(self.tensor.dtype).view(self.shape))


def on_device(function: Callable[..., Any], queue: Any) -> Callable[..., Any]:
    """Return `function` of xeflash for CPU tensors, computed on the device of a queue, in place where it is."""

    def call(*arguments: Any, **options: Any) -> Any:
        arrays: dict[int, _DeviceArray] = {}

        def move(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return arrays.setdefault(id(value), _DeviceArray(value, queue))

        result = function(*map(move, arguments), **{name: move(value) for name, value in options.items()})
        queue.wait()
        for array in arrays.values():
            array.copy_back()
        if isinstance(result, _DeviceArray):
            return result.tensor
        return _tensor_of(result, arguments[0].dtype)

    return call


def count(model: Any, cell: Cell, seed: int) -> Result:
    """Return the counts of a token: those of three tokens less those of two, which both have the prompt."""
    import dpctl

    from xeflash.integrations import transformers
    from xeflash.integrations.xe_cache import layer

    queue = dpctl.SyclQueue("level_zero:gpu", property="in_order")
    prompt = prompt_of(cell, model.config.vocab_size, "cpu", seed)
    use(model, _OURS)
    launches: list[list[sim.LaunchRecord]] = []
    with ExitStack() as stack:
        for module, name in ((transformers, "attention"), (layer, "flash_attn_with_kvcache")):
            stack.enter_context(patch.object(module, name, on_device(getattr(module, name), queue)))
        for new_tokens in (2, 3):
            some = dataclasses.replace(cell, new_tokens=new_tokens)
            sim.clear_launches()
            generate(model, some, prompt, make_cache(some, _OURS.cache, model.config))
            launches.append(sim.last_launches())
    records = launches[1][len(launches[0]) :]
    row = dataclasses.replace(
        row_without_times(cell, _OURS, "ok", ""),
        kv_bytes=cell.batch * cell.beams * kv_bytes(model.config, cell.context, cell.dtype),
        instructions=sum(record.instructions for record in records),
        read_bytes=sum(record.global_read for record in records),
        written_bytes=sum(record.global_written for record in records),
        launches=len(records),
    )
    return Result(row)
