"""How far a result may be from the reference: the one rule, of `xeflash selftest` and of the tests.

    max |got - want|  <=  2 e + ulp(max |want|) / 2,   e = max(max |other - want|, ulp32(size), scores)

`want` is the float64 reference, `other` the result of somebody else in the same type, ulp the spacing of the type's
numbers; the last term is the rounding of the result. e is at least what roundings to fp32 make, as `other` may be lucky
with few values: that of a sum, ulp32(size), where size is the largest sum before cancellation, or max |want| where that
is not known; and those of the scores, which tests/tolerance.py tells. What is not finite must be equal, in the same
places. An LSE, fp32 in any case, may also differ by the rounding of a probability just below 1 to the type of q. On a
GPU exp2 and log2 are the hardware's, right to 2^-21 (of the result; log2 near 1: absolutely), 1/x to 2^-23; so a
softcap's 1 - 2 / (exp2 + 1) to 2^-22 + 2^-23.

Here `other` is the same formula in fp32, with probabilities and result rounded to the type, and scores are small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from xeflash.selftest.reference import Features, attention_reference
from xeflash.selftest.values import Values, spacing

Array: TypeAlias = "np.ndarray[Any, Any]"

GPU_MATH = 2.0**-21


@dataclass(frozen=True)
class Finding:
    """The worst element of a result."""

    what: str
    index: tuple[int, ...]
    got: float
    want: float
    error: float
    limit: float
    beyond: str = ""

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
            f"limit {self.limit:.3g}{self.beyond}"
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
    beyond = f"; {int(np.sum(error > limits))} of {error.size} beyond it"
    return Finding(
        what, index, float(got[worst]), float(want[worst]), float(error[worst]), float(limits[worst]), beyond
    )


def limit_of(want: Array, other: Array, dtype: str, size: float = 0.0, scores: float = 0.0) -> float:
    """The rule above."""
    finite = np.isfinite(want)
    error = np.abs(other[finite] - want[finite])
    # Where only the other one overflows, its error says nothing.
    error = np.max(error[np.isfinite(error)], initial=0.0)
    largest = _largest(want)
    return 2 * max(float(error), ulp(max(size, largest), "float32"), scores) + ulp(largest, dtype) / 2


def limits_of_math(softcap: float, size: float, keys: int) -> tuple[float, float]:
    """What a GPU's functions add for an output of this size, and for an LSE over so many keys."""
    score = softcap * (2.0**-22 + 2.0**-23)  # 2 / (e + 1) moves by half as much as e
    of_out = (GPU_MATH * (2 + 2**-2) + 2 * score) * size  # P, l, 1 / l
    return of_out, float(GPU_MATH * (1 + max(1.0, np.log(keys + 1))) + score)  # l, log l


def limit_of_probability(dtype: str) -> float:
    """What an LSE may also differ by."""
    return ulp(0.99, dtype) / 2


def size_of_lse(want_lse: Array, keys: int) -> float:
    """The largest sum m + log l: 0 <= log l <= log keys, and a sink is one more."""
    return _largest(want_lse) + float(np.log(keys + 1))


def ulp(value: float, dtype: str) -> float:
    """The spacing of a type's numbers at |value|."""
    return float(spacing(value, dtype))


def judge(
    what: str, dtype: str, q: Array, k: Array, v: Array, f: Features, got: Array, lse: Array, on_gpu: bool
) -> list[Finding]:
    """out and LSE of a type against the reference for q, k, v (B, H, S, D)."""

    def rounded(x: Array) -> Array:
        return Values.of(x, dtype).numbers.astype(np.float32)

    keys = k.shape[2]
    want, want_lse = attention_reference(q, k, v, f)
    other, other_lse = attention_reference(q, rounded(k), rounded(v), f, np.float32, rounded)
    size = _largest(attention_reference(q, k, np.abs(v), f)[0])
    of_out, of_lse = limits_of_math(f.softcap, size, keys) if on_gpu else (0.0, 0.0)
    of_lse += limit_of_probability(dtype) + limit_of(want_lse, other_lse, "float32", size_of_lse(want_lse, keys))
    return [
        compare(f"{what}out", got, want, limit_of(want, other, dtype, size) + of_out),
        compare(f"{what}lse", lse, want_lse, of_lse),
    ]


def _largest(x: Array) -> float:
    return float(np.max(np.abs(x[np.isfinite(x)]), initial=0.0))
