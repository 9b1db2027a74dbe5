"""What the public functions share: autograd and autocast, windows, seeds."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from xeflash import _random

BSHD, THD, BHSD = 0, 1, 2  # Layout in forward.hpp


def refuse_gradients(function: str, arrays: tuple[Any, ...]) -> None:
    """They are not computed yet."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_grad_enabled():
        return
    for array in arrays:
        if getattr(array, "requires_grad", False):
            raise NotImplementedError(
                f"{function}: the backward pass is not there yet, but an input requires grad; "
                "call it under torch.no_grad() or detach the input"
            )


def prepare(function: str, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Refuses gradients, and applies torch's autocast."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(arrays[0], torch.Tensor):
        return arrays
    refuse_gradients(function, arrays)
    device = arrays[0].device.type
    if device in ("cpu", "xpu") and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        return tuple(a.to(dtype) if a.is_floating_point() and a.dtype is not torch.float64 else a for a in arrays)
    return arrays


def window(function: str, size: Sequence[Any]) -> tuple[int, int]:
    """window_size as two integers; a torch tensor of two is accepted as flash-attn's tests pass one."""
    if len(size) != 2:
        raise ValueError(f"{function}: window_size must have 2 entries, got {len(size)}")
    return int(size[0]), int(size[1])


def seeds(dropout_p: float, array: Any, rng: tuple[int, int] | None = None) -> tuple[int, int]:
    """(seed, offset) of a call on `array`: what is given, else the next of the generator."""
    if not dropout_p:
        return 0, 0
    if rng is not None and len(rng) != 2:
        raise ValueError(f"attention: rng must be (seed, offset), got {rng}")
    seed, offset = rng if rng is not None else _random.next_rng(array)
    return seed % 2**64, offset % 2**64


def refuse_numbers(function: str, error: TypeError, **numbers: Any) -> None:
    """Says which argument was not a number, if that is what the extension could not take."""
    for name, value in numbers.items():
        if value is not None and not isinstance(value, int | float):
            raise TypeError(f"{function}: {name} must be a number, got {type(value).__name__}") from error
