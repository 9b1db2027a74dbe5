"""Calls of attention on a simulated GPU, and the records of their launches: what the programs here measure."""

from __future__ import annotations

import dpctl
import dpctl.memory
import ml_dtypes
import numpy as np
import xeflash
from xeflash import _core, sim
from xeflash.bench.standard import standard_attention
from xeflash.call.schema import BHSD

DTYPES = {"fp32": (np.float32, "<f4"), "fp16": (np.float16, "<f2"), "bf16": (ml_dtypes.bfloat16, "<V2")}
BYTES = {"uint8": (np.uint8, "|u1"), "int8": (np.int8, "|i1")}


class DeviceArray:
    """Random numbers in the memory of a queue's device."""

    def __init__(self, queue: dpctl.SyclQueue, shape: tuple[int, ...], dtype: str) -> None:
        """Allocate and fill."""
        element, typestr = (DTYPES | BYTES)[dtype]
        values = np.random.default_rng(0).standard_normal(shape, np.float32).astype(element)
        self.shape = shape
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


def launches(
    form: str, dtype: str, dim: int, rows: int, keys: int, causal: bool = False, heads: int = 1
) -> list[sim.LaunchRecord]:
    """The records of one call; `form` is "flash" or "standard" attention."""
    queue = dpctl.SyclQueue("level_zero:gpu", property="in_order")
    arrays = [DeviceArray(queue, (1, heads, length, dim), dtype) for length in (rows, keys, keys)]
    sim.clear_launches()
    if form == "flash":
        xeflash.attention(*arrays, is_causal=causal)
    else:
        standard_attention(*arrays, is_causal=causal)
    queue.wait()
    return sim.last_launches()


def backward(
    dtype: str, dim: int, rows: int, keys: int, causal: bool = False, heads: int = 1
) -> dict[str, sim.LaunchRecord]:
    """The records of one call that wants the gradients of q, k and v, by the names of its kernels."""
    queue = dpctl.SyclQueue("level_zero:gpu", property="in_order")
    q, k, v, out, dout = (DeviceArray(queue, (1, heads, n, dim), dtype) for n in (rows, keys, keys, rows, rows))
    lse = DeviceArray(queue, (1, heads, rows), "fp32")
    sim.clear_launches()
    _core.backward(
        function="backward", layout=BHSD, q=q, k=k, v=v, out=out, lse=lse, dout=dout, causal=causal,
        wanted=("q", "k", "v"),
    )  # fmt: skip
    queue.wait()
    return {record.kernel.removeprefix("__sycl_kernel_"): record for record in sim.last_launches()}


def forward(dtype: str, dim: int, rows: int, keys: int, repeat: int = 1) -> sim.LaunchRecord:
    """The record of the forward's one launch, the fastest of `repeat`."""
    records = [record for _ in range(repeat) for record in launches("flash", dtype, dim, rows, keys)]
    return min(records, key=lambda record: record.simulation_seconds)
