"""Calls on simulated GPUs, and the records of their launches."""

from __future__ import annotations

from collections.abc import Callable

import dpctl
import dpctl.memory
import ml_dtypes
import numpy as np
import xeflash
from xeflash import _core, sim
from xeflash.bench.standard import standard_attention
from xeflash.call.schema import BHSD

DTYPES = {"fp32": (np.float32, "<f4"), "fp16": (np.float16, "<f2"), "bf16": (ml_dtypes.bfloat16, "<V2")}
BYTES = {"uint8": (np.uint8, "|u1"), "int8": (np.int8, "|i1"), "float8_e4m3fn": (ml_dtypes.float8_e4m3fn, "|V1")}
INTS = {"int32": (np.int32, "<i4")}
SIZE = {name: np.dtype(element).itemsize for name, (element, _) in DTYPES.items()}
LINE_BYTES = 64


class DeviceArray:
    """Random numbers, or those of an array, in the memory of a queue's device."""

    def __init__(
        self, queue: dpctl.SyclQueue, shape: tuple[int, ...], dtype: str, values: np.ndarray | None = None
    ) -> None:
        element, typestr = (DTYPES | BYTES | INTS)[dtype]
        if values is None:
            values = np.random.default_rng(0).standard_normal(shape, np.float32).astype(element)
        self.shape, self.dtype = shape, dtype
        self.nbytes = values.nbytes
        self._memory = dpctl.memory.MemoryUSMDevice(values.nbytes, queue=queue)
        self._memory.copy_from_host(values.view(np.uint8).reshape(-1))
        self.__sycl_usm_array_interface__ = {
            "data": (self._memory._pointer, False),
            "shape": shape,
            "strides": None,
            "typestr": typestr,
            "version": 1,
            "syclobj": queue,
        }


def queue_of(device: str) -> dpctl.SyclQueue:
    """Returns a queue of a device that sim.enable() has named."""
    return dpctl.SyclQueue(f"level_zero:gpu:{sim.enabled().index(device)}", property="in_order")


def records_of(queue: dpctl.SyclQueue, call: Callable[[], object]) -> list[sim.LaunchRecord]:
    """Returns the records of what a call launches, with caches that are empty at first."""
    sim.clear_caches()
    sim.clear_launches()
    call()
    queue.wait()
    return sim.last_launches()


def launches(
    form: str, device: str, dtype: str, dim: int, rows: int, keys: int, causal: bool = False, heads: int = 1
) -> list[sim.LaunchRecord]:
    """Returns the records of one call; `form` is "flash" or "standard" attention."""
    queue = queue_of(device)
    arrays = [DeviceArray(queue, (1, heads, length, dim), dtype) for length in (rows, keys, keys)]
    attention = xeflash.attention if form == "flash" else standard_attention
    return records_of(queue, lambda: attention(*arrays, is_causal=causal))


def backward(
    device: str, dtype: str, dim: int, rows: int, keys: int, causal: bool = False, heads: int = 1
) -> dict[str, sim.LaunchRecord]:
    """Returns the records of a call that wants the gradients of q, k and v, by the names of its kernels."""
    queue = queue_of(device)
    q, k, v, out, dout = (DeviceArray(queue, (1, heads, n, dim), dtype) for n in (rows, keys, keys, rows, rows))
    lse = DeviceArray(queue, (1, heads, rows), "fp32")
    records = records_of(queue, lambda: _core.backward(
        function="backward", layout=BHSD, q=q, k=k, v=v, out=out, lse=lse, dout=dout, causal=causal,
        wanted=("q", "k", "v"),
    ))  # fmt: skip
    return {record.kernel.removeprefix("__sycl_kernel_"): record for record in records}
