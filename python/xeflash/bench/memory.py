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
    "peak memory: the most bytes that torch's allocator has given out during a training step, above what it had given "
    "before, in a pass of its own; on CPUs by torch's profiler, so without the scratch of libraries (ours has 4 bytes "
    "per query and head)"
)


def peak_of(call: Callable[[], object], device: str) -> int:
    """Return the bytes. What the call returns belongs to it."""
    if device.startswith("xpu"):
        torch.xpu.synchronize()
        settle()  # autograd's thread frees the last graph a little later
        torch.xpu.reset_peak_memory_stats()
        before = int(torch.xpu.memory_allocated())
        call()
        return int(torch.xpu.max_memory_allocated()) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler writes to stderr when it starts and stops
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiled:
        call()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate((int(event.nbytes()) for event in events), initial=0))


def rss_growth_of(call: Callable[[], object]) -> int | None:
    """Return how far the memory of this process grew during a call; None where /proc does not tell.

    It holds what no allocator counts, such as buffers of libraries, and misses what the heap had free already: that
    is given back before, as far as the C library can.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew
        before = _status("VmRSS")
    except (OSError, KeyError):
        call()
        return None
    call()
    return max(0, _status("VmHWM") - before)


def _status(name: str) -> int:
    """Bytes of a line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    kilobytes = {key: rest for key, _, rest in (line.partition(":") for line in lines)}[name]
    return 1024 * int(kilobytes.split()[0])
