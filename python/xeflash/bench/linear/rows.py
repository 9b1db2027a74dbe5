"""The result of one case as a flat row, and its tables: one for each kind of weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xeflash.bench import measure
from xeflash.bench.formats import Layout
from xeflash.bench.limits import Peaks, instruction, words
from xeflash.bench.linear.cases import Case
from xeflash.bench.measure import Work
from xeflash.bench.numbers import errors, number, percent, ratio, size, timings
from xeflash.bench.rows import Result, Samples, beside_plain, beside_torch, fastest, times_of


@dataclass(frozen=True)
class LinearRow(Case):
    """One case, our time, torch's, and the check.

    `status` is "ok", "failed" (wrong result or an error; `note` says which) or "skipped". Times are microseconds per
    call. `bytes` are those of the weight, its scales and zeros; numbers that were not measured are None.
    """

    status: str = "ok"
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
    def section(self) -> str:
        """Tables of a result are by this."""
        return self.weights


def with_samples(row: LinearRow, samples: Samples, bytes_read: int) -> LinearRow:
    """Return the row with the times; torch's form is the fastest one of the same weights, the plain one F.linear."""
    found: dict[str, Any] = {"rounds": len(samples["xeflash"]), "bytes": bytes_read}
    found |= times_of(samples["xeflash"], unit="us")
    found["gbytes_per_s"] = 1e-3 * bytes_read / found["median_us"]
    if "F.linear" in samples:
        found |= beside_plain(samples, "F.linear", "us")
    same = [name for name in samples if name != "xeflash" and (name != "F.linear" or row.weights == "same")]
    if form := fastest(samples, same):
        found |= beside_torch(samples, form, "us")
    return dataclasses.replace(row, **found)


def with_peaks(results: Sequence[Result], beside: Sequence[Peaks]) -> list[Result]:
    """Return the results with the peak that each is held to filled in, of those that were measured beside it."""

    def work(row: LinearRow) -> Work | None:
        if row.arch is None or row.median_us is None or row.bytes is None:
            return None
        flops = 2.0 * row.rows * row.outputs * row.inputs
        touched = row.bytes * (row.copies or 1)
        return Work(instruction(row.arch, row.dtype), flops, row.bytes, 1e-6 * row.median_us, touched)

    return measure.with_peaks(results, beside, work)


_COLUMNS: dict[str, Callable[[LinearRow], str]] = {
    "model": lambda r: r.model,
    "dtype": lambda r: r.dtype,
    "layer": lambda r: r.layer,
    "N x K": lambda r: f"{r.outputs} x {r.inputs}",
    "weight": lambda r: size(r.bytes),
    "rows": lambda r: str(r.rows),
    "arch": lambda r: r.arch or "-",
    "xeflash us": lambda r: timings(r, unit="us"),
    "GB/s": lambda r: number(r.gbytes_per_s),
    "% of peak": lambda r: percent(r.percent_of_peak),
    "bound by": lambda r: words(r.bound_by, r.peak),
    "torch form": lambda r: r.torch_form or "-",
    "torch us": lambda r: timings(r, "torch_", "us"),
    "ratio": lambda r: ratio(r.ratio),
    "per round": lambda r: ratio(r.ratio_per_round),
    "F.linear us": lambda r: number(r.plain_median_us),
    "of F.linear": lambda r: ratio(r.plain_ratio),
    "error / allowed": errors,
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
