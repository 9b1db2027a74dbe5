"""Interleaved timing of several ways to compute the same thing.

Two thread pools share the CPU here: torch's OpenMP workers and TBB's (the SYCL CPU device). By
default OpenMP's workers spin for about 10 ms after a call, which slows down whatever comes next,
and on a machine with other load they spin for a worker that has lost its CPU: torch's 0.4 ms
calls were measured as 8 ms, two time slices. So the benchmark sets OMP_WAIT_POLICY=passive, which
is fair to both, and each sample first waits until every other thread of the process sleeps. Then
comes one untimed call (its own pool is awake, as in a model that uses one library), then the timed
ones.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

Call = Callable[[], object]
Gate = Callable[[Iterator[str]], Iterator[str]]
_Name = TypeVar("_Name")

_MIN_SAMPLE_SECONDS = 2e-3  # a sample repeats short calls until it is at least this long
_MAX_REPEATS = 64
_LONG_CALL_SECONDS = 20e-3  # above it waking the workers does not count: no untimed call
_MAX_SETTLE_SECONDS = 0.1


def _others_running() -> bool | None:
    """Returns whether another thread of this process runs; None where /proc does not tell."""
    me = str(threading.get_native_id())
    try:
        for task in os.scandir("/proc/self/task"):
            if task.name == me:
                continue
            try:
                stat = Path(task.path, "stat").read_text()
            except OSError:  # the thread ended meanwhile
                continue
            if stat.rpartition(")")[2].split()[0] == "R":
                return True
    except OSError:
        return None
    return False


def settle() -> None:
    """Sleeps until no worker thread spins any more, at least 1 ms and at most 100 ms."""
    deadline = time.perf_counter() + _MAX_SETTLE_SECONDS
    while time.perf_counter() < deadline:
        time.sleep(1e-3)
        running = _others_running()
        if running is None:
            time.sleep(12e-3)
            return
        if not running:
            return


def _seconds(call: Call, repeats: int, synchronize: Callable[[], None]) -> float:
    """Returns the mean wall time of `repeats` calls back to back."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    synchronize()
    return (time.perf_counter() - start) / repeats


def first_call(call: Call, synchronize: Callable[[], None]) -> float:
    """Returns the seconds of one call: for a new kernel this holds its compilation."""
    return _seconds(call, 1, synchronize)


def in_turns(names: Sequence[_Name], rounds: int) -> Iterator[_Name]:
    """Yields all names in each round; the order rotates, so that none always follows the same other one."""
    for turn in range(rounds):
        yield from rotated(names, turn)


def rotated(names: Sequence[_Name], turn: int) -> list[_Name]:
    """Returns the order of the names in a round."""
    shift = turn % max(1, len(names))
    return [*names[shift:], *names[:shift]]


def interleave(
    calls: Mapping[str, Call],
    rounds: int,
    synchronize: Callable[[], None] = lambda: None,
    gate: Gate = iter,
) -> dict[str, list[float]]:
    """Returns `rounds` samples (seconds per call) of each call, taken in turns.

    Each call must have run at least once before: what it compiles or allocates first is not measured. `gate` may hold
    each sample back, until another process has taken its own.
    """
    estimate = {}
    for name, call in calls.items():
        settle()
        estimate[name] = min(_seconds(call, 1, synchronize) for _ in range(2))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for name in gate(in_turns(list(calls), rounds)):
        repeats = math.ceil(_MIN_SAMPLE_SECONDS / max(estimate[name], 1e-9))
        settle()
        if estimate[name] < _LONG_CALL_SECONDS:
            _seconds(calls[name], 1, synchronize)
        samples[name].append(_seconds(calls[name], min(max(repeats, 1), _MAX_REPEATS), synchronize))
    return samples
