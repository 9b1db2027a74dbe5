"""Arrays that the extension does not read by itself, and copies that it asks for; none of it is on the fast path."""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any

from xeflash import _core

# typestr of __sycl_usm_array_interface__ (and numpy) -> our names; <V2 is how bfloat16 travels without a numpy type.
_TYPES = {"f4": "float32", "f2": "float16", "V2": "bfloat16", "b1": "bool", "i4": "int32", "i1": "int8", "i8": "int64"}
_TYPES |= {"u1": "uint8"}
_SIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "bool": 1, "int32": 4, "int8": 1, "uint8": 1, "int64": 8}
_TYPESTRS = {name: ("<" if _SIZES[name] > 1 else "|") + code for code, name in _TYPES.items()}

Description = tuple[int, tuple[int, ...], "tuple[int, ...] | None", str, int, bool, bool, int]


class UsmArray:
    """A result in USM shared memory, for inputs whose library has no known constructor.

    It has ``__sycl_usm_array_interface__``, so it can be handed to any library that reads it.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str, sycl_queue: Any, queue_address: int) -> None:
        self.shape = shape
        self.dtype = dtype
        self.sycl_queue = sycl_queue
        self._address, self._memory = _core.allocate(queue_address, math.prod(shape) * _SIZES[dtype])

    @property
    def __sycl_usm_array_interface__(self) -> dict[str, Any]:
        return {
            "data": (self._address, False),
            "shape": self.shape,
            "strides": None,
            "typestr": _TYPESTRS[self.dtype],
            "offset": 0,
            "version": 1,
            "syclobj": self.sycl_queue,
        }


class Placeholder:
    """An array without memory, for calls that are only described (jit/calls.py) or checked: nobody reads its values.

    Its rows are `gap` elements further apart than they are long; or it has these strides, in elements. Messages say
    that it lies on torch's xpu:`xpu`, or in host memory.
    """

    _number = itertools.count(1)

    def __init__(
        self, shape: tuple[int, ...], dtype: str, gap: int = 0, strides: tuple[int, ...] | None = None, xpu: int = -1
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        pitches = (*shape[:-1], shape[-1] + gap) if shape else ()
        packed = tuple(math.prod(pitches[axis + 1 :]) for axis in range(len(shape)))
        self.strides = packed if strides is None else strides
        self.xpu = xpu
        self.address = next(self._number) << 40  # far from the others

    def contiguous(self) -> Placeholder:
        """Returns a contiguous placeholder, like a tensor's method."""
        return Placeholder(self.shape, self.dtype, xpu=self.xpu)

    def float(self) -> Placeholder:
        """Returns a placeholder in float32, like a tensor's method."""
        return Placeholder(self.shape, "float32", xpu=self.xpu)


class UsmPart:
    """A view ``whole[..., index, :, :]`` of an array with ``__sycl_usm_array_interface__`` but without indexing."""

    def __init__(self, whole: Any, index: int) -> None:
        interface = whole.__sycl_usm_array_interface__
        shape = tuple(interface["shape"])
        strides = interface["strides"] or tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        self.shape = shape[:-3] + shape[-2:]
        self.sycl_queue = getattr(whole, "sycl_queue", None)
        self.__sycl_usm_array_interface__ = {
            **interface,
            "shape": self.shape,
            "strides": strides[:-3] + strides[-2:],
            "offset": interface.get("offset", 0) + index * strides[-3],
        }
        self._whole = whole  # keeps the memory


def _queue_of(array: Any, interface: dict[str, Any]) -> tuple[Any, int]:
    """Returns the queue object an array belongs to, and the address of its sycl::queue."""
    for queue in (getattr(array, "sycl_queue", None), interface.get("syclobj")):
        address = getattr(queue, "addressof_ref", None)
        if address is not None:
            return queue, int(address())
    raise TypeError(
        f"xeflash: {type(array).__name__} must name its queue by a sycl_queue attribute or the interface's syclobj, "
        f"as a dpctl.SyclQueue; got {interface.get('syclobj')!r}"
    )


def xpu_queue(device: int) -> int:
    """Returns the address of the sycl::queue of torch's current stream of xpu:device, or 0 if torch names none."""
    return int(sys.modules["torch"].xpu.current_stream(device).sycl_queue)


def describe(array: Any) -> Description | None:
    """Describes an array for array.cpp, or returns None if it is no array.

    (address, shape, strides in elements or None, dtype, queue address, writable, memory is freed in stream order,
    N of xpu:N or -1)
    """
    if isinstance(array, Placeholder):
        return array.address, array.shape, array.strides, array.dtype, _core.host_queue(), True, True, array.xpu
    interface = getattr(array, "__sycl_usm_array_interface__", None)
    if interface is not None:
        code = interface["typestr"].lstrip("<|=")
        # One typestr stands for all 8-bit floats: the array says which one it is of.
        dtype = str(getattr(array, "dtype", "V1")) if code in ("V1", "f1") else _TYPES.get(code, "another type")
        address, read_only = interface["data"]
        address += interface.get("offset", 0) * _SIZES.get(dtype, 1)
        return (
            address,
            tuple(interface["shape"]),
            interface["strides"],
            dtype,
            _queue_of(array, interface)[1],
            not read_only,
            False,
            -1,
        )
    if hasattr(array, "data_ptr") and hasattr(array, "stride"):  # a torch without DLPack's exchange interface
        dtype = str(array.dtype).removeprefix("torch.")
        if array.device.type != "cpu":  # every torch for this libsycl has it
            raise TypeError(f"xeflash: tensors of this torch must be on cpu, got {array.device.type}")
        return array.data_ptr(), tuple(array.shape), tuple(array.stride()), dtype, 0, True, True, -1
    return None


def empty(like: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """Makes a new array of the kind of `like`, on its queue."""
    if isinstance(like, Placeholder):
        return Placeholder(shape, dtype)
    interface = getattr(like, "__sycl_usm_array_interface__", None)
    if interface is not None:
        if type(like).__module__.startswith("dpnp"):
            dpnp = sys.modules["dpnp"]
            return dpnp.empty(shape, dtype=dtype, usm_type=like.usm_type, sycl_queue=like.sycl_queue)
        queue, address = _queue_of(like, interface)
        return UsmArray(shape, dtype, queue, address)
    if hasattr(like, "new_empty"):
        torch = sys.modules["torch"]
        return like.new_empty(shape, dtype=getattr(torch, dtype))
    raise TypeError(f"xeflash: no way is known to make a {type(like).__name__}; give out=")


def count_writes(tensors: list[Any]) -> None:
    """Raises the version counters of torch tensors that are written; tensors of inference mode have none."""
    torch = sys.modules["torch"]
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def as_strided(array: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """Returns a view with this shape and these strides, in elements; an array that has no views is returned itself."""
    if hasattr(array, "as_strided"):
        return array.as_strided(shape, strides)
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(array, numpy.ndarray):
        return array
    in_bytes = tuple(stride * array.itemsize for stride in strides)
    return numpy.lib.stride_tricks.as_strided(array, shape, in_bytes)


def contiguous(array: Any, function: str, name: str) -> Any:
    """Copies an array so that its last dimension is contiguous."""
    if hasattr(array, "contiguous"):
        return array.contiguous()
    if hasattr(array, "__sycl_usm_array_interface__"):
        raise ValueError(
            f"{function}: {name} must have a contiguous last dimension, got strides "
            f"{array.__sycl_usm_array_interface__['strides']}"
        )
    return sys.modules["numpy"].ascontiguousarray(array)


def packed(array: Any, function: str, name: str) -> Any:
    """Copies an array so that there are no gaps between its rows."""
    if hasattr(array, "contiguous") or not hasattr(array, "__sycl_usm_array_interface__"):
        return contiguous(array, function, name)
    raise ValueError(
        f"{function}: {name} must have rows that lie one stride apart, got strides "
        f"{array.__sycl_usm_array_interface__['strides']}"
    )


def to_float32(array: Any, function: str, name: str) -> Any:
    """Copies an array to fp32."""
    if hasattr(array, "float"):
        return array.float()
    if hasattr(array, "astype"):
        return array.astype("float32")
    raise TypeError(f"{function}: {name} must be float32")


def transposed(array: Any, function: str, name: str) -> Any:
    """Copies an array with its last two dimensions exchanged."""
    if hasattr(array, "contiguous"):
        return array.mT.contiguous()
    if hasattr(array, "__sycl_usm_array_interface__"):
        raise ValueError(
            f"{function}: {name} must have contiguous columns with b_layout = 'kn', got strides "
            f"{array.__sycl_usm_array_interface__['strides']}"
        )
    return sys.modules["numpy"].ascontiguousarray(array.swapaxes(-1, -2))


def padded(array: Any, function: str, name: str, columns: int) -> Any:
    """Copies an array, with zeros behind its last dimension up to `columns`."""
    if hasattr(array, "new_zeros"):
        copy = array.new_zeros((*array.shape[:-1], columns))
        copy[..., : array.shape[-1]] = array
        return copy
    raise ValueError(
        f"{function}: {name} must be a torch tensor, or have 16 inputs or a multiple of 32, and rows below 2^27 bytes "
        f"apart, on a GPU, got the shape {list(array.shape)}"
    )
