"""Medians and spread of samples, and ratios of two interleaved series."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """Five numbers of a series; `iqr` is the distance of the quartiles."""

    median: float
    minimum: float
    quartile_1: float
    quartile_3: float
    count: int

    @property
    def iqr(self) -> float:
        """Returns the spread of the middle half."""
        return self.quartile_3 - self.quartile_1


def quantile(ordered: Sequence[float], fraction: float) -> float:
    """Returns the value at `fraction` of the sorted series, interpolated linearly."""
    place = fraction * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def summarize(samples: Sequence[float]) -> Summary:
    """Returns the summary of at least one sample."""
    if not samples:
        raise ValueError("summarize: samples must not be empty")
    ordered = sorted(samples)
    return Summary(
        median=statistics.median(ordered),
        minimum=ordered[0],
        quartile_1=quantile(ordered, 0.25),
        quartile_3=quantile(ordered, 0.75),
        count=len(ordered),
    )


def ratio_of_medians(slow: Sequence[float], fast: Sequence[float]) -> float:
    """Returns median(slow) / median(fast)."""
    return statistics.median(slow) / statistics.median(fast)


def ratios_of_rounds(slow: Sequence[float], fast: Sequence[float]) -> tuple[float, float, float]:
    """Returns the median, the lowest and the highest of slow / fast: both samples of a round saw the same load."""
    ratios = [a / b for a, b in zip(slow, fast, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)
