"""Arrays of the tests: memory layouts of one set of values, and torch tensors seen as numpy arrays."""

from __future__ import annotations

import mmap
from typing import Any

import ml_dtypes
import numpy as np
import torch
from xeflash.selftest.arrays import TorchArrays
from xeflash.selftest.spec import Spec
from xeflash.selftest.values import Values

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "int8": torch.int8}  # of caches
LAYOUTS = ("bshd", "bhsd", "sliced", "huge")
SMALL_LAYOUTS = ("bshd", "bhsd", "sliced", "odd")
MAP_NORESERVE = 0x4000  # Linux; Python 3.13 has the name


def lay_out(values: torch.Tensor, layout: str) -> torch.Tensor:
    """The values of a (B, S, H, D) or (total, H, D) array in other memory; the last dimension stays contiguous.

    bshd: contiguous.  bhsd: heads outside rows.  sliced: cut out of a larger array of NaN, at an odd address.
    odd: sliced, and strides are odd numbers of elements, which block loads of GPUs cannot have.
    expanded: all elements are one.
    huge: sequences, or heads if there is one sequence, more than 4 GiB or 2 GiB apart.
    """
    if layout == "bshd":
        return values.contiguous()
    if layout == "expanded":
        return values.flatten()[:1].as_strided(values.shape, (0,) * values.dim())
    if layout == "bhsd":
        return values.transpose(-3, -2).contiguous().transpose(-3, -2)
    if layout in ("sliced", "odd"):
        heads, dim = values.shape[-2:]
        inner = ((0, 1), (3, 5)) if layout == "sliced" else ((0, 1 - heads % 2), (3, 6 - dim % 2))
        pads = ((0, 0),) * (values.dim() - 3) + ((1, 2), *inner)
        shape = [n + sum(pad) for n, pad in zip(values.shape, pads, strict=True)]
        around = torch.full(shape, float("nan"), dtype=values.dtype)
        inside = around[tuple(slice(lo, lo + n) for (lo, _), n in zip(pads, values.shape, strict=True))]
        return inside.copy_(values)
    assert layout == "huge", layout
    axis, gap = (0, 2**32 + 64) if values.dim() == 4 and values.shape[0] > 1 else (values.dim() - 2, 2**31 + 64)
    strides = list(values.contiguous().stride())
    strides[axis] = gap // values.element_size()
    return sparse(values.shape, strides, values.dtype).copy_(values)


def sparse(shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor with these strides over memory that exists only where it is written."""
    elements = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True) if n)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    memory = mmap.mmap(-1, elements * dtype.itemsize, flags=flags)
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)


def to_array(x: Any, kind: str) -> Any:
    """A tensor as it is, as a numpy array of the same memory, or copied to the GPU; other values pass.

    gpu: a tensor on xpu, where torch has that, else as usm: an array with __sycl_usm_array_interface__.
    """
    if kind == "torch" or not isinstance(x, torch.Tensor):
        return x
    if kind == "xpu" or (kind == "gpu" and torch.xpu.is_available()):
        return to_xpu(x)
    if is_on_gpu(kind):
        import usm  # needs dpctl

        return usm.UsmArray(x, usm.gpu_queue())
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return x.numpy()


def is_on_gpu(kind: str) -> bool:
    """Whether arrays of this kind are copies in the memory of a GPU."""
    return kind in ("gpu", "usm", "xpu")


def to_xpu(x: torch.Tensor, device: str = "xpu") -> torch.Tensor:
    """The same values with the same strides, in a copy of all that is around them."""
    around = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    return around.to(device).as_strided(x.shape, x.stride(), x.storage_offset())


def from_array(x: Any, kind: str) -> torch.Tensor:
    """The result of a call with arrays of a kind, checked to be of that kind, as a tensor."""
    if kind == "torch":
        assert isinstance(x, torch.Tensor), type(x)
        return x
    if kind in ("gpu", "xpu") and isinstance(x, torch.Tensor):
        assert x.is_xpu, x.device
        return x.cpu()
    if is_on_gpu(kind) or kind == "usm-cpu":
        import usm

        assert kind == "usm-cpu" or x.__sycl_usm_array_interface__["syclobj"] == usm.gpu_queue()
        return usm.read(x)
    assert isinstance(x, np.ndarray), type(x)
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(x)


class ArraysOf(TorchArrays):
    """Arrays of a Spec's kind; those of queries, keys and values lie as it says, and as their gradients come."""

    def __init__(self, spec: Spec) -> None:
        super().__init__("cpu")
        self.kind, self.spec, self.on_gpu = spec.kind, spec, is_on_gpu(spec.kind)

    def put(self, values: Values, name: str = "") -> Any:
        return to_array(super().put(values, name), self.kind)

    def put_rows(self, values: Values, name: str, heads_first: bool = False, together: int = 1) -> Any:
        layout = self.spec.layout_of_dout if name == "dout" else self.spec.layout
        x = lay_out(super().put(values), layout)
        x = x.unflatten(-2, (together, -1)) if together > 1 else x
        return to_array(x.transpose(-3, -2) if heads_first else x, self.kind)

    def get(self, array: Any) -> Values:
        return super().get(from_array(array, self.kind))
