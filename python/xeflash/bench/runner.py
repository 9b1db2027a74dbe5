"""The runner of benchmarks of one call: a `Benchmark` makes problems of cases, which are checked and then timed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from xeflash.bench import memory, peak
from xeflash.bench.check import ERRORS, Errors, said
from xeflash.bench.environ import available_memory, described, environment, last_level_cache, too_large
from xeflash.bench.forms import synchronizer
from xeflash.bench.limits import Peaks, instruction
from xeflash.bench.plot import Picture
from xeflash.bench.rows import OURS, Result, Work, compared
from xeflash.bench.tables import Layout
from xeflash.bench.timing import Gate, first_call, interleave

_T = TypeVar("_T")
Call = Callable[[], Any]
METHOD = [
    "wall time of one call on ready inputs, output allocation included; medians (minimum, interquartile range) in ms",
    "rounds are interleaved in rotating order; each sample waits until the worker threads of both libraries sleep, "
    "then one untimed call, then calls back to back for at least 2 ms",
    "OMP_WAIT_POLICY is passive unless the variable was set: OpenMP workers that spin slow down whatever runs next, "
    "and torch itself where the machine has other load",
    "ratio per round = median (lowest to highest) over rounds of torch's time / ours, torch in its fastest form; ratio "
    "= that of the medians; plain torch = the same for the form that a user writes first",
]


@dataclass(frozen=True)
class Options:
    """The device, the rounds, and the forms of torch to compare with."""

    device: str = "cpu"
    rounds: int = 9
    seed: int = 0
    compare_torch: bool = True
    compiled: bool = False  # torch.compile of the plain form, too
    gate: Gate = iter  # see timing.interleave


@dataclass(frozen=True)
class Problem:
    """A case with its inputs.

    Attributes:
        calls: ours, "xeflash", then torch's forms; the first of these is the plain one.
        check: returns our error and the allowed one, or None if nothing can be compared.
        flops: operations of a call of the case.
        bytes_read: bytes that a call has to read; None: no peak is told, as writing counts as much.
        touched: bytes that all calls in turn touch; None: the same.
        same: the forms of torch that do the same work as ours; None: all.
        optional: forms that torch may refuse, and what the note of the row calls them.
        repeats: calls of one sample.
        memory: whether peaks of memory are measured.
        eager: a form that keeps everything in memory, whose peak is measured with the others; None: it is left out.
        fields: further fields of the row.
    """

    calls: Mapping[str, Call]
    check: Callable[[], Errors | None]
    flops: float
    bytes_read: float | None = None
    touched: float | None = None
    same: Sequence[str] | None = None
    optional: Mapping[str, str] = field(default_factory=dict)
    repeats: int = 1
    memory: bool = False
    eager: Call | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Benchmark:
    """One benchmark: the layout of its rows, what it says of its method, and how a case becomes a problem."""

    layout: Layout
    title: str  # of the picture, with a place for the device's name
    method: Sequence[str]
    algorithm: Callable[[Any], str]  # the kernel that does most of the work of a case
    memory_needed: Callable[[Any], float]
    problem: Callable[[Any, Options], Problem]
    picture: Picture
    notes: Mapping[str, str] = field(default_factory=dict)  # what a form of torch is, by its name

    def arch_of(self, case: Any, device: str) -> str:
        """Returns the architecture whose instructions do most of a case's work."""
        return peak.arch_of(self.algorithm(case), case.dtype, device)

    def meter(self, cases: Sequence[Any], device: str) -> peak.Meter:
        """Returns what measures the peaks that may hold these cases."""
        return peak.Meter({instruction(self.arch_of(case, device), case.dtype) for case in cases}, device)

    def run_case(self, case: Any, options: Options) -> Result:
        """Returns the result of one case; an error becomes a failed row, not the end of the run."""
        row = self.layout.row(**dataclasses.asdict(case))
        with torch.inference_mode(not getattr(case, "gradients", False)):
            return attempt(row, options.device, lambda: self._timed(row, options), self.memory_needed(case))

    def run(self, cases: Sequence[Any], options: Options, meter: peak.Meter | None = None) -> Iterator[Result]:
        """Yields the results one by one, so that an interrupted run keeps what it has."""
        for case in peak.between(cases, meter):
            yield self.run_case(case, options)

    def header(self, options: Options, results: Sequence[Result], peaks: Peaks | None = None) -> dict[str, object]:
        """Returns the block above the rows."""
        used = {name for result in results for name in result.samples_ms}
        method = [
            *METHOD,
            *self.method,
            *(peak.METHOD if peaks else []),
            *([memory.METHOD] if any(result.row.peak_bytes is not None for result in results) else []),
            *(f"{name} = {note}" for name, note in self.notes.items() if name in used),
        ]
        isa, caches = torch.backends.cpu.get_cpu_capability(), last_level_cache()
        return header(options.device, method, peaks, torch_isa=isa, last_level_cache_bytes=caches)

    def _timed(self, row: Any, options: Options) -> Result:
        """Checks and times a case; the memory of its inputs ends with the call."""
        problem = self.problem(row, options)
        result = timed(row, problem, options)
        if not result.samples_ms:
            return result
        found = compared(result.samples_ms, problem.same)
        found["gflops"] = 1e-6 * problem.flops / found["median_ms"]
        if problem.memory:
            found |= _peaks_of_memory(problem, found.get("torch_form"), options)
        arch = self.arch_of(row, options.device)
        work = None
        if (size := problem.bytes_read) is not None:
            found["gbytes_per_s"] = 1e-6 * size / found["median_ms"]
            work = Work(instruction(arch, row.dtype), problem.flops, size, problem.touched)
        return dataclasses.replace(result, work=work).with_row(arch=arch, **found, **problem.fields)


def attempt(row: Any, device: str, action: Callable[[], _T], needed: float = 0) -> _T | Result:
    """Returns what `action` returns; if there is no memory for it or it fails, a result whose row says so."""
    if note := too_large(needed, available_memory(device)):
        return Result(dataclasses.replace(row, status="skipped", note=note))
    try:
        return action()
    except ERRORS as error:
        return Result(dataclasses.replace(row, status="failed", note=said(error)))


def judged(row: Any, errors: Errors | None) -> Any:
    """Returns the row with its error, which fails it if more than is allowed."""
    if errors is None:
        return row
    row = dataclasses.replace(row, max_error=errors.ours, allowed_error=errors.allowed)
    if errors.ok:
        return row
    note = f"wrong result: error {errors.ours:.2e}, allowed {errors.allowed:.2e}"
    return dataclasses.replace(row, status="failed", note=note)


def timed(row: Any, problem: Problem, options: Options) -> Result:
    """Returns the row as the check leaves it, and samples of all calls; there are none if ours is wrong."""
    synchronize, calls = synchronizer(options.device), dict(problem.calls)
    row = dataclasses.replace(row, first_call_ms=1e3 * first_call(calls[OURS], synchronize))
    row = judged(row, problem.check())
    if row.status != "ok":
        return Result(row)
    for name, call in list(calls.items()):
        try:
            call()
        except Exception as error:  # torch.compile raises what it likes
            if name not in problem.optional:
                raise
            del calls[name]
            row = dataclasses.replace(row, note=f"{problem.optional[name]}: {type(error).__name__}")
    often = {name: _repeated(call, problem.repeats) for name, call in calls.items()}
    samples = interleave(often, options.rounds, synchronize, options.gate)
    return Result(row, {name: tuple(1e3 * seconds for seconds in series) for name, series in samples.items()})


def _repeated(call: Call, times: int) -> Call:
    def repeated() -> None:
        for _ in range(times):
            call()

    return repeated if times > 1 else call


def _peaks_of_memory(problem: Problem, torch_form: str | None, options: Options) -> dict[str, int]:
    """Returns our peak, and with torch those of its fastest form and of the eager one, if that was not left out."""
    calls: dict[str, Call | None] = {"peak_bytes": problem.calls[OURS]}
    if torch_form is not None:
        calls |= {"torch_peak_bytes": problem.calls[torch_form], "eager_peak_bytes": problem.eager}
    return {name: memory.peak_of(call, options.device) for name, call in calls.items() if call is not None}


def choose_device(name: str) -> str:
    """Returns the torch device for auto, cpu or xpu."""
    has_xpu = torch.xpu.is_available()
    if name == "xpu" and not has_xpu:
        raise ValueError("bench: --device xpu needs a torch build with XPU and an Intel GPU")
    if name == "auto":
        return "xpu" if has_xpu else "cpu"
    return name


def header(device: str, method: Sequence[str], peaks: Peaks | None = None, **environs: object) -> dict[str, object]:
    """Returns the block above the rows: environment, peaks if they were measured, method."""
    environs = {"device": described(device), "torch_threads": torch.get_num_threads(), **environs}
    measured = {} if peaks is None else {"peaks": peaks.named()}
    return {"environment": {**environment(), **environs}, **measured, "method": list(method)}
