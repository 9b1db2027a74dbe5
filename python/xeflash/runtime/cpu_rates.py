"""Rates at which this CPU multiplies and adds, by instruction; they decide which kernels it is given.

vdpbf16ps makes twice the multiply-adds of fp32's instruction on AMD's cores and half of them on some of Intel's, so it
is measured, once for a CPU: a kernel must not change from one process to the next, and its bits with it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

from xeflash.runtime.cache_folder import cache_folder, open_folder

Rates = dict[str, float]

_FILE, _MOST_BYTES = "cpu-rates.json", 1 << 16
NAMES = ("fp32", "pairs", "tiles")


def kept(cpu: str, measure: Callable[[], Rates]) -> Rates:
    """Returns multiply-adds of a core per second, by instruction, as measured on such a CPU before, or else now."""
    known = _read()
    with contextlib.suppress(KeyError, TypeError, ValueError):
        return {name: float(known[cpu][name]) for name in NAMES}
    rates = measure()
    with contextlib.suppress(OSError), open_folder(cache_folder(), make=True) as folder:
        folder.write(_FILE, json.dumps(known | {cpu: rates}).encode())
    return rates


def _read() -> dict[str, Rates]:
    with contextlib.suppress(OSError, ValueError), open_folder(cache_folder()) as folder:
        read = json.loads(folder.read(_FILE, _MOST_BYTES))
        return read if isinstance(read, dict) else {}
    return {}
