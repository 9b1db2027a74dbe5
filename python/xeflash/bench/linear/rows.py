"""The result of one case as a flat row, and its tables: one for each kind of weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from xeflash.bench.formats import Layout
from xeflash.bench.limits import Beside, Peaks, instruction, words
from xeflash.bench.linear.cases import Case
from xeflash.bench.numbers import number, percent, ratio, size, times
from xeflash.bench.rows import Result
from xeflash.bench.stats import median_of_ratios, ratio_of_medians, summarize


@dataclass(frozen=True)
class LinearRow:
    """One case, our time, torch's, and the check.

    `status` is "ok", "failed" (wrong result or an error; `note` says which) or "skipped". Times are microseconds per
    call. `bytes` are those of the weight, its scales and zeros; numbers that were not measured are None.
    """

    model: str
    layer: str
    outputs: int
    inputs: int
    dtype: str
    weights: str
    rows: int
    status: str
    note: str = ""
    rounds: int | None = None
    bytes: int | None = None
    copies: int | None = None
    first_call_ms: float | None = None
    median_us: float | None = None
    min_us: float | None = None
    iqr_us: float | None = None
    gbytes_per_s: float | None = None
    percent_of_peak: float | None = None
    torch_form: str | None = None
    torch_median_us: float | None = None
    torch_min_us: float | None = None
    torch_iqr_us: float | None = None
    ratio: float | None = None
    ratio_per_round: float | None = None
    plain_median_us: float | None = None
    plain_ratio: float | None = None
    max_error: float | None = None
    allowed_error: float | None = None
    arch: str | None = None
    bound_by: str | None = None
    peak: float | None = None

    @property
    def label(self) -> str:
        """Short name for messages."""
        names = [field.name for field in dataclasses.fields(Case)]
        return Case(**{name: getattr(self, name) for name in names}).label

    @property
    def section(self) -> str:
        """Tables of a result are by this."""
        return self.weights


def row_without_times(case: Case, status: str, note: str) -> LinearRow:
    """Return the row of a case that was skipped or failed."""
    return LinearRow(**dataclasses.asdict(case), status=status, note=note)


def row_of_samples(row: LinearRow, samples_ms: Mapping[str, Sequence[float]], bytes_read: int) -> LinearRow:
    """Return the row with the times; torch's form is the fastest one of the same weights, the plain one F.linear."""
    ours = samples_ms["xeflash"]
    mine = summarize(ours)
    row = dataclasses.replace(
        row,
        rounds=mine.count,
        bytes=bytes_read,
        median_us=1e3 * mine.median,
        min_us=1e3 * mine.minimum,
        iqr_us=1e3 * mine.iqr,
        gbytes_per_s=1e-6 * bytes_read / mine.median,
    )
    if plain := samples_ms.get("F.linear"):
        row = dataclasses.replace(
            row, plain_median_us=1e3 * summarize(plain).median, plain_ratio=ratio_of_medians(plain, ours)
        )
    same = [name for name in samples_ms if name != "xeflash" and (name != "F.linear" or row.weights == "same")]
    if not same:
        return row
    form = min(same, key=lambda name: summarize(samples_ms[name]).median)
    best = summarize(samples_ms[form])
    return dataclasses.replace(
        row,
        torch_form=form,
        torch_median_us=1e3 * best.median,
        torch_min_us=1e3 * best.minimum,
        torch_iqr_us=1e3 * best.iqr,
        ratio=ratio_of_medians(samples_ms[form], ours),
        ratio_per_round=median_of_ratios(samples_ms[form], ours),
    )


def with_peaks(results: Sequence[Result], beside: Sequence[Peaks]) -> list[Result]:
    """Return the results with the peak that each is held to filled in, of those that were measured beside it."""

    peaks = Beside(beside)

    def fill(i: int, row: LinearRow) -> LinearRow:
        if row.arch is None or row.median_us is None or row.bytes is None:
            return row
        flops = 2.0 * row.rows * row.outputs * row.inputs
        touched = row.bytes * (row.copies or 1)
        by = instruction(row.arch, row.dtype)
        limit = peaks.limit(i, by, flops, row.bytes, 1e-6 * row.median_us, touched)
        return dataclasses.replace(row, **limit._asdict()) if limit else row

    return [dataclasses.replace(result, row=fill(i, result.row)) for i, result in enumerate(results)]


def _errors(row: LinearRow) -> str:
    return "-" if row.max_error is None else f"{row.max_error:.1e} / {row.allowed_error:.1e}"


_COLUMNS: dict[str, Callable[[LinearRow], str]] = {
    "model": lambda r: r.model,
    "dtype": lambda r: r.dtype,
    "layer": lambda r: r.layer,
    "N x K": lambda r: f"{r.outputs} x {r.inputs}",
    "weight": lambda r: size(r.bytes),
    "rows": lambda r: str(r.rows),
    "arch": lambda r: r.arch or "-",
    "xeflash us": lambda r: times(r.median_us, r.min_us, r.iqr_us) if r.status == "ok" else f"{r.status}: {r.note}",
    "GB/s": lambda r: number(r.gbytes_per_s),
    "% of peak": lambda r: percent(r.percent_of_peak),
    "bound by": lambda r: words(r.bound_by, r.peak),
    "torch form": lambda r: r.torch_form or "-",
    "torch us": lambda r: times(r.torch_median_us, r.torch_min_us, r.torch_iqr_us),
    "ratio": lambda r: ratio(r.ratio),
    "per round": lambda r: ratio(r.ratio_per_round),
    "F.linear us": lambda r: number(r.plain_median_us),
    "of F.linear": lambda r: ratio(r.plain_ratio),
    "error / allowed": _errors,
}
_LEGEND = (
    "times: median (minimum, interquartile range); GB/s: of the weight and its scales; ratio: the time of torch's "
    "fastest form with such weights / ours; of F.linear: the time of F.linear with 16 or 32 bits / ours"
)
LAYOUT = Layout(
    LinearRow,
    dict.fromkeys(("same", "int8", "int4"), _COLUMNS),
    ("model", "dtype", "layer", "rows", "arch"),
    ("error / allowed", "per round", "torch form", "weight", "F.linear us", "bound by", "% of peak"),
    _LEGEND,
)
