"""Runs the cases: check first, then interleaved samples, then the row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from xeflash.bench import check as checking
from xeflash.bench import forms, measure, memory, peak, shares
from xeflash.bench.cases import Case
from xeflash.bench.environ import available_memory, last_level_cache, too_large
from xeflash.bench.limits import Instruction, Peaks, instruction
from xeflash.bench.rows import Result, Row, with_samples

METHOD = [
    "wall time of one call on ready inputs, output allocation included; medians (minimum, "
    "interquartile range) in ms; K and V are warm in the cache where they fit",
    "rounds are interleaved in rotating order; each sample waits until the worker threads of both "
    "libraries sleep, then one untimed call, then calls back to back for at least 2 ms",
    "OMP_WAIT_POLICY is passive unless the variable was set: OpenMP workers that spin slow down "
    "whatever runs next, and torch itself where the machine has other load",
    "ratio = torch's median / ours, torch in its fastest form; per round = median of the ratios "
    "of each round; plain torch = the same for the first form a user writes (sdpa, enable_gqa)",
    "GFLOP/s count a causal triangle as half; GB/s count K and V once",
    "threads: of the launch that scores, CPUs: work-items; of device: of the threads that it holds, CPUs: 4 a core; "
    "partial: memory in which splits of the keys leave results for the launch that merges them",
]
_PHASE_METHODS = {
    "backward": "backward: the gradients of q, k and v by torch.autograd.grad, after one forward pass whose graph is "
    "kept; counted as 5 products of matrices, 2.5 times those of a forward pass",
    "train": "train: a forward pass and these gradients; counted as 7 products; "
    f"{memory.METHOD}; eager: softmax(Q K^T) V with all scores in memory, which is not timed",
}
_EAGER_BYTES = 16  # for each score of a training step with eager attention: 12.6 of long sequences, in fp32


@dataclass(frozen=True)
class Options(measure.Options):
    """And with what."""

    compare_torch: bool = True


def choose_device(name: str) -> str:
    """Return the torch device for auto, cpu or xpu."""
    has_xpu = torch.xpu.is_available()
    if name == "xpu" and not has_xpu:
        raise ValueError("bench: --device xpu needs a torch build with XPU and an Intel GPU")
    if name == "auto":
        return "xpu" if has_xpu else "cpu"
    return name


def _run_case(case: Case, options: Options) -> Result:
    """Check and time one case; the memory of the inputs ends with the call."""
    inputs = forms.make_inputs(case, options.device, options.seed)
    ours = forms.of_phase(case, inputs, forms.our_form(case, inputs))
    theirs = {name: forms.of_phase(case, inputs, form) for name, form in forms.torch_forms(case, inputs).items()}
    calls: dict[str, Callable[[], object]] = {"xeflash": ours, **(theirs if options.compare_torch else {})}
    plain = next(iter(theirs.values()))
    result = measure.timed(_start(case), calls, lambda: checking.check(case, inputs, ours, plain), options)
    if not result.samples_ms:
        return result
    row = with_samples(result.row, result.samples_ms)
    if case.phase == "train":
        row = _with_memory(row, inputs, calls, options)
    found: dict[str, Any] = {} if case.gradients else shares.fields_of(shares.shares_here(case, options.device))
    return dataclasses.replace(result, row=dataclasses.replace(row, arch=arch_of(case, options.device), **found))


def _start(case: Case) -> Row:
    return Row(**dataclasses.asdict(case))


def arch_of(case: Case, device: str) -> str:
    """Return the architecture whose instructions do most of a case's work."""
    return peak.arch_of(case.algorithm, case.dtype, device)


def instructions(cases: Sequence[Case], device: str) -> set[Instruction]:
    """Return what these multiply by."""
    return {instruction(arch_of(case, device), case.dtype) for case in cases}


def _with_memory(row: Row, inputs: forms.Inputs, calls: Mapping[str, Callable[[], object]], options: Options) -> Row:
    """Return the row with peaks: ours, and with torch that of its fastest form, and of eager attention if it fits."""
    peak_bytes = memory.peak_of(calls["xeflash"], options.device)
    if row.torch_form is None:
        return dataclasses.replace(row, peak_bytes=peak_bytes)
    scores = row.batch * row.heads * row.seq_q * row.seq_k
    eager = forms.of_phase(row, inputs, forms.eager_form(row, inputs))
    left_out = too_large(_EAGER_BYTES * scores, available_memory(options.device))
    return dataclasses.replace(
        row,
        peak_bytes=peak_bytes,
        torch_peak_bytes=memory.peak_of(calls[row.torch_form], options.device),
        eager_peak_bytes=None if left_out else memory.peak_of(eager, options.device),
    )


def run_case(case: Case, options: Options) -> Result:
    """Return the result of one case; an error becomes a failed row, not the end of the run."""
    with torch.inference_mode(not case.gradients):
        return measure.run_case(_start(case), case.memory_bytes, options.device, lambda: _run_case(case, options))


def run(cases: Sequence[Case], options: Options, meter: peak.Meter | None = None) -> Iterator[Result]:
    """Yield the results one by one, so that an interrupted run keeps what it has."""
    for case in peak.between(cases, meter):
        yield run_case(case, options)


def with_peaks(results: Sequence[Result], beside: Sequence[Peaks]) -> list[Result]:
    """Return the results with the peak that each is held to filled in, of those that were measured beside it."""

    def work(row: Row) -> measure.Work | None:
        if row.arch is None or row.median_ms is None:
            return None
        return measure.Work(instruction(row.arch, row.dtype), row.flops, row.kv_bytes, 1e-3 * row.median_ms)

    return measure.with_peaks(results, beside, work)


def header(options: Options, peaks: Peaks, results: Sequence[Result]) -> dict[str, object]:
    """Return the block above the rows: environment, peaks, method."""
    used = {name for result in results for name in result.samples_ms}
    phases = {result.row.phase for result in results}
    method = [
        *METHOD,
        *(peak.METHOD if peaks.gbytes else []),
        *(f"{name} = {note}" for name, note in forms.FORM_NOTES.items() if name in used),
        *(text for phase, text in _PHASE_METHODS.items() if phase in phases),
        checking.METHOD,
    ]
    isa, caches = torch.backends.cpu.get_cpu_capability(), last_level_cache()
    return measure.header(options.device, method, peaks, torch_isa=isa, last_level_cache_bytes=caches)
