"""Values in 4 bits: two of them lie in a byte, and 64 columns share a scale."""

from __future__ import annotations

import torch

NAME = "k8v4"
_UNIT = 64  # columns that share a scale


def check(dtype: torch.dtype, key_dim: int, value_dim: int) -> None:
    """Raises unless attention takes a model's keys and values so."""
    if dtype is torch.float32:
        raise NotImplementedError(f"XeCache: dtype must be None or of 8 bits with a model in float32, got {NAME!r}")
    if key_dim % 32 or value_dim % _UNIT:
        raise NotImplementedError(
            f"XeCache: dtype {NAME!r} needs keys of a multiple of 32 columns and values of one of {_UNIT}, "
            f"got {key_dim} and {value_dim}"
        )


def arrays_of(dim: int) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Returns the shape and the type of a row of values, and of its scales."""
    return [((dim // 2,), torch.uint8), ((dim // _UNIT,), torch.float16)]


def unpacked(rows: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Returns rows of values in fp32: bits 4 m to 4 m + 3 of word n of a unit have column 16 m + n, plus 8."""
    words = rows.contiguous().view(torch.int16).unflatten(-1, (-1, 1, 16)).int()
    shifts = torch.arange(0, 16, 4, device=rows.device)[:, None]
    numbers = ((words >> shifts) & 15) - 8
    return (numbers.flatten(-2) * scales.float()[..., None]).flatten(-2)
