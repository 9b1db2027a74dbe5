"""How far a result may be from the reference.

    max |got - want|  <=  2 e + ulp(max |want|) / 2,   e = max(max |other - want|, ulp32(size))

`other` is the same formula in fp32 with probabilities and result rounded to the type, ulp the spacing of the type's
numbers, size the largest sum before cancellation. On a GPU exp2 and log2 are the hardware's, right to 2^-21, 1/x to
2^-23. An LSE may also differ by the rounding of a probability just below 1. What is not finite must be equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from xeflash.selftest.reference import Features, attention_reference
from xeflash.selftest.values import Values

Array: TypeAlias = "np.ndarray[Any, Any]"

_GPU_MATH = 2.0**-21


@dataclass(frozen=True)
class Finding:
    """The worst element of a result."""

    what: str
    index: tuple[int, ...]
    got: float
    want: float
    error: float
    limit: float

    @property
    def ok(self) -> bool:
        """Whether the limit is kept."""
        return self.error <= self.limit

    @property
    def share(self) -> float:
        """Of the limit that the error takes."""
        return self.error / self.limit if self.limit > 0 else 0.0 if self.error == 0 else np.inf

    def __str__(self) -> str:
        """Return a sentence for a report."""
        return (
            f"{self.what} at {list(self.index)}: got {self.got!r}, want {self.want!r}, error {self.error:.3g}, "
            f"limit {self.limit:.3g}"
        )


def compare(what: str, got: Array, want: Array, limit: float | Array) -> Finding:
    """The element that is furthest beyond its limit, or nearest to it."""
    if got.shape != want.shape:
        return Finding(f"{what} of shape {list(got.shape)}, not {list(want.shape)},", (), np.nan, np.nan, np.inf, 0.0)
    if got.size == 0:
        return Finding(what, (), 0.0, 0.0, 0.0, 0.0)
    with np.errstate(invalid="ignore"):
        error = np.where((got == want) | (np.isnan(got) & np.isnan(want)), 0.0, np.abs(got - want))
    error = np.where(np.isnan(error), np.inf, error)
    limits = np.broadcast_to(np.asarray(limit, np.float64), error.shape)
    worst = np.unravel_index(np.argmax(error - limits), error.shape)
    index = tuple(int(i) for i in worst)
    return Finding(what, index, float(got[worst]), float(want[worst]), float(error[worst]), float(limits[worst]))


def judge(
    what: str, dtype: str, q: Array, k: Array, v: Array, f: Features, got: Array, lse: Array, on_gpu: bool
) -> list[Finding]:
    """out and LSE of a type against the reference for q, k, v (B, H, S, D)."""

    def rounded(x: Array) -> Array:
        return Values.of(x, dtype).numbers.astype(np.float32)

    want, want_lse = attention_reference(q, k, v, f)
    other, other_lse = attention_reference(q, rounded(k), rounded(v), f, np.float32, rounded)
    size = _largest(attention_reference(q, k, np.abs(v), f)[0])
    terms = _largest(want_lse) + float(np.log(k.shape[2] + 1))
    of_out, of_lse = _gpu_math(f, size, terms) if on_gpu else (0.0, 0.0)
    of_lse += _spacing(0.99, dtype) / 2
    return [
        compare(f"{what}out", got, want, _limit(want, other, dtype, size) + of_out),
        compare(f"{what}lse", lse, want_lse, _limit(want_lse, other_lse, "float32", terms) + of_lse),
    ]


def _gpu_math(f: Features, size: float, terms: float) -> tuple[float, float]:
    """What the hardware's functions add for an output of this size, and for an LSE."""
    score = f.softcap * (2.0**-22 + 2.0**-23)
    return (_GPU_MATH * (2 + 2**-2) + 2 * score) * size, _GPU_MATH * (1 + max(1.0, terms)) + score


def _limit(want: Array, other: Array, dtype: str, size: float) -> float:
    finite = np.isfinite(want)
    error = float(np.max(np.abs(other[finite] - want[finite]), initial=0.0))
    largest = _largest(want)
    return 2 * max(error, _spacing(max(size, largest), "float32")) + _spacing(largest, dtype) / 2


def _largest(x: Array) -> float:
    return float(np.max(np.abs(x[np.isfinite(x)]), initial=0.0))


def _spacing(value: float, dtype: str) -> float:
    return float(Values.of([value], dtype).spacing()[0])
