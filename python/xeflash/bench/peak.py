"""Peaks of the machine, measured in the same run: arithmetic by instruction, reading by place."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch

from xeflash import _core
from xeflash.bench.environ import usable_cpus
from xeflash.bench.forms import TORCH_DTYPES, synchronizer
from xeflash.bench.limits import MEMORY, Instruction, Peaks
from xeflash.bench.reading import Reader
from xeflash.jit import peak_kernel
from xeflash.jit.kernel import named_arch
from xeflash.tune.desc import DTYPE_NAMES, Desc

_Case = TypeVar("_Case")
_GEMM_SIZES = (1024, 2048)
_READ_BYTES = 512 << 20  # several times the last-level cache of most machines
METHOD = (
    "arch: whose instructions the kernel is made of; bound by: which peak allows the call less than the others do: "
    "arithmetic, or reading from where its bytes lie, the last-level cache if they fit in it, else memory; what reads "
    "faster than its place gives is held to the next smaller cache, as a part of it lay there; % of peak: of that one",
    "peaks: on the CPU GFLOP/s of multiply-adds in registers by the instruction of that architecture and type, GB/s of "
    "a loop that reads (kernels/peak.hpp); on a GPU torch matmul of 1024^3 and 2048^3; memory: these or torch.sum over "
    f"{_READ_BYTES >> 20} MiB; taken right before and right after every case, the better counts, and for a call "
    "that was faster than both the best of the run, which the head of the result has",
)


def arch_of(algorithm: str, dtype: str, device: str) -> str:
    """Returns the architecture whose instructions a kernel is made of: not all use those of the newest."""
    arch = _core.arch_of(torch.empty(1, device=device), "bench", "device")
    return named_arch(Desc(algorithm, arch, DTYPE_NAMES[dtype], 1, 1, 1))


def _best_seconds(call: Callable[[], object], count: int, synchronize: Callable[[], None]) -> float:
    best = float("inf")
    for _ in range(count + 1):  # the first one pays for allocation and for waking the threads
        start = time.perf_counter()
        call()
        synchronize()
        best = min(best, time.perf_counter() - start)
    return best


class Meter:
    """Measures the peaks again and again: a machine that is shared is not as fast at all times."""

    def __init__(self, instructions: Iterable[Instruction], device: str) -> None:
        """Allocates the operands."""
        self.peaks = Peaks()  # the best of the run
        self._samples: list[Peaks] = []
        self._instructions = sorted(set(instructions))
        self._device = device
        self._synchronize = synchronizer(device)
        self._buffer = torch.ones(_READ_BYTES // 4, device=device)
        self._reader = None
        if device == "cpu":
            self._reader = Reader(arch_of("peak", "fp32", device), self._buffer.data_ptr(), _READ_BYTES)

    def _gemm(self, dtype: str, size: int) -> float:
        """Returns the best GFLOP/s of a square matrix product."""
        left = torch.randn(size, size, device=self._device).to(TORCH_DTYPES[dtype])
        return 2e-9 * size**3 / _best_seconds(lambda: left @ left, 2, self._synchronize)

    def _multiplying(self, by: Instruction) -> float:
        """Returns the GFLOP/s of this instruction."""
        if self._reader is None:
            return max(self._gemm(by[1], size) for size in _GEMM_SIZES)
        native, products = peak_kernel(*by)
        groups, steps = 8 * usable_cpus(), 400_000
        seconds = min(_core.time_peak(native, "multiply_peak", steps, groups) for _ in range(3))
        return 2e-9 * products * steps * groups / seconds

    def sample(self) -> None:
        """Measures once more; takes a fraction of a second."""
        gflops = {by: self._multiplying(by) for by in self._instructions}
        memory = 1e-9 * _READ_BYTES / _best_seconds(self._buffer.sum, 2, self._synchronize)
        sampled = Peaks(gflops, {MEMORY: memory})
        if reader := self._reader:
            everyone, one = (
                {place.name: reader.gbytes_per_s(place, threads) for place in reader.places}
                for threads in (reader.threads, 1)
            )
            sampled = sampled.better(Peaks({}, one, one, {x.name: x.capacity for x in reader.places[1:]}))
            sampled = sampled.better(Peaks({}, everyone))
        self._samples.append(sampled)
        self.peaks = self.peaks.better(sampled)

    def beside(self) -> list[Peaks]:
        """Returns for each case the better of what was measured right before and right after it."""
        return [
            before.better(after) for before, after in zip(self._samples, [*self._samples[1:], Peaks()], strict=True)
        ]


def between(cases: Sequence[_Case], meter: Meter | None) -> Iterator[_Case]:
    """Yields the cases; the peaks are measured before each, and at the end."""
    for case in cases:
        if meter is not None:
            meter.sample()
        yield case
    if meter is not None:
        meter.sample()
