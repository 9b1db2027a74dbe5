"""Rates at which threads read from memory and from the CPU's caches, by kernels/peak.hpp."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import NamedTuple

from xeflash import _core
from xeflash.bench.environ import cpus, data_caches, usable_cpus
from xeflash.bench.limits import MEMORY
from xeflash.jit import peak_kernel

_STEP = 256  # bytes of a step of read_often in kernels/cpu/vec.hpp
_BYTES_READ = 128 << 20  # by a thread, at least: takes milliseconds


class Place(NamedTuple):
    """A place of bytes: how many all threads have there, and how many a thread reads to measure it."""

    name: str
    capacity: int
    part: int


def places(caches: Mapping[int, tuple[int, int]], threads: int, memory_bytes: int) -> list[Place]:
    """Returns memory and the caches, the largest first.

    What measures a cache fits in it with room to spare, and is several times the next smaller one.
    """
    found, inner = [], 0
    for level, (size, count) in sorted(caches.items()):
        share = min(size, size * count // threads)
        part = min(4 * inner, inner + share // 2) if inner else share // 2
        found.append(Place(f"L{level}", share * threads, part // _STEP * _STEP))
        inner = share
    return [Place(MEMORY, sys.maxsize, memory_bytes // threads // _STEP * _STEP), *reversed(found)]


class Reader:
    """Reads a buffer of so many bytes by as many threads as kernels have on the CPU, or by one."""

    def __init__(self, arch: str, address: int, size: int) -> None:
        """Finds the caches."""
        self.threads = int(os.environ.get("DPCPP_CPU_NUM_CUS") or usable_cpus())
        self.places = places(data_caches(cpus()), self.threads, size)
        self._native, _ = peak_kernel(arch, "fp32")
        self._address = address

    def gbytes_per_s(self, place: Place, threads: int) -> float:
        """Returns the best of some samples."""
        times = max(1, _BYTES_READ // place.part)
        what = (self._native, "read_peak", times, threads, self._address, place.part)
        seconds = min(_core.time_peak(*what) for _ in range(3))
        return 1e-9 * place.part * times * threads / seconds
