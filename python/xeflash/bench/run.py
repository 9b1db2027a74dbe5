"""Runs the cases: check first, then interleaved samples, then the row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from xeflash.bench import check as checking
from xeflash.bench import forms, memory, peak
from xeflash.bench.cases import Case
from xeflash.bench.check import ERRORS, said
from xeflash.bench.environ import available_memory, described, environment, last_level_cache, too_large
from xeflash.bench.limits import Beside, Instruction, Peaks, instruction
from xeflash.bench.rows import Result, Row, row_of_samples, row_without_times
from xeflash.bench.timing import first_call, interleave

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
]
_PHASE_METHODS = {
    "backward": "backward: the gradients of q, k and v by torch.autograd.grad, after one forward pass whose graph is "
    "kept; counted as 5 products of matrices, 2.5 times those of a forward pass",
    "train": "train: a forward pass and these gradients; counted as 7 products; "
    f"{memory.METHOD}; eager: softmax(Q K^T) V with all scores in memory, which is not timed",
}
_EAGER_BYTES = 16  # for each score of a training step with eager attention: 12.6 of long sequences, in fp32


@dataclass(frozen=True)
class Options:
    """How to measure."""

    device: str = "cpu"
    rounds: int = 9
    seed: int = 0
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
    synchronize = forms.synchronizer(options.device)
    first_ms = 1e3 * first_call(ours, synchronize)
    errors = checking.check(case, inputs, ours, next(iter(theirs.values())))
    if not errors.ok:
        note = f"wrong result: error {errors.ours:.2e}, allowed {errors.allowed:.2e}"
        return Result(
            dataclasses.replace(
                row_without_times(case, "failed", note),
                max_error=errors.ours,
                allowed_error=errors.allowed,
            )
        )
    calls: dict[str, Callable[[], object]] = {"xeflash": ours}
    if options.compare_torch:
        calls.update(theirs)
    for call in calls.values():
        call()
    samples = {
        name: tuple(1e3 * seconds for seconds in series)
        for name, series in interleave(calls, options.rounds, synchronize).items()
    }
    row = row_of_samples(case, samples, first_ms, (errors.ours, errors.allowed))
    if case.phase == "train":
        row = _with_memory(row, inputs, calls, options)
    return Result(dataclasses.replace(row, arch=arch_of(case, options.device)), samples)


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
    case = row.case
    scores = case.batch * case.heads * case.seq_q * case.seq_k
    eager = forms.of_phase(case, inputs, forms.eager_form(case, inputs))
    left_out = too_large(_EAGER_BYTES * scores, available_memory(options.device))
    return dataclasses.replace(
        row,
        peak_bytes=peak_bytes,
        torch_peak_bytes=memory.peak_of(calls[row.torch_form], options.device),
        eager_peak_bytes=None if left_out else memory.peak_of(eager, options.device),
    )


def run_case(case: Case, options: Options) -> Result:
    """Return the result of one case; an error becomes a failed row, not the end of the run."""
    if note := too_large(case.memory_bytes, available_memory(options.device)):
        return Result(row_without_times(case, "skipped", note))
    try:
        with torch.inference_mode(not case.gradients):
            return _run_case(case, options)
    except ERRORS as error:
        note = said(error)
        return Result(row_without_times(case, "failed", note))


def run(cases: Sequence[Case], options: Options, meter: peak.Meter | None = None) -> Iterator[Result]:
    """Yield the results one by one, so that an interrupted run keeps what it has."""
    for case in peak.between(cases, meter):
        yield run_case(case, options)


def with_peaks(results: Sequence[Result], beside: Sequence[Peaks]) -> list[Result]:
    """Return the results with the peak that each is held to filled in, of those that were measured beside it."""

    peaks = Beside(beside)

    def fill(i: int, row: Row) -> Row:
        if row.arch is None or row.median_ms is None:
            return row
        case, by = row.case, instruction(row.arch, row.dtype)
        limit = peaks.limit(i, by, case.flops, case.kv_bytes, 1e-3 * row.median_ms)
        return dataclasses.replace(row, **limit._asdict()) if limit else row

    return [dataclasses.replace(result, row=fill(i, result.row)) for i, result in enumerate(results)]


def header(options: Options, peaks: Peaks, results: Sequence[Result]) -> dict[str, object]:
    """Return the block above the rows: environment, peaks, method."""
    used = {name for result in results for name in result.samples_ms}
    phases = {result.row.phase for result in results}
    notes = [f"{name} = {note}" for name, note in forms.FORM_NOTES.items() if name in used]
    return {
        "environment": {
            **environment(),
            "device": described(options.device),
            "torch_threads": torch.get_num_threads(),
            "torch_isa": torch.backends.cpu.get_cpu_capability(),
            "last_level_cache_bytes": last_level_cache(),
        },
        "peaks": peaks.named(),
        "method": [
            *METHOD,
            *(peak.METHOD if peaks.gbytes else []),
            *notes,
            *(method for phase, method in _PHASE_METHODS.items() if phase in phases),
            checking.METHOD,
        ],
    }
