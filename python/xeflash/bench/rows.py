"""The result of one case as a flat row: the same fields in CSV, JSON and the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from xeflash.bench.cases import Case
from xeflash.bench.stats import median_of_ratios, ratio_of_medians, summarize


@dataclass(frozen=True)
class Row:
    """One case, our time, torch's fastest form, torch's plain form, and the check.

    `status` is "ok", "failed" (wrong result or an error; `note` says which) or "skipped".
    Times are milliseconds per call; numbers that were not measured are None. `arch` is that of the kernel's code, and
    `peak` (GFLOP/s or GB/s) what the row is held to, see peak.Limit. Peaks of memory are those of a training
    step: ours, that of torch's fastest form, and that of attention that keeps all scores.
    """

    phase: str
    dtype: str
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    seq_q: int
    seq_k: int
    causal: bool
    status: str
    note: str = ""
    rounds: int | None = None
    first_call_ms: float | None = None
    median_ms: float | None = None
    min_ms: float | None = None
    iqr_ms: float | None = None
    gflops: float | None = None
    kv_gbytes_per_s: float | None = None
    percent_of_peak: float | None = None
    torch_form: str | None = None
    torch_median_ms: float | None = None
    torch_min_ms: float | None = None
    torch_iqr_ms: float | None = None
    ratio: float | None = None
    ratio_per_round: float | None = None
    plain_form: str | None = None
    plain_median_ms: float | None = None
    plain_ratio: float | None = None
    max_error: float | None = None
    allowed_error: float | None = None
    peak_bytes: int | None = None
    torch_peak_bytes: int | None = None
    eager_peak_bytes: int | None = None
    arch: str | None = None
    bound_by: str | None = None
    peak: float | None = None

    @property
    def section(self) -> str:
        """Tables of a result are by this."""
        return self.phase

    @property
    def case(self) -> Case:
        """The problem of this row."""
        names = [f.name for f in dataclasses.fields(Case)]
        return Case(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class Result:
    """A row and the samples behind it, in milliseconds per call, by name of the form."""

    row: Any  # Row, or that of another benchmark
    samples_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


def row_without_times(case: Case, status: str, note: str) -> Row:
    """Return the row of a case that was skipped or failed."""
    return Row(**dataclasses.asdict(case), status=status, note=note)


def best_form(samples: Mapping[str, tuple[float, ...]]) -> str | None:
    """Return the torch form with the smallest median; None if only ours was timed."""
    forms = [name for name in samples if name != "xeflash"]
    return min(forms, key=lambda name: summarize(samples[name]).median, default=None)


def row_of_samples(
    case: Case,
    samples_ms: Mapping[str, tuple[float, ...]],
    first_call_ms: float,
    errors: tuple[float, float],
) -> Row:
    """Return the row of a case that was timed; the samples of ours are under "xeflash"."""
    ours = samples_ms["xeflash"]
    mine = summarize(ours)
    row = Row(
        **dataclasses.asdict(case),
        status="ok",
        rounds=mine.count,
        first_call_ms=first_call_ms,
        median_ms=mine.median,
        min_ms=mine.minimum,
        iqr_ms=mine.iqr,
        gflops=1e-6 * case.flops / mine.median,
        kv_gbytes_per_s=1e-6 * case.kv_bytes / mine.median,
        max_error=errors[0],
        allowed_error=errors[1],
    )
    form = best_form(samples_ms)
    if form is None:
        return row
    plain = next(name for name in samples_ms if name != "xeflash")
    best = summarize(samples_ms[form])
    return dataclasses.replace(
        row,
        torch_form=form,
        torch_median_ms=best.median,
        torch_min_ms=best.minimum,
        torch_iqr_ms=best.iqr,
        ratio=ratio_of_medians(samples_ms[form], ours),
        ratio_per_round=median_of_ratios(samples_ms[form], ours),
        plain_form=plain,
        plain_median_ms=summarize(samples_ms[plain]).median,
        plain_ratio=ratio_of_medians(samples_ms[plain], ours),
    )
