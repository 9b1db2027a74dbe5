"""A call of xeflash.attention on a simulated GPU, and the record of its launch: what the programs here measure."""

from __future__ import annotations

import dpctl
import dpctl.memory
import ml_dtypes
import numpy as np
import xeflash
from xeflash import sim

DTYPES = {"fp32": (np.float32, "<f4"), "fp16": (np.float16, "<f2"), "bf16": (ml_dtypes.bfloat16, "<V2")}


class DeviceArray:
    """Random numbers in the memory of a queue's device."""

    def __init__(self, queue: dpctl.SyclQueue, shape: tuple[int, ...], dtype: str) -> None:
        """Allocate and fill."""
        element, typestr = DTYPES[dtype]
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


def forward(dtype: str, dim: int, rows: int, keys: int, causal: bool = False, repeat: int = 1) -> sim.LaunchRecord:
    """The record of one launch for one head, the fastest of `repeat`."""
    queue = dpctl.SyclQueue("level_zero:gpu", property="in_order")
    arrays = [DeviceArray(queue, (1, 1, length, dim), dtype) for length in (rows, keys, keys)]
    records = []
    for _ in range(repeat):
        sim.clear_launches()
        xeflash.attention(*arrays, is_causal=causal)
        queue.wait()
        (record,) = sim.last_launches()
        records.append(record)
    return min(records, key=lambda record: record.simulation_seconds)
