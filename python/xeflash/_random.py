"""Seeds of dropout: a counter-based generator needs no state but how many calls have drawn from it."""

from __future__ import annotations

import secrets
import sys
import threading
from typing import Any

_lock = threading.Lock()
_seed: int | None = None  # None: manual_seed was not called
_unseeded = secrets.randbits(64)
_calls = 0


def manual_seed(seed: int) -> None:
    """Makes the dropout of the calls that follow reproducible; `seed` is any integer, taken modulo 2**64.

    Until it is called, torch tensors take their seed from torch's generator, so ``torch.manual_seed`` reproduces them.

    >>> import xeflash
    >>> xeflash.manual_seed(0)
    """
    global _seed, _calls
    with _lock:
        _seed, _calls = seed % 2**64, 0


def next_rng(array: Any) -> tuple[int, int]:
    """(seed, offset) for one call on `array`."""
    global _calls
    with _lock:
        _calls += 1
        if _seed is not None:
            return _seed, _calls - 1
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return int(torch.empty((), dtype=torch.int64).random_()), 0
    return _unseeded, _calls - 1
