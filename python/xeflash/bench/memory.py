"""The most memory that a call takes from torch's allocator."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

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
