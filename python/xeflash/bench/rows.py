"""The result of one case as a flat row: the same fields in CSV, JSON and the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from xeflash.bench.cases import Case
from xeflash.bench.stats import median_of_ratios, ratio_of_medians, summarize

_Kind = TypeVar("_Kind")
Samples = Mapping[str, Sequence[float]]  # milliseconds per call, by name of the form; ours is "xeflash"


@dataclass(frozen=True)
class Timed:
    """What rows begin with, after the fields of their case.

    `status` is "ok", "failed" (wrong result or an error; `note` says which) or "skipped".
    Times are milliseconds per call; numbers that were not measured are None.
    """

    status: str = "ok"
    note: str = ""
    rounds: int | None = None
    first_call_ms: float | None = None
    median_ms: float | None = None
    min_ms: float | None = None
    iqr_ms: float | None = None


@dataclass(frozen=True)
class Row(Timed, Case):
    """One case, our time, torch's fastest form, torch's plain form, and the check.

    `arch` is that of the kernel's code, and `peak` (GFLOP/s or GB/s) what the row is held to, see limits.Limit. Peaks
    of memory are those of a training step: ours, that of torch's fastest form, and that of attention that keeps all
    scores. `threads` are those of the kernel that scores, and what they are of those of the device; `partial_bytes` is
    what splits of the keys leave to be merged. Rows of gradients do not have them.
    """

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
    threads: int | None = None
    percent_of_device: float | None = None
    splits: int | None = None
    partial_bytes: int | None = None

    @property
    def section(self) -> str:
        """Tables of a result are by this."""
        return self.phase


@dataclass(frozen=True)
class Result:
    """A row and the samples behind it, in milliseconds per call, by name of the form."""

    row: Any  # Row, or that of another benchmark
    samples_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


def case_of(kind: type[_Kind], row: Any) -> _Kind:
    """Return the problem of a row, which has all its fields."""
    return kind(**{x.name: getattr(row, x.name) for x in dataclasses.fields(kind)})  # type: ignore[arg-type]


def times_of(samples: Sequence[float], prefix: str = "", unit: str = "ms") -> dict[str, Any]:
    """Return the fields of a form's times."""
    found, scale = summarize(samples), {"ms": 1.0, "us": 1e3}[unit]
    values = {"median": found.median, "min": found.minimum, "iqr": found.iqr}
    return {f"{prefix}{name}_{unit}": scale * value for name, value in values.items()}


def fastest(samples: Samples, forms: Sequence[str]) -> str | None:
    """Return the form with the smallest median, None of none."""
    return min(forms, key=lambda name: summarize(samples[name]).median, default=None)


def beside_torch(samples: Samples, form: str, unit: str = "ms") -> dict[str, Any]:
    """Return the fields of torch's fastest form."""
    return {
        "torch_form": form,
        **times_of(samples[form], "torch_", unit),
        "ratio": ratio_of_medians(samples[form], samples["xeflash"]),
        "ratio_per_round": median_of_ratios(samples[form], samples["xeflash"]),
    }


def beside_plain(samples: Samples, form: str, unit: str = "ms") -> dict[str, Any]:
    """Return the fields of the form that a user writes first."""
    return {
        f"plain_median_{unit}": times_of(samples[form], unit=unit)[f"median_{unit}"],
        "plain_ratio": ratio_of_medians(samples[form], samples["xeflash"]),
    }


def with_samples(row: Row, samples: Samples) -> Row:
    """Return the row of a case with its times."""
    row = dataclasses.replace(row, rounds=len(samples["xeflash"]), **times_of(samples["xeflash"]))
    assert row.median_ms is not None
    row = dataclasses.replace(
        row, gflops=1e-6 * row.flops / row.median_ms, kv_gbytes_per_s=1e-6 * row.kv_bytes / row.median_ms
    )
    names = [name for name in samples if name != "xeflash"]
    form = fastest(samples, names)
    if form is None:
        return row
    plain = beside_plain(samples, names[0])
    return dataclasses.replace(row, plain_form=names[0], **plain, **beside_torch(samples, form))
