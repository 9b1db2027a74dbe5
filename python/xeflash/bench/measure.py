"""One case measured: whether its memory is there, the check, interleaved samples; and the head of a result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from xeflash.bench.check import ERRORS, Errors, said
from xeflash.bench.environ import available_memory, described, environment, too_large
from xeflash.bench.forms import synchronizer
from xeflash.bench.limits import Beside, Instruction, Peaks
from xeflash.bench.rows import Result
from xeflash.bench.timing import first_call, interleave


@dataclass(frozen=True)
class Options:
    """How to measure."""

    device: str = "cpu"
    rounds: int = 9
    seed: int = 0


def run_case(row: Any, needed: float, device: str, measure: Callable[[], Result]) -> Result:
    """Return what `measure` does; a case that has no room or fails is a row that says so, not the end of the run."""
    if note := too_large(needed, available_memory(device)):
        return Result(dataclasses.replace(row, status="skipped", note=note))
    try:
        return measure()
    except ERRORS as error:
        return Result(dataclasses.replace(row, status="failed", note=said(error)))


def judged(row: Any, errors: Errors) -> Any:
    """Return the row with its error, which fails it if more than is allowed."""
    row = dataclasses.replace(row, max_error=errors.ours, allowed_error=errors.allowed)
    if errors.ok:
        return row
    note = f"wrong result: error {errors.ours:.2e}, allowed {errors.allowed:.2e}"
    return dataclasses.replace(row, status="failed", note=note)


def timed(
    row: Any,
    calls: Mapping[str, Callable[[], object]],
    check: Callable[[], Errors | None],
    options: Options,
    optional: Mapping[str, str] = {},
    repeats: int = 1,
) -> Result:
    """Return the row with what the check found, and samples of all calls, none if "xeflash" is wrong.

    Those of `optional`, by name and in words, are left out if torch refuses them; the note then says so.
    """
    synchronize, calls = synchronizer(options.device), dict(calls)
    row = dataclasses.replace(row, first_call_ms=1e3 * first_call(calls["xeflash"], synchronize))
    if (errors := check()) is not None:
        row = judged(row, errors)
        if not errors.ok:
            return Result(row)
    for name, call in list(calls.items()):
        try:
            call()
        except Exception as error:  # torch.compile raises what it likes
            if name not in optional:
                raise
            del calls[name]
            row = dataclasses.replace(row, note=f"{optional[name]}: {type(error).__name__}")
    often = {name: _repeated(call, repeats) for name, call in calls.items()}
    samples = interleave(often, options.rounds, synchronize)
    return Result(row, {name: tuple(1e3 * seconds for seconds in series) for name, series in samples.items()})


def _repeated(call: Callable[[], object], times: int) -> Callable[[], object]:
    def repeated() -> None:
        for _ in range(times):
            call()

    return repeated if times > 1 else call


class Work(NamedTuple):
    """What a call does, for its limit: see Peaks.limit."""

    by: Instruction
    flops: float
    bytes_read: float
    seconds: float
    touched: float | None = None


def with_peaks(
    results: Sequence[Result], beside: Sequence[Peaks], work_of: Callable[[Any], Work | None]
) -> list[Result]:
    """Return the results with the peak that each is held to filled in, of those that were measured beside it."""
    peaks, found = Beside(beside), []
    for i, result in enumerate(results):
        work = work_of(result.row)
        limit = peaks.limit(i, *work) if work else None
        row = dataclasses.replace(result.row, **limit._asdict()) if limit else result.row
        found.append(dataclasses.replace(result, row=row))
    return found


def header(device: str, method: Sequence[str], peaks: Peaks | None = None, **environs: object) -> dict[str, object]:
    """Return the block above the rows: environment, peaks if they are measured, method."""
    environs = {"device": described(device), "torch_threads": torch.get_num_threads(), **environs}
    measured = {} if peaks is None else {"peaks": peaks.named()}
    return {"environment": {**environment(), **environs}, **measured, "method": list(method)}
