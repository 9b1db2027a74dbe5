"""Numbers as words, for tables."""

from __future__ import annotations

import math
from typing import Any


def number(value: float | None, digits: int = 3) -> str:
    """Returns a number with that many significant digits, never in powers of ten; "-" for none."""
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def times(median: float | None, minimum: float | None, iqr: float | None) -> str:
    """Returns a median (minimum, interquartile range)."""
    return "-" if median is None else f"{number(median)} ({number(minimum)}, {number(iqr, 2)})"


def ratio(value: float | None) -> str:
    """Returns 1.50x."""
    return "-" if value is None else f"{value:.2f}x"


def per_round(row: Any, field: str = "ratio") -> str:
    """Returns 1.50x (1.40 to 1.60): the ratio of a row, and the lowest and highest of a round if there are several."""
    text = ratio(getattr(row, field))
    return text if text == "-" or row.rounds == 1 else f"{text} ({number(row.ratio_low)} to {number(row.ratio_high)})"


def timings(row: Any, prefix: str = "", unit: str = "ms") -> str:
    """Returns the times of a row; of ours, which have no prefix, why there are none."""
    if not prefix and row.status != "ok":
        return f"{row.status}: {row.note}"
    return times(*(getattr(row, f"{prefix}{name}_{unit}") for name in ("median", "min", "iqr")))


def errors(row: Any) -> str:
    """Returns a row's largest error and what is allowed."""
    return "-" if row.max_error is None else f"{row.max_error:.1e} / {row.allowed_error:.1e}"


def percent(value: float | None) -> str:
    """Returns 50 %."""
    return "-" if value is None else f"{value:.0f} %"


def whole(value: int | None) -> str:
    """Returns a count."""
    return "-" if value is None else str(value)


def device_share(value: float | None) -> str:
    """Returns the percent of a device's threads: 15 %, or 250 %, 3 waves."""
    return percent(value) + (f", {math.ceil(value / 100)} waves" if value is not None and value > 100 else "")


def size(value: int | None) -> str:
    """Returns bytes in the unit that fits."""
    if value is None:
        return "-"
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return f"{number(value / factor)} {unit}"
    return f"{value} B"
