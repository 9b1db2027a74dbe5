"""Arrays of a self-test: tensors of torch, or USM that anything with SYCL shares, of a queue of our own."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from xeflash.selftest.values import Values, from_storage

_TYPESTRS = {"float32": "<f4", "float16": "<f2", "bfloat16": "<V2", "int32": "<i4", "bool": "|b1"}
_TYPESTRS |= {"int8": "|i1", "uint8": "|u1", "int64": "<i8"}


class Arrays(Protocol):
    """The protocol by which cases make arrays on the device, and read them."""

    on_gpu: bool
    synchronize: Callable[[], None]

    def put(self, values: Values, name: str = "") -> Any:
        """Copies values to the device, for the argument of this name."""

    def get(self, array: Any) -> Values:
        """Reads the present values of an array."""

    def put_rows(self, values: Values, name: str, heads_first: bool = False, together: int = 1) -> Any:
        """Copies Q, K or V (..., rows, heads, dim) to the device, with heads before rows, or several in one array."""
        bits = values.bits
        if together > 1:
            bits = bits.reshape(*bits.shape[:-2], together, -1, bits.shape[-1])
        return self.put(
            Values(np.ascontiguousarray(bits.swapaxes(-3, -2)) if heads_first else bits, values.dtype), name
        )


class TorchArrays(Arrays):
    """Tensors of torch on "cpu" or "xpu"."""

    def __init__(self, device: str) -> None:
        """Imports torch for arrays on this device."""
        self._torch: Any = importlib.import_module("torch")
        self._device, self.on_gpu = device, device != "cpu"
        self.synchronize: Callable[[], None] = self._torch.xpu.synchronize if self.on_gpu else lambda: None

    def put(self, values: Values, name: str = "") -> Any:  # noqa: ARG002  all arguments lie alike
        """Copies values to the device."""
        same_size = {"bfloat16": np.int16, "float8_e4m3fn": np.int8, "float8_e5m2": np.int8}
        bits = values.bits.view(same_size.get(values.dtype, values.bits.dtype))
        return self._torch.from_numpy(bits.copy()).view(getattr(self._torch, values.dtype)).to(self._device)

    def get(self, array: Any) -> Values:
        """Reads the present values of a tensor."""
        dtype = str(array.dtype).removeprefix("torch.")
        plain = {"bfloat16": self._torch.int16, "float8_e4m3fn": self._torch.uint8, "float8_e5m2": self._torch.uint8}
        host = array.cpu().contiguous()
        return Values(host.view(plain.get(dtype, host.dtype)).numpy().view(from_storage(dtype)), dtype)


@dataclass(frozen=True)
class Queue:
    """A sycl::queue by its address, as dpctl.SyclQueue tells it."""

    address: int

    def addressof_ref(self) -> int:
        """Returns the address of the sycl::queue."""
        return self.address


class Usm:
    """Elements of memory in USM, as a library of SYCL arrays offers them; strides and offset in elements."""

    def __init__(
        self, address: int, shape: tuple[int, ...], dtype: str, queue: Any, strides: tuple[int, ...] | None = None,
        offset: int = 0, memory: Any = None, read_only: bool = False,
    ) -> None:  # fmt: skip
        """Describes memory at an address, and keeps it alive."""
        self.shape, self.dtype, self.memory = tuple(shape), dtype, memory
        self.__sycl_usm_array_interface__ = {
            "data": (address, read_only),
            "shape": self.shape,
            "strides": strides,
            "typestr": _TYPESTRS.get(dtype, "|V1"),
            "offset": offset,
            "version": 1,
            "syclobj": queue,
        }


class UsmArrays(Arrays):
    """Arrays in shared USM of the queue at an address; public functions wait for them, so synchronize does nothing."""

    def __init__(self, queue: int, on_gpu: bool) -> None:
        """Takes the address of the queue."""
        self._queue, self.on_gpu = Queue(queue), on_gpu
        self.synchronize: Callable[[], None] = lambda: None

    def put(self, values: Values, name: str = "") -> Any:  # noqa: ARG002  all arguments lie alike
        """Copies values to the device."""
        allocate = importlib.import_module("xeflash._core").allocate
        address, memory = allocate(self._queue.address, values.bits.nbytes)
        _bytes_at(address, values.bits.nbytes)[...] = np.frombuffer(values.bits.tobytes(), np.uint8)
        array: Any = Usm(address, values.bits.shape, values.dtype, self._queue, memory=memory)
        array.sycl_queue = self._queue
        return array

    def get(self, array: Any) -> Values:
        """Reads the present values of an array."""
        storage = np.dtype(from_storage(array.dtype))
        size = int(np.prod(array.shape)) * storage.itemsize
        memory = _bytes_at(array.__sycl_usm_array_interface__["data"][0], size)
        return Values(memory.copy().view(storage).reshape(array.shape), array.dtype)


def _bytes_at(address: int, size: int) -> Any:
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)
