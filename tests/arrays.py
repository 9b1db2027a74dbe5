"""Arrays of the tests: torch tensors seen as numpy arrays, and on GPUs; how they lie in memory is said in memory.py."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
from memory import lay_out
from xeflash.selftest.arrays import TorchArrays
from xeflash.selftest.attention.spec import Spec
from xeflash.selftest.values import Values

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "int8": torch.int8}  # of caches


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
        x = lay_out(super().put(values), layout, at_end=not self.on_gpu)
        x = x.unflatten(-2, (together, -1)) if together > 1 else x
        return to_array(x.transpose(-3, -2) if heads_first else x, self.kind)

    def get(self, array: Any) -> Values:
        return super().get(from_array(array, self.kind))
