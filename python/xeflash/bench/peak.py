"""What the machine can do, measured in the same run: GEMM rate per dtype and read bandwidth."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch

from xeflash.bench.forms import TORCH_DTYPES, synchronizer

_GEMM_SIZE = 2048
_READ_BYTES = 512 << 20  # several times the last-level cache of most machines
METHOD = (
    f"peak GFLOP/s = best torch matmul {_GEMM_SIZE}^3 of several, in that dtype or in fp32, "
    f"whichever is faster; peak GB/s = best torch.sum over {_READ_BYTES >> 20} MiB of fp32; both "
    "taken before and after the cases, the better counts (prefetch, or K and V in the cache, can "
    "pass the GB/s)"
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
        done, peak = (
            (gflops, self.gflops.get(dtype, 0.0))
            if phase == "prefill"
            else (gbytes, self.read_gbytes)
        )
        return 100 * done / peak if peak > 0 else None


def _best_seconds(call: Callable[[], object], count: int, synchronize: Callable[[], None]) -> float:
    best = float("inf")
    for _ in range(count + 1):  # the first one pays for allocation and for waking the threads
        start = time.perf_counter()
        call()
        synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def gemm_gflops(dtype: str, device: str, size: int, count: int) -> float:
    """Return the best rate of a square matrix product."""
    left = torch.randn(size, size, device=device).to(TORCH_DTYPES[dtype])
    seconds = _best_seconds(lambda: left @ left, count, synchronizer(device))
    return 2e-9 * size**3 / seconds


def measure(dtypes: Iterable[str], device: str, count: int = 5) -> Peaks:
    """Return the peaks for these dtypes; see METHOD."""
    small_fp32 = gemm_gflops("fp32", device, 256, 2)
    fp32 = gemm_gflops("fp32", device, _GEMM_SIZE, count)
    rates = {"fp32": fp32}
    for dtype in sorted(set(dtypes) - {"fp32"}):
        # Where torch has no fast GEMM for a type the large one takes a minute: try a small one.
        small = gemm_gflops(dtype, device, 256, 2)
        large = gemm_gflops(dtype, device, _GEMM_SIZE, count) if small > small_fp32 / 4 else 0.0
        rates[dtype] = max(large, fp32)
    buffer = torch.ones(_READ_BYTES // 4, device=device)
    seconds = _best_seconds(buffer.sum, count, synchronizer(device))
    return Peaks(rates, 1e-9 * _READ_BYTES / seconds)
