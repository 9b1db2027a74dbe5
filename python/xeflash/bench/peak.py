"""What the machine can do, measured in the same run: arithmetic per dtype and read bandwidth."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from xeflash import _core
from xeflash.bench.forms import TORCH_DTYPES, synchronizer
from xeflash.jit import peak_kernel

_Case = TypeVar("_Case")
_GEMM_SIZES = (1024, 2048)
_READ_BYTES = 512 << 20  # several times the last-level cache of most machines
METHOD = (
    "peak GFLOP/s = the fastest of torch matmul of 1024^3 and 2048^3 and, on the CPU, of multiply-adds in registers "
    "(kernels/peak.hpp), in that dtype or in fp32; "
    f"peak GB/s = best torch.sum over {_READ_BYTES >> 20} MiB of fp32; both taken before every case and at the end, "
    "the best counts (prefetch, or K and V in the cache, can pass the GB/s)"
)


@dataclass(frozen=True)
class Peaks:
    """Measured peaks; zero or an absent dtype means not measured."""

    gflops: Mapping[str, float] = field(default_factory=dict)
    read_gbytes: float = 0.0

    def better(self, other: Peaks) -> Peaks:
        """Return the larger of both for each number."""
        names = {**self.gflops, **other.gflops}
        rates = {n: max(self.gflops.get(n, 0.0), other.gflops.get(n, 0.0)) for n in names}
        return Peaks(rates, max(self.read_gbytes, other.read_gbytes))

    def percent(self, phase: str, dtype: str, gflops: float, gbytes: float) -> float | None:
        """Return % of the peak that bounds the phase: arithmetic or reading."""
        done, peak = (gbytes, self.read_gbytes) if phase == "decode" else (gflops, self.gflops.get(dtype, 0.0))
        return 100 * done / peak if peak > 0 else None


def _best_seconds(call: Callable[[], object], count: int, synchronize: Callable[[], None]) -> float:
    best = float("inf")
    for _ in range(count + 1):  # the first one pays for allocation and for waking the threads
        start = time.perf_counter()
        call()
        synchronize()
        best = min(best, time.perf_counter() - start)
    return best


class Meter:
    """Measures the peaks again and again: other load spoils some samples, the best ones count."""

    def __init__(self, dtypes: Iterable[str], device: str) -> None:
        """Allocate the operands; find the types in which torch's GEMM is slow (fp16 on many CPUs)."""
        self.peaks = Peaks()
        self._device = device
        self._synchronize = synchronizer(device)
        self._buffer = torch.ones(_READ_BYTES // 4, device=device)
        limit = self._gemm("fp32", 256, 2) / 4
        others = sorted(set(dtypes) - {"fp32"})
        self._fast = ["fp32", *(name for name in others if self._gemm(name, 256, 2) > limit)]
        self._slow = sorted(set(dtypes) - set(self._fast))

    def _gemm(self, dtype: str, size: int, count: int) -> float:
        """Return the best GFLOP/s of a square matrix product."""
        left = torch.randn(size, size, device=self._device).to(TORCH_DTYPES[dtype])
        return 2e-9 * size**3 / _best_seconds(lambda: left @ left, count, self._synchronize)

    def _in_registers(self, dtype: str) -> float:
        """Return the GFLOP/s of multiply-adds that touch no memory."""
        native, products = peak_kernel(dtype)
        groups, steps = 8 * (os.cpu_count() or 1), 400_000
        seconds = min(_core.time_peak(native, steps, groups) for _ in range(3))
        return 2e-9 * products * steps * groups / seconds

    def sample(self) -> None:
        """Measure once more; takes a fraction of a second."""
        rates = {name: max(self._gemm(name, size, 2) for size in _GEMM_SIZES) for name in self._fast}
        if self._device == "cpu":
            rates = {name: max(rate, self._in_registers(name)) for name, rate in rates.items()}
        rates = {name: max(rate, rates["fp32"]) for name, rate in rates.items()}
        rates |= dict.fromkeys(self._slow, rates["fp32"])
        seconds = _best_seconds(self._buffer.sum, 2, self._synchronize)
        self.peaks = self.peaks.better(Peaks(rates, 1e-9 * _READ_BYTES / seconds))


def between(cases: Sequence[_Case], meter: Meter | None) -> Iterator[_Case]:
    """Yield the cases; the peaks are measured before each, and at the end."""
    for case in cases:
        if meter is not None:
            meter.sample()
        yield case
    if meter is not None:
        meter.sample()
