"""The tolerance of results against the reference: one rule for `xeflash selftest` and for the tests.

    max |got - want|  <=  2 e + ulp(max |want|) / 2,   e = max(max |other - want|, ulp32(size), scores)

`want` is the float64 reference, `other` the result of somebody else in the same type, ulp the spacing of the type's
numbers; the last term is the rounding of the result. e is at least what roundings to fp32 make, as `other` may be lucky
with few values: that of a sum, ulp32(size), where size is the largest sum before cancellation, P |V| in fp32 and m +
log l of an LSE, or max |want| where that is not known; and those of the scores. What is not finite must be equal, in
the same places. An LSE, fp32 in any case, may also differ by the rounding of a probability just below 1 to the type of
q. On a GPU exp2 and log2 are the hardware's, right to 2^-21 (of the result; log2 near 1: absolutely), 1/x to 2^-23; so
a softcap's 1 - 2 / (exp2 + 1) to 2^-22 + 2^-23.

Tests have scores of any size, so theirs are told: s = scale sum_i q_i k_i, where the sum and the scale are rounded, by
2^-24 each, so a score is known to d = 2^-23 of its size before cancellation, scale sum_i |q_i k_i|; softcap dampens
that, ALiBi, bias and score_mod may make it larger. O = sum_j P_j V_j and P_j = exp(s_j - LSE), so to first order O
moves by sum_j P_j d_j (V_j - O), and LSE by sum_j P_j d_j (a sink is a score, of a key whose V is 0); roundings of
different scores are independent: the terms add as squares.

Here `other` is the same formula in fp32, with probabilities and result rounded to the type, and scores are small. In
the tests it is PyTorch, whose luck is another on each CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from xeflash.selftest.reference import Features, Result, by_heads, formula, per_head, to_float64
from xeflash.selftest.values import Values, spacing

Array: TypeAlias = "np.ndarray[Any, Any]"

# (type, q, k, v, features) -> (out, LSE)
Other: TypeAlias = Callable[[str, Array, Array, Array, Features], tuple[Array, Array]]

Judge: TypeAlias = Callable[..., "list[Finding]"]  # a function like `judge`

GPU_MATH = 2.0**-21
SCORES = 2.0**-23  # how far a score may be off, of its size
LOST = 2.0**-94  # weights that may be lost: P is 2^-32 of them, as a normal float


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
        """Returns whether the error is within the limit."""
        return self.error <= self.limit

    @property
    def share(self) -> float:
        """Returns the share of the limit that the error takes."""
        return self.error / self.limit if self.limit > 0 else 0.0 if self.error == 0 else np.inf

    def __str__(self) -> str:
        """Returns a sentence for a report."""
        return (
            f"{self.what} at {list(self.index)}: got {self.got!r}, want {self.want!r}, error {self.error:.3g}, "
            f"limit {self.limit:.3g}{self.beyond}"
        )


def compare(what: str, got: Array, want: Array, limit: float | Array) -> Finding:
    """Finds the element that is furthest beyond its limit, or nearest to it."""
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
    """Returns the limit of this module's rule."""
    finite = np.isfinite(want)
    error = np.abs(other[finite] - want[finite])
    # If only the other result overflows, its error says nothing.
    error = np.max(error[np.isfinite(error)], initial=0.0)
    largest = _largest(want)
    return 2 * max(float(error), ulp(max(size, largest), "float32"), scores) + ulp(largest, dtype) / 2


def limits_of_math(softcap: float, size: float, keys: int) -> tuple[float, float]:
    """Returns what a GPU's functions add to the limits of an output of this size, and of an LSE over so many keys."""
    score = softcap * (2.0**-22 + 2.0**-23)  # 2 / (e + 1) moves by half as much as e
    out_limit = (GPU_MATH * (2 + 2**-2) + 2 * score) * size  # P, l, 1 / l
    return out_limit, float(GPU_MATH * (1 + max(1.0, np.log(keys + 1))) + score)  # l, log l


def limit_of_probability(dtype: str) -> float:
    """Returns the rounding of a probability just below 1, by which an LSE may also differ."""
    return ulp(0.99, dtype) / 2


def size_of_lse(want_lse: Array, keys: int) -> float:
    """Bounds the largest sum m + log l: 0 <= log l <= log keys, and a sink is one more."""
    return _largest(want_lse) + float(np.log(keys + 1))


def ulp(value: float, dtype: str) -> float:
    """Returns the spacing of a type's numbers at |value|."""
    return float(spacing(value, dtype))


def rounded_scores(r: Result, v: Any, sinks: Any = None) -> tuple[float, float]:
    """Returns how far the roundings of scores move an output, and an LSE.

    A sink is a score, too, of a key without a value.
    """
    v = per_head(to_float64(v), r.out.shape[1])
    with np.errstate(invalid="ignore", over="ignore"):
        d = np.where(r.softmax > 0, SCORES * r.size, 0.0)
        kept, p = r.kept * d, r.softmax * d
        lse_squares = np.sum(p**2, axis=-1)
        squares = np.matmul(kept**2, v**2) - 2 * r.out * np.matmul(kept * p, v)
        if sinks is not None:
            weight = np.maximum(0.0, 1 - np.sum(r.softmax, axis=-1))
            lse_squares = lse_squares + (weight * SCORES * np.abs(to_float64(sinks))[:, None]) ** 2
        out_squares = squares + r.out**2 * lse_squares[..., None]
        moved_out, moved_lse = (_largest(np.sqrt(np.maximum(x, 0))) for x in (out_squares, lse_squares))
    return moved_out, moved_lse


def by_the_book(dtype: str, q: Array, k: Array, v: Array, f: Features) -> tuple[Array, Array]:
    """Computes out and LSE in fp32 with the roundings of a correct kernel."""

    def rounded(x: Array) -> Array:
        return Values.of(x, dtype).numbers.astype(np.float32)

    found = formula(q, rounded(k), rounded(v), f, np.float32, rounded=rounded)
    return rounded(found.out), found.lse


def judge(
    what: str,
    dtype: str,
    qkv: tuple[Array, Array, Array],
    f: Features,
    out: Array,
    lse: Array | None = None,
    on_gpu: bool = False,
    other: Other = by_the_book,
    any_scores: bool = False,
    drawn: bool = False,
) -> list[Finding]:
    """Judges out and LSE of a type against the reference for q, k, v (B, H, S, D).

    Keys and values that are known better than q's dtype has them `other` gets rounded to it. `any_scores`: they need
    not be small. `drawn`: nobody has looked at the values, and one case of many thousands finds `other` at its
    luckiest: e is also at least what the roundings of P to 16 bits make if all go one way, 2^-9 or 2^-12 of P |V|, and
    a sum over n keys has 1 + sqrt(n) roundings.
    """
    parts = [_measured(dtype, *part, other, any_scores, drawn) for part in by_heads(*qkv, f)]
    results, sizes = zip(*parts, strict=True)
    by_other, lse_by_other, want, want_lse = (np.concatenate(x, axis=1) for x in zip(*results, strict=True))
    scores_of_out, scores_of_lse, size = (max(x) for x in zip(*sizes, strict=True))
    keys, sums = qkv[1].shape[2], 1.0
    if drawn:
        sums = 1.0 + keys**0.5
        scores_of_out = max(scores_of_out, size * limit_of_probability(dtype))
    math_of_out, math_of_lse = limits_of_math(f.softcap, size, keys) if on_gpu else (0.0, 0.0)
    lost = LOST * keys * _largest(qkv[2])
    limit = limit_of(want, by_other, dtype, size * sums, scores_of_out) + math_of_out + lost
    found = [compare(f"{what}out", out, want, limit)]
    if lse is not None:
        terms = size_of_lse(want_lse, keys) * sums
        limit = limit_of(want_lse, lse_by_other, "float32", terms, scores_of_lse) + limit_of_probability(dtype)
        found.append(compare(f"{what}lse", lse, want_lse, limit + math_of_lse))
    return found


def _measured(
    dtype: str, q: Array, k: Array, v: Array, f: Features, other: Other, any_scores: bool, drawn: bool
) -> tuple[tuple[Array, ...], tuple[float, float, float]]:
    """Computes out and LSE by `other` and by the reference, how far roundings of scores move them, and out's size."""
    by_other, r = other(dtype, q, k, v, f), formula(q, k, v, f)
    moved = rounded_scores(r, v, f.sinks) if any_scores else (0.0, 0.0)
    sized = r.out.size and (drawn or dtype == "float32")
    size = _largest(np.matmul(r.kept, per_head(np.abs(v), q.shape[1]))) if sized else 0.0
    return (*by_other, r.out, r.lse), (*moved, size)


def _largest(x: Array) -> float:
    return float(np.max(np.abs(x[np.isfinite(x)]), initial=0.0))
