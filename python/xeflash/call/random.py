"""Seeds of dropout: a counter-based generator needs no state except the number of calls that have drawn from it."""

from __future__ import annotations

import secrets
import sys
import threading
from operator import index
from typing import Any

_lock = threading.Lock()
_seed: int | None = None  # None: manual_seed was not called
_unseeded = secrets.randbits(64)
_calls = 0


def manual_seed(seed: int) -> None:
    """Makes the dropout of the calls that follow reproducible; `seed` is any integer, taken modulo 2**64.

    Until it is called, torch tensors take their seed from the generator of their device, so that ``torch.manual_seed``,
    ``torch.xpu.manual_seed``, ``torch.xpu.set_rng_state`` and activation checkpointing, which computes a forward pass
    twice, reproduce them. Checkpointing does not know the numbers of this function, and is refused with them.

    >>> import xeflash
    >>> xeflash.manual_seed(0)
    """
    global _seed, _calls
    try:
        number = index(seed) % 2**64
    except TypeError as error:
        raise TypeError(f"manual_seed: seed must be an integer, got {seed!r}") from error
    with _lock:
        _seed, _calls = number, 0


def next_rng(function: str, array: Any) -> tuple[int, int]:
    """Draws (seed, offset) for one call on `array`."""
    global _calls
    torch: Any = sys.modules.get("torch")
    is_tensor: bool = isinstance(array, getattr(torch, "Tensor", ()))  # another thread may be importing torch
    with _lock:
        if _seed is not None:
            if is_tensor and torch._C._current_graph_task_id() != -1:  # in a backward pass
                raise NotImplementedError(
                    f"{function}: dropout_p must be 0 in a forward pass that is computed again for its gradients "
                    "(activation checkpointing) after xeflash.manual_seed, as that would draw other numbers; "
                    "torch.manual_seed makes dropout reproducible there"
                )
            _calls += 1
            return _seed, _calls - 1
        _calls += 1
        if not is_tensor:
            return _unseeded, _calls - 1
    if array.is_xpu:
        return draw(function, torch.xpu.default_generators[array.get_device()])
    return _next_number(), 0


def draw(function: str, generator: Any) -> tuple[int, int]:
    """Draws (seed, offset) for one call from a generator of torch's and advances it; nothing waits for a device."""
    torch = sys.modules["torch"]
    if generator.device.type != "xpu":
        return _next_number(generator), 0
    with torch.xpu.device(generator.device):
        capturing = torch.xpu.is_current_stream_capturing()
    if capturing:
        raise NotImplementedError(
            f"{function}: dropout_p must be 0 while an XPUGraph is captured, as each replay would draw the same "
            "numbers; xeflash.attention takes rng=(seed, offset) if that is wanted"
        )
    with _lock:
        offset = generator.get_offset()
        generator.set_offset(offset + 4)  # torch counts in fours
    return generator.initial_seed(), offset


def _next_number(generator: Any = None) -> int:
    """Draws a number from a CPU generator of torch's, by default from torch's own, whatever the default device is."""
    torch = sys.modules["torch"]
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator))
