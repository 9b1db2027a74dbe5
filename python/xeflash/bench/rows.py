"""The result of a case is a flat row: the fields of the case, and those of `Timed`, which all benchmarks share."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from xeflash.bench.limits import Beside, Instruction, Peaks
from xeflash.bench.stats import ratio_of_medians, ratios_of_rounds, summarize

_Kind = TypeVar("_Kind")
Samples = Mapping[str, Sequence[float]]  # milliseconds per call, by the name of the form; ours is "xeflash"
OURS = "xeflash"
CAUSAL = "causal"  # beside a tree: our causal call of as many queries


@dataclass(frozen=True)
class Timed:
    """The fields of all rows, after those of their case.

    `status` is "ok", "failed" (a wrong result or an error; `note` says which) or "skipped". Times are milliseconds per
    call. `ratio` is the time of what a row is compared with / its own, `ratio_low` and `ratio_high` are the lowest and
    the highest of a round. A number that was not measured is None.
    """

    status: str = "ok"
    note: str = ""
    rounds: int | None = None
    median_ms: float | None = None
    min_ms: float | None = None
    iqr_ms: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    max_error: float | None = None
    allowed_error: float | None = None
    peak_bytes: int | None = None
    bound_by: str | None = None
    percent_of_peak: float | None = None


@dataclass(frozen=True)
class Compared(Timed):
    """The fields of one call of ours beside torch's fastest form, and beside the plain form that a user writes first.

    `arch` is the architecture of the kernel's code; `peak` is the rate (GFLOP/s or GB/s) that holds the call, see
    limits.Limit. `peak_bytes` is our peak of memory; the others are those of torch's fastest form and of eager torch.
    """

    first_call_ms: float | None = None
    gflops: float | None = None
    gbytes_per_s: float | None = None
    arch: str | None = None
    peak: float | None = None
    torch_form: str | None = None
    torch_median_ms: float | None = None
    torch_min_ms: float | None = None
    torch_iqr_ms: float | None = None
    ratio_per_round: float | None = None
    plain_form: str | None = None
    plain_median_ms: float | None = None
    plain_ratio: float | None = None
    torch_peak_bytes: int | None = None
    eager_peak_bytes: int | None = None


class Work(NamedTuple):
    """The work of a call: operations by an instruction, bytes that it reads, and bytes that all calls in turn touch."""

    by: Instruction
    flops: float
    bytes_read: float
    touched: float | None = None


@dataclass(frozen=True)
class Result:
    """A row, the samples behind it in milliseconds per call by name of the form, and the work of a call."""

    row: Any  # a Timed that has the fields of a case, too
    samples_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    work: Work | None = field(default=None, compare=False)

    def with_row(self, **fields: Any) -> Result:
        """Returns the result with other fields of its row."""
        return dataclasses.replace(self, row=dataclasses.replace(self.row, **fields))


def times_of(samples: Sequence[float], prefix: str = "") -> dict[str, Any]:
    """Returns the fields of a form's times."""
    found = summarize(samples)
    values = {"median": found.median, "min": found.minimum, "iqr": found.iqr}
    return {f"{prefix}{name}_ms": value for name, value in values.items()}


def compared(samples: Samples, same: Sequence[str] | None = None) -> dict[str, Any]:
    """Returns the fields of our times and torch's.

    The first form after ours is the plain one; the fastest is one of `same`, by default of all.
    """
    ours = samples[OURS]
    found: dict[str, Any] = {"rounds": len(ours), **times_of(ours)}
    if CAUSAL in samples:
        causal = samples[CAUSAL]
        found |= {"causal_median_ms": summarize(causal).median, "causal_ratio": ratio_of_medians(causal, ours)}
    forms = [name for name in samples if name not in (OURS, CAUSAL)]
    if forms:
        plain = samples[forms[0]]
        found |= {"plain_form": forms[0], "plain_median_ms": summarize(plain).median}
        found["plain_ratio"] = ratio_of_medians(plain, ours)
    same_forms = [name for name in forms if same is None or name in same]
    if same_forms:
        form = min(same_forms, key=lambda name: summarize(samples[name]).median)
        found |= {"torch_form": form, **times_of(samples[form], "torch_")}
        found["ratio"] = ratio_of_medians(samples[form], ours)
        found["ratio_per_round"], found["ratio_low"], found["ratio_high"] = ratios_of_rounds(samples[form], ours)
    return found


def with_peaks(results: Sequence[Result], beside: Sequence[Peaks]) -> list[Result]:
    """Returns the results with the peak that holds each, of those peaks that were measured beside it."""
    peaks, found = Beside(beside), []
    for i, result in enumerate(results):
        work, seconds = result.work, 1e-3 * (result.row.median_ms or 0)
        limit = peaks.limit(i, work.by, work.flops, work.bytes_read, seconds, work.touched) if work else None
        found.append(result.with_row(**limit._asdict()) if limit else result)
    return found


def case_of(kind: type[_Kind], row: Any) -> _Kind:
    """Returns the case of a row, which has all its fields."""
    return kind(**{x.name: getattr(row, x.name) for x in dataclasses.fields(kind)})  # type: ignore[arg-type]


def with_ratios(results: Sequence[Result], kind: type[Any], base: str) -> list[Result]:
    """Returns the results with the time of a round of the way `base` on the same case / their own: median and ends."""
    bases = {case_of(kind, x.row): _rounds(x) for x in results if x.row.way == base}

    def filled(result: Result) -> Result:
        found, own = bases.get(case_of(kind, result.row)), _rounds(result)
        if not found or not own:
            return result
        ratio, low, high = ratios_of_rounds(found, own)
        return result.with_row(ratio=ratio, ratio_low=low, ratio_high=high)

    return [filled(result) for result in results]


def _rounds(result: Result) -> list[float]:
    """Returns the median of each round's samples; there are none of what was not measured."""
    row, samples = result.row, result.samples_ms.get(result.row.way, ())
    if row.status != "ok" or not row.rounds:
        return []
    each = len(samples) // row.rounds
    return [statistics.median(samples[i : i + each]) for i in range(0, len(samples), each)]
