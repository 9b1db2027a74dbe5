"""The result of one cell in one implementation as a flat row: the same fields in CSV, JSON and the table."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xeflash.bench.limits import Peaks
from xeflash.bench.llm.cells import Cell, Implementation
from xeflash.bench.llm.generation import Generation
from xeflash.bench.rows import Result
from xeflash.bench.stats import quantile


@dataclass(frozen=True)
class LlmRow:
    """One cell in one implementation.

    `status` is "ok", "failed" (wrong or an error; `note` says which) or "skipped". Times are milliseconds; those of
    tokens are between one and the next, over all rounds; numbers that were not measured are None.
    """

    model: str
    layers: int | None
    dtype: str
    batch: int
    beams: int
    context: int
    new_tokens: int
    implementation: str
    status: str
    note: str = ""
    weights: str = "same"
    rounds: int | None = None
    ttft_ms: float | None = None
    tpot_mean_ms: float | None = None
    tpot_median_ms: float | None = None
    tpot_p90_ms: float | None = None
    tpot_p99_ms: float | None = None
    total_ms: float | None = None
    tokens_per_s: float | None = None
    ratio: float | None = None
    attention_percent: float | None = None
    attention_ms: float | None = None
    kv_bytes: int | None = None
    kv_gbytes_per_s: float | None = None
    percent_of_peak: float | None = None
    copied_bytes: int | None = None
    peak_bytes: int | None = None
    # On a simulated GPU, of one token instead of times:
    instructions: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    launches: int | None = None
    bound_by: str | None = None

    @property
    def label(self) -> str:
        """Short name for messages."""
        quantised = "" if self.weights == "same" else f" {self.weights}"
        return f"{self.model} {self.dtype}{quantised} B{self.batch}x{self.beams} {self.context} {self.implementation}"

    @property
    def section(self) -> str:
        """Tables of a result are by this."""
        return "counts" if self.instructions is not None else "decode"


@dataclass(frozen=True)
class Shares:
    """What the instruments found, of one token."""

    attention_seconds: float
    total_seconds: float
    copied_bytes: int


def _base(cell: Cell, implementation: Implementation, status: str) -> LlmRow:
    return LlmRow(**dataclasses.asdict(cell), implementation=implementation.name, status=status)


def row_without_times(cell: Cell, implementation: Implementation, status: str, note: str) -> LlmRow:
    """Return the row of what was skipped or failed."""
    return dataclasses.replace(_base(cell, implementation, status), note=note)


def result_of(
    cell: Cell, implementation: Implementation, rounds: Sequence[Generation], shares: Shares, kv_bytes: int
) -> Result:
    """Return the result of what was timed."""
    steps = sorted(1e3 * step for generation in rounds for step in generation.steps)
    median = statistics.median(steps)
    share = shares.attention_seconds / shares.total_seconds
    attention_ms = share * median
    peaks = [generation.peak_bytes for generation in rounds if generation.peak_bytes is not None]
    row = dataclasses.replace(
        _base(cell, implementation, "ok"),
        rounds=len(rounds),
        ttft_ms=1e3 * statistics.median(generation.first for generation in rounds),
        tpot_mean_ms=statistics.fmean(steps),
        tpot_median_ms=median,
        tpot_p90_ms=quantile(steps, 0.9),
        tpot_p99_ms=quantile(steps, 0.99),
        total_ms=1e3 * statistics.median(generation.total for generation in rounds),
        tokens_per_s=1e3 * cell.batch / median,
        attention_percent=100 * share,
        attention_ms=attention_ms,
        kv_bytes=kv_bytes,
        kv_gbytes_per_s=1e-6 * kv_bytes / attention_ms if attention_ms else None,
        copied_bytes=shares.copied_bytes,
        peak_bytes=max(peaks, default=None),
    )
    samples = {f"round {i}": tuple(1e3 * step for step in rounds[i].steps) for i in range(len(rounds))}
    return Result(row, samples)


def with_ratios(results: Sequence[Result], peaks: Peaks) -> list[Result]:
    """Return the results with tokens/s over those of sdpa/dynamic, and % of what reading is held to, filled in."""
    cell_fields = [field.name for field in dataclasses.fields(Cell)]

    def cell_of(row: LlmRow) -> tuple[object, ...]:
        return tuple(getattr(row, name) for name in cell_fields)

    plain: Mapping[tuple[object, ...], float] = {
        cell_of(result.row): result.row.tokens_per_s
        for result in results
        if result.row.implementation == "sdpa/dynamic" and result.row.tokens_per_s
    }

    def fill(row: LlmRow) -> LlmRow:
        base = plain.get(cell_of(row))
        row = dataclasses.replace(row, ratio=row.tokens_per_s / base if row.tokens_per_s and base else None)
        if not row.attention_ms or not row.kv_bytes:
            return row
        of_reading = ("", "")  # no arithmetic is measured
        weights_too = math.inf  # they drive K and V out of a cache
        limit = peaks.limit(of_reading, 0, row.kv_bytes, 1e-3 * row.attention_ms, weights_too)
        if limit is None:
            return row
        return dataclasses.replace(row, percent_of_peak=limit.percent_of_peak, bound_by=limit.bound_by)

    return [dataclasses.replace(result, row=fill(result.row)) for result in results]
