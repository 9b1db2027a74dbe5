"""Runs the cases: check first, then interleaved samples, then the row."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from xeflash.bench import measure, peak
from xeflash.bench.check import Errors, largest_error
from xeflash.bench.environ import last_level_cache
from xeflash.bench.forms import TORCH_DTYPES
from xeflash.bench.limits import Instruction, Peaks, instruction
from xeflash.bench.linear import forms
from xeflash.bench.linear.cases import GROUP, Case
from xeflash.bench.linear.rows import LinearRow, with_samples
from xeflash.bench.rows import Result

METHOD = [
    "wall time of one call on ready inputs, output allocation included; medians (minimum, interquartile range) in us",
    "each call takes the next one of several copies of the weight, which together are four times the last-level cache "
    "at least: weights come from memory, as in a model",
    "rounds are interleaved in rotating order; each sample waits until the worker threads of both libraries sleep, "
    "then one untimed call, then calls back to back for at least 2 ms",
    "GB/s: bytes of the weight, and of scales where it is quantised, / our time",
    "before timing: max |error| against fp64 must be at most 2 x that of a product in fp32, rounded to the type of x, "
    "or 2 x the rounding of the largest sum, + the rounding of the largest result",
]
_BLOCK = 2048  # outputs that are checked at a time


@dataclass(frozen=True)
class Options(measure.Options):
    """And what, with what."""

    group: int = GROUP
    compare_torch: bool = True
    compiled: bool = False


def check(inputs: forms.Inputs, got: Tensor) -> Errors:
    """Return our error and the allowed one."""
    x, ours, theirs, size, largest = inputs.x, 0.0, 0.0, 0.0, 0.0
    if got.shape != (shape := (len(x), len(inputs.weight))):
        raise ValueError(f"check: result must have shape {list(shape)}, got {list(got.shape)}")
    for first in range(0, len(inputs.weight), _BLOCK):
        part = slice(first, first + _BLOCK)
        weight = inputs.weight[part]
        want = x.double() @ weight.double().mT
        other = (x.float() @ weight.float().mT).to(x.dtype)
        error = largest_error(got[:, part], want)
        ours = error if not error <= ours else ours  # keeps NaN
        theirs = max(theirs, largest_error(other, want))
        largest = max(largest, float(want.abs().max()))
        size = max(size, float((x.float().abs() @ weight.float().abs().mT).max()))
    eps = torch.finfo(torch.float32).eps
    return Errors(ours, 2 * max(theirs, eps * size) + torch.finfo(x.dtype).eps / 2 * largest)


def memory_needed(case: Case, compare_torch: bool) -> int:
    """Estimate of the bytes of all copies, and of what makes and checks the weight."""
    elements = case.outputs * case.inputs
    size = elements * int(TORCH_DTYPES[case.dtype].itemsize)
    kinds = 1 + 2 * compare_torch
    return 20 * elements + kinds * (forms.copies_of(size) + 1) * size


def _run_case(row: LinearRow, options: Options) -> Result:
    """Check and time one case; the memory of the weights ends with the call."""
    inputs = forms.make_inputs(row, options.group, options.device, options.seed)
    ours = forms.our_form(inputs)
    calls: dict[str, Callable[[], object]] = {"xeflash": ours}
    if options.compare_torch:
        calls |= forms.torch_forms(row, inputs, options.group, options.compiled)
    result = measure.timed(row, calls, lambda: check(inputs, ours()), options)
    if not result.samples_ms:
        return result
    size = forms.bytes_of(inputs.arguments())
    row = dataclasses.replace(result.row, copies=forms.copies_of(size), arch=arch_of(row, options.device))
    return dataclasses.replace(result, row=with_samples(row, result.samples_ms, size))


def arch_of(case: Case, device: str) -> str:
    """Return the architecture whose instructions multiply."""
    return peak.arch_of("linear", case.dtype, device)


def instructions(cases: Sequence[Case], device: str) -> set[Instruction]:
    """Return what these multiply by."""
    return {instruction(arch_of(case, device), case.dtype) for case in cases}


def run_case(case: Case, options: Options) -> Result:
    """Return the result of one case; an error becomes a failed row, not the end of the run."""
    row = LinearRow(**dataclasses.asdict(case))
    with torch.inference_mode():
        return measure.run_case(
            row, memory_needed(case, options.compare_torch), options.device, lambda: _run_case(row, options)
        )


def run(cases: Sequence[Case], options: Options, meter: peak.Meter | None = None) -> Iterator[Result]:
    """Yield the results one by one, so that an interrupted run keeps what it has."""
    for case in peak.between(cases, meter):
        yield run_case(case, options)


def header(options: Options, peaks: Peaks, results: Sequence[Result]) -> dict[str, object]:
    """Return the block above the rows: environment, peaks, method."""
    used = {name for result in results for name in result.samples_ms}
    notes = (f"{name} = {note}" for name, note in forms.FORM_NOTES.items() if name in used)
    method = [*METHOD, *(peak.METHOD if peaks.gbytes else []), *notes]
    caches = last_level_cache()
    return measure.header(options.device, method, peaks, last_level_cache_bytes=caches, group=options.group)
