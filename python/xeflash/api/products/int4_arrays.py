"""Packing of 4-bit numbers in torch tensors and numpy arrays, on the device where they lie."""

from __future__ import annotations

import sys
from typing import Any

UNIT_INPUTS, UNIT_BYTES = 128, 64


def _torch(array: Any) -> Any:
    """Returns torch if the array is one of its tensors, else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(array, getattr(torch, "Tensor", ())) else None


def is_ours(array: Any) -> bool:
    """Returns whether an object is an array with values: a dense tensor of torch, or an array of numpy."""
    if torch := _torch(array):
        return type(array) in (torch.Tensor, torch.nn.Parameter) and array.layout is torch.strided and not array.is_meta
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(array, numpy.ndarray)


def kind(array: Any) -> tuple[str, str]:
    """Returns the library and the device of an array, which all tensors of a weight must share."""
    return ("torch", str(array.device)) if _torch(array) else ("numpy", "cpu")


def dtype_name(array: Any) -> str:
    """Returns the name of an array's dtype, which numpy and torch share."""
    return str(array.dtype).rpartition(".")[2]


def cast(array: Any, name: str) -> Any:
    """Returns the array in the dtype of this name."""
    torch = _torch(array)
    return array.to(getattr(torch, name)) if torch else array.astype(name)


def contiguous(array: Any) -> Any:
    """Returns the array, or a contiguous copy; tensors are detached."""
    if _torch(array):
        return array.detach().contiguous()
    import numpy

    return numpy.ascontiguousarray(array)


def permuted(array: Any, *dims: int) -> Any:
    """Returns the array with its dimensions in this order."""
    return array.permute(*dims) if _torch(array) else array.transpose(*dims)


def stack(arrays: list[Any]) -> Any:
    """Stacks arrays along a new last dimension."""
    if torch := _torch(arrays[0]):
        return torch.stack(arrays, -1)
    import numpy

    return numpy.stack(arrays, -1)


def places(array: Any) -> Any:
    """Returns 0, 1, ... for the entries of a one-dimensional array of integers."""
    if torch := _torch(array):
        return torch.arange(len(array), device=array.device)
    import numpy

    return numpy.arange(len(array))


def stable_order(array: Any) -> Any:
    """Returns the indices that sort a one-dimensional array; equal entries keep their order."""
    return _torch(array).argsort(array, stable=True) if _torch(array) else array.argsort(kind="stable")


def as_bytes(words: Any) -> Any:
    """Returns integers (..., C) as bytes (..., bytes of C integers)."""
    torch = _torch(words)
    flat = contiguous(words).reshape(-1)  # a tensor of one column counts as contiguous with any stride
    return flat.view(torch.uint8 if torch else "uint8").reshape(*words.shape[:-1], words.shape[-1] * words.itemsize)


def nibbles(words: Any) -> Any:
    """Returns (..., C) integers as (..., nibbles of C integers) of uint8; nibbles in low bits come first."""
    found = as_bytes(words)
    return stack([found & 15, found >> 4]).reshape(*found.shape[:-1], 2 * found.shape[-1])


def packed(q: Any) -> Any:
    """Packs (N, K) of uint8 in 0..15 into the (N, ceil(K / 128) * 64) bytes that ``linear`` reads.

    Dword d of a unit has the inputs 32 m + 2 d in bits 4 m .. 4 m + 3, and those after them 16 bits above.
    """
    rows, inputs = q.shape
    units = -(-inputs // UNIT_INPUTS)
    torch = _torch(q)
    if inputs < units * UNIT_INPUTS:
        if torch:
            q = torch.nn.functional.pad(q, (0, units * UNIT_INPUTS - inputs), value=8)
        else:
            import numpy

            q = numpy.pad(q, ((0, 0), (0, units * UNIT_INPUTS - inputs)), constant_values=8)
    q = q.reshape(rows, units, 2, 2, 16, 2)  # axes of the input: m // 2, m % 2, d, odd or even
    found = q[:, :, :, 0] | (q[:, :, :, 1] << 4)
    return contiguous(permuted(found, 0, 1, 3, 4, 2)).reshape(rows, units * UNIT_BYTES)
