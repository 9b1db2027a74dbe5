"""Arrays that notice what is read and written beside them.

On the host they lie in a mapping of their own, against its first or its last byte, beyond which pages may not be
touched; on a GPU in an allocation that ends with them, whose bounds the simulator checks. What is between their
elements and around them is NaN in every floating type, and compared after the call.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import mmap
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
import torch
from xeflash.selftest.arrays import Usm

NUMPY = {
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
}
MAP_NORESERVE = 0x4000  # Linux; Python 3.13 has the name
AROUND = 0xFF  # of all bytes that belong to no element: NaN in fp32, fp16, bf16 and both 8-bit floats, -1 as int32

_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


def guarded(size: int) -> np.ndarray:
    """Whole pages with room for so many bytes, between two that may not be touched."""
    page = mmap.PAGESIZE
    length = max(1, -(-size // page)) * page
    memory = np.frombuffer(mmap.mmap(-1, length + 2 * page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    address = memory.__array_interface__["data"][0]
    for guard in (address, address + page + length):
        if _mprotect(guard, page, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    return memory[page : page + length]


def numpy_dtype(dtype: torch.dtype) -> np.dtype:
    return np.dtype(NUMPY.get(dtype) or str(dtype).removeprefix("torch."))


def elements(memory: np.ndarray, shape: Any, dtype: Any, strides: Any, offset: int) -> np.ndarray:
    """An array in this memory; strides and offset in bytes."""
    return np.ndarray(shape, dtype, memory.data, offset, strides)


# ---- layouts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """How the elements of an array lie in memory; drawn once, for any shape."""

    order: int = 0  # of the leading axes, counted through their permutations
    gaps: tuple[int, ...] = ()  # elements left out behind an axis, from the last one on
    flipped: int = 0  # a bit an axis: from its end to its beginning
    expanded: int = 0  # a bit an axis: every index is the same element
    step: int = 1  # of the last axis; 0: every index of it is the same element
    lonely: int | None = None  # the stride of axes with one element, in elements
    at_end: bool = True  # of the mapping
    shift: int = 0  # elements away from there
    misaligned: int = 0  # bytes

    def __bool__(self) -> bool:
        return self != Layout()


def draw_layout(random: Random, kind: str, contiguous_last: bool = False, distinct: bool = False) -> Layout:
    """`contiguous_last`: the last axis is; `distinct`: no two indices are one element."""
    at_end = random.random() < 0.6
    style = random.choices(
        ("packed", "order", "gaps", "odd", "flipped", "expanded", "step", "lonely", "bytes"),
        (30, 14, 20, 10, 6, 6, 4, 6, 1),
    )[0]
    layout: dict[str, Any] = {"at_end": at_end, "shift": random.choice((0, 0, 0, 1, 3, 8, 64))}
    if style in ("order", "gaps", "odd"):
        layout["order"] = random.randrange(24)
    if style == "gaps":
        layout["gaps"] = tuple(random.choice((0, 0, 1, 5, 8, 64)) for _ in range(5))
    if style == "odd":
        layout["gaps"] = (random.choice((1, 3)), *(random.choice((0, 1, 7)) for _ in range(4)))
    if style == "flipped" and kind == "numpy":  # torch has none
        layout["flipped"] = random.randrange(1, 8)
    if style == "expanded" and not distinct:
        layout["expanded"] = random.randrange(1, 8)
    if style == "step" and kind in ("numpy", "torch", "xpu") and not contiguous_last:
        layout["step"] = random.choice((2, 3) if distinct else (0, 2, 3))
    if style == "lonely":
        layout["lonely"] = random.choice((0, 1, 3, 2**40))
    if style == "bytes" and kind == "numpy" and not contiguous_last:
        layout["misaligned"] = 1
    return Layout(**layout)


def strides_of(layout: Layout, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int, int]:
    """(strides, index of the first element, elements from the first in memory to the last), all in elements."""
    rank = len(shape)
    orders = list(itertools.permutations(range(rank - 1)))
    order = orders[layout.order % len(orders)] if orders else ()
    strides, extent, first, gaps = [0] * rank, 1, 0, iter((*layout.gaps, *(0,) * rank))
    for axis in (rank - 1, *reversed(order)) if rank else ():
        n = shape[axis]
        if layout.expanded >> axis & 1 and axis != rank - 1:
            continue
        stride = extent * (layout.step if axis == rank - 1 else 1)
        extent = max(stride * max(n, 1), extent) + next(gaps)
        if n == 1 and layout.lonely is not None and axis != rank - 1:
            strides[axis] = layout.lonely
            continue
        if layout.flipped >> axis & 1 and axis != rank - 1 and n > 1:
            stride = -stride
            first += -stride * (n - 1)
        strides[axis] = stride
    span = 1 + sum(abs(s) * (n - 1) for s, n in zip(strides, shape, strict=True) if n > 1)
    return tuple(strides), first, 0 if 0 in shape else span


# Of (B, S, H, D) or (tokens, H, D); lay_out says what they are.
LAYOUTS = ("bshd", "bhsd", "sliced", "huge")
SMALL_LAYOUTS = ("bshd", "bhsd", "sliced", "odd")


def lay_out(values: torch.Tensor, layout: str, at_end: bool = True) -> torch.Tensor:
    """The values of an array in other memory.

    bshd, packed: contiguous.  bhsd: heads outside rows.  turned: columns of a matrix outside rows.
    sliced: gaps behind rows and heads, at an odd address.  odd: the same, and strides are odd numbers of elements, which
    block loads of GPUs cannot have.  expanded: all elements are one.
    huge: sequences, or heads if there is one sequence, more than 4 GiB or 2 GiB apart.
    """
    if layout == "turned":
        return lay_out(values.mT, "packed", at_end).mT
    if layout == "huge":
        axis, gap = (0, 2**32 + 64) if values.dim() == 4 and len(values) > 1 else (values.dim() - 2, 2**31 + 64)
        strides = list(values.contiguous().stride())
        strides[axis] = gap // values.element_size()
        return sparse(values.shape, strides, values.dtype).copy_(values)
    heads, dim = values.shape[-2:]
    odd = dim + 9 - dim % 2
    how = {
        "bhsd": Layout(order=1), "sliced": Layout(gaps=(8, dim + 8), shift=3), "expanded": Layout(expanded=7, step=0),
        "odd": Layout(gaps=(odd - dim, (1 - heads % 2) * odd), shift=3),
    }.get(layout, Layout())  # fmt: skip
    found: torch.Tensor = place(values.contiguous(), "torch", replace(how, at_end=at_end)).given
    return found


def sparse(shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor with these strides over memory that exists only where it is written."""
    elements = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True) if n)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    memory = mmap.mmap(-1, elements * dtype.itemsize, flags=flags)
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)


# ---- arrays -------------------------------------------------------------------------------------


@functools.cache
def queue_of(kind: str) -> Any:
    """The SYCL queue of USM arrays: the GPU's, or the CPU's."""
    import dpctl
    import usm

    if kind == "usm":
        return usm.gpu_queue()
    return dpctl.SyclQueue(next(d for d in dpctl.get_devices() if d.is_cpu), property="in_order")


@dataclass(eq=False)
class Array:
    """Elements in memory of a kind: numpy, torch, usm-cpu; on a GPU usm, xpu."""

    kind: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    memory: np.ndarray  # on a GPU: what was copied there
    strides: tuple[int, ...]  # bytes
    offset: int
    writable: bool = True
    keep: Any = None  # what holds the memory on a device
    guise: str = ""  # negated: a lazy view of torch's, parameter, subclass: of numpy's array
    given: Any = field(default=None, repr=False)  # what is passed

    def __post_init__(self) -> None:
        self.given = self._wrapped()

    def _wrapped(self) -> Any:
        if self.kind == "numpy":
            array = elements(self.memory, self.shape, numpy_dtype(self.dtype), self.strides, self.offset)
            array.flags.writeable = self.writable
            return array.view(NumpySubclass) if self.guise == "subclass" else array
        if self.kind in ("torch", "xpu"):
            memory = self.keep if self.kind == "xpu" else torch.frombuffer(self.memory.data, dtype=torch.uint8)
            strides, size = [s // self.dtype.itemsize for s in self.strides], self.dtype.itemsize
            whole = memory[: memory.numel() // size * size]
            tensor = whole.view(self.dtype).as_strided(self.shape, strides, self.offset // size)
            if self.guise == "parameter":
                return torch.nn.Parameter(tensor, requires_grad=False)
            return torch._neg_view(tensor) if self.guise == "negated" else tensor
        (memory, queue), size = self.keep, self.dtype.itemsize
        strides, name = tuple(s // size for s in self.strides), str(self.dtype).removeprefix("torch.")
        place = self.offset // size
        array: Any = Usm(memory._pointer, self.shape, name, queue, strides, place, memory, not self.writable)
        array.sycl_queue = queue
        return array

    def values(self) -> torch.Tensor:
        """What the elements are now, packed, on the host."""
        array = elements(self.now(), self.shape, np.dtype(f"V{self.dtype.itemsize}"), self.strides, self.offset)
        packed = np.ascontiguousarray(array).reshape(-1)
        if not packed.size:
            return torch.empty(self.shape, dtype=self.dtype)
        values = torch.frombuffer(packed.data, dtype=self.dtype).reshape(self.shape)
        return -values if self.guise == "negated" else values

    def turned(self) -> Array:
        """Its transpose, in the same memory."""
        shape, strides = ((*x[:-2], x[-1], x[-2]) for x in (self.shape, self.strides))
        return replace(self, shape=shape, strides=strides)

    def now(self) -> np.ndarray:
        """The bytes of all the memory."""
        if self.kind == "xpu":
            return self.keep.cpu().numpy()
        if self.keep is None:
            return self.memory
        memory, queue = self.keep
        queue.wait()
        host = np.empty(memory.nbytes, np.uint8)
        memory.copy_to_host(host)
        return host

    def bytes_of(self, index: Any = ...) -> np.ndarray:
        """Which bytes of the memory are those of the elements at an index."""
        mask = np.zeros(self.memory.size, np.bool_)
        size = self.dtype.itemsize
        elements(mask, (*self.shape, size), np.bool_, (*self.strides, 1), self.offset)[index] = True
        return mask

    def __repr__(self) -> str:
        size = self.dtype.itemsize
        strides = [s / size if s % size else s // size for s in self.strides]
        return f"{self.guise}{' ' * bool(self.guise)}{self.kind} {str(self.dtype)[6:]} {list(self.shape)} strides {strides} at {self.offset}"


class NumpySubclass(np.ndarray):
    """As np.memmap is one."""


def place(values: torch.Tensor, kind: str, layout: Layout = Layout(), writable: bool = True, guise: str = "") -> Array:
    """An array with these values; those of expanded axes are the first ones."""
    if guise == "negated":
        values = -values
    shape, dtype, size = tuple(values.shape), values.dtype, values.dtype.itemsize
    strides, first, span = strides_of(layout, shape)
    on_host = kind in ("numpy", "torch")
    bytes_needed = (span + layout.shift) * size + layout.misaligned
    memory = guarded(bytes_needed) if on_host else np.empty(max(size, bytes_needed), np.uint8)
    memory.fill(AROUND)
    lowest = layout.shift * size + layout.misaligned
    if layout.at_end and on_host:
        lowest = (memory.size - span * size) // size * size - lowest
    offset, byte_strides = lowest + first * size, tuple(s * size for s in strides)
    if math.prod(shape):
        target = elements(memory, shape, np.dtype(f"V{size}"), byte_strides, offset)
        source = values.reshape(-1).view(torch.uint8).numpy().view(f"V{size}").reshape(shape)
        last = len(shape) - 1
        one = [layout.expanded >> axis & 1 if axis < last else layout.step == 0 for axis in range(len(shape))]
        index = tuple(slice(1) if same else slice(None) for same in one)
        target[index] = source[index]
    else:
        offset = min(offset, memory.size)
    return Array(kind, shape, dtype, memory, byte_strides, offset, writable, _device_copy(memory, kind), guise)


def _device_copy(memory: np.ndarray, kind: str) -> Any:
    if kind == "xpu":
        return torch.from_numpy(memory).to("xpu")
    if kind.startswith("usm"):
        import dpctl.memory

        copy = dpctl.memory.MemoryUSMDevice(memory.size, queue=queue_of(kind))
        copy.copy_from_host(memory)
        return copy, queue_of(kind)
    return None
