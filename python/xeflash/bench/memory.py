"""The most memory that a call takes from torch's allocator."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import torch

from xeflash.bench.timing import settle

METHOD = (
    "peak memory: the most bytes that torch's allocator has given out during a call, above what it had given before, "
    "in a pass of its own; on CPUs by torch's profiler, so without the scratch of libraries"
)


def peak_of(call: Callable[[], object], device: str) -> int:
    """Returns the most bytes that torch's allocator gives out during a call; what the call returns belongs to it."""
    if device.startswith("xpu"):
        torch.xpu.synchronize()
        settle()  # autograd's thread frees the last graph a little later
        peak = PeakMemory(device)
        call()
        return peak.bytes() or 0
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler writes to stderr when it starts and stops
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiled:
        call()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate((int(event.nbytes()) for event in events), initial=0))


class PeakMemory:
    """The most memory in use since it was made, in bytes above what was in use then."""

    def __init__(self, device: str) -> None:
        """Starts from the memory that is in use now."""
        self._device = device
        if device.startswith("xpu"):
            torch.xpu.reset_peak_memory_stats()
            self._before = int(torch.xpu.memory_allocated())
            return
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew
            self._before = _status("VmRSS")
        except (OSError, KeyError):
            self._before = -1

    def bytes(self) -> int | None:
        """Returns it; None where the system does not tell."""
        if self._device.startswith("xpu"):
            return int(torch.xpu.max_memory_allocated()) - self._before
        return max(0, _status("VmHWM") - self._before) if self._before >= 0 else None


def rss_growth_of(call: Callable[[], object]) -> int | None:
    """Returns how far the memory of this process grew during a call; None where /proc does not tell.

    It holds what no allocator counts, such as buffers of libraries, and misses what the heap had free already: that
    is given back before, as far as the C library can.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    peak = PeakMemory("cpu")
    call()
    return peak.bytes()


def _status(name: str) -> int:
    """Returns the bytes that a line of /proc/self/status tells."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * int(dict(line.split(":", 1) for line in lines if ":" in line)[name].split()[0])
