"""The peaks of a machine, and which of them holds a call: arithmetic, or reading from where its bytes lie."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from xeflash.bench.numbers import number

_Name = TypeVar("_Name")
Instruction = tuple[str, str]  # that multiplies, by the architecture and the type that it is of
ARITHMETIC, MEMORY, UNMEASURED = "arithmetic", "memory", "a cache, not measured"


def instruction(arch: str, dtype: str) -> Instruction:
    """Returns what a kernel of this architecture multiplies by: most CPUs have none but for fp32."""
    return arch, "fp32" if arch.startswith("cpu-") and not arch.endswith("-bf16") else dtype


class Limit(NamedTuple):
    """The peak that a call is held to, in GFLOP/s or GB/s, and % of it; names as those of a row."""

    bound_by: str
    peak: float | None  # None: of a cache that was not measured
    percent_of_peak: float | None


def words(bound_by: str | None, peak: float | None) -> str:
    """Returns a limit for a table."""
    unit = "GFLOP/s" if bound_by == ARITHMETIC else "GB/s"
    return (bound_by or "-") if peak is None else f"{bound_by}, {number(peak)} {unit}"


@dataclass(frozen=True)
class Peaks:
    """Measured peaks; what is absent was not measured."""

    gflops: Mapping[Instruction, float] = field(default_factory=dict)
    gbytes: Mapping[str, float] = field(default_factory=dict)  # by place, memory first and then smaller and smaller
    gbytes_of_core: Mapping[str, float] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)  # bytes of the caches

    def better(self, other: Peaks) -> Peaks:
        """Returns the larger of both for each number."""

        def larger(ours: Mapping[_Name, float], theirs: Mapping[_Name, float]) -> dict[_Name, float]:
            return {name: max(ours.get(name, 0.0), theirs.get(name, 0.0)) for name in {**ours, **theirs}}

        return Peaks(
            larger(self.gflops, other.gflops),
            larger(self.gbytes, other.gbytes),
            larger(self.gbytes_of_core, other.gbytes_of_core),
            {**self.capacity, **other.capacity},
        )

    def _place(self, bytes_read: float, seconds: float, touched: float) -> str | None:
        """Returns where bytes lie that are read so fast, of places that may hold all that is touched."""
        in_cache = touched < max(self.capacity.values(), default=0)
        candidates = list(self.gbytes)[1 if in_cache else 0 :]
        fast_enough = [place for place in candidates if bytes_read <= 1e9 * self.gbytes[place] * seconds]
        return next(iter(fast_enough or candidates[-1:]), None)

    def limit(
        self, by: Instruction, flops: float, bytes_read: float, seconds: float, touched: float | None = None
    ) -> Limit | None:
        """Returns what holds a call, which reads some of the bytes that all calls in turn touch; None: no peaks."""
        rates = {ARITHMETIC: (flops, self.gflops.get(by))}
        if place := self._place(bytes_read, seconds, touched or bytes_read):
            rates[place] = bytes_read, self.gbytes[place]
        least = {name: 1e-9 * work / peak for name, (work, peak) in rates.items() if peak}
        if not least:
            return None
        bound_by = max(least, key=lambda name: least[name])
        if bound_by == MEMORY and least[MEMORY] > seconds:
            return Limit(UNMEASURED, None, None)
        return Limit(bound_by, rates[bound_by][1], 100 * least[bound_by] / seconds)

    def named(self) -> dict[str, float]:
        """Returns the numbers for the head of a result."""
        return {
            **{f"{arch} {dtype} GFLOP/s": round(rate, 1) for (arch, dtype), rate in self.gflops.items()},
            **{f"{place} GB/s": round(rate, 1) for place, rate in self.gbytes.items()},
            **{f"{place} GB/s of one thread": round(rate, 1) for place, rate in self.gbytes_of_core.items()},
        }


class Beside:
    """Peaks that were measured beside each call of a run."""

    def __init__(self, peaks: Sequence[Peaks]) -> None:
        """Finds the best of the run, too."""
        self._peaks, self._best = peaks, functools.reduce(Peaks.better, peaks, Peaks())

    def limit(
        self, call: int, by: Instruction, flops: float, bytes_read: float, seconds: float, touched: float | None = None
    ) -> Limit | None:
        """Returns what holds a call, as `Peaks.limit`; the machine's best where it was faster than beside the call."""
        found = self._peaks[call].limit(by, flops, bytes_read, seconds, touched)
        if found and found.percent_of_peak and found.percent_of_peak > 100:
            return self._best.limit(by, flops, bytes_read, seconds, touched)
        return found
