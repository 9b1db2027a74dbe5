"""How far a result may be from the reference: the one rule of all tests.

    max |got - want|  <=  2 e + ulp(max |want|) / 2,   e = max(max |torch - want|, ulp32(size), scores)

`want` is the float64 reference, `torch` PyTorch's result in the same dtype, ulp the spacing of the dtype's numbers; the
last term is the rounding of the result. e is at least what roundings to fp32 make, as PyTorch may be lucky with few
values, and its luck is another on each CPU:
- that of a sum, ulp32(size), where size is the largest sum before cancellation: P |V|; of an LSE, m + log l, max |want|
  + log Sk, as 0 <= log l <= log Sk; or max |want| where neither is known;
- those of the scores: s = scale sum_i q_i k_i, where the sum and the scale are rounded, by 2^-24 each, so a score is
  known to d = 2^-23 of its size before cancellation, scale sum_i |q_i k_i|; softcap dampens that, ALiBi, bias and
  score_mod may make it larger. O = sum_j P_j V_j and P_j = exp(s_j - LSE), so to first order O moves by
  sum_j P_j d_j (V_j - O), and LSE by sum_j P_j d_j (a sink is a score, of a key whose V is 0); roundings of different
  scores are independent: the terms add as squares.
What is not finite must be equal, in the same places.
An LSE, fp32 in any case, may also differ by the rounding of a probability just below 1 to the dtype of q.
On a GPU exp2 and log2 are the hardware's, right to 2^-21 (of the result; log2 near 1: absolutely), 1/x to 2^-23; so a
softcap's 1 - 2 / (exp2 + 1) to 2^-22 + 2^-23.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from reference import Features, Weights, times_values, to_float64, torch_attention, weights_of

MANTISSA_BITS = {"float32": 23, "float16": 10, "bfloat16": 7}
GPU_MATH = 2.0**-21
SCORES = 2.0**-23  # how far a score may be off, of its size
MIN_EXPONENT = {"float32": -126, "float16": -14, "bfloat16": -126}


def dtype_name(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


def ulp(value: float, dtype: str) -> float:
    """The spacing of a dtype's numbers at |value|."""
    exponent = MIN_EXPONENT[dtype] if value == 0 else max(np.frexp(abs(value))[1] - 1, MIN_EXPONENT[dtype])
    return float(2.0 ** (exponent - MANTISSA_BITS[dtype]))


def limit_of(want: np.ndarray, torch_result: np.ndarray, dtype: str, size: float = 0.0, scores: float = 0.0) -> float:
    finite = np.isfinite(want)
    if not finite.any():
        return 0.0
    error = np.abs(torch_result[finite] - want[finite])
    # Where only PyTorch overflows, its error says nothing.
    error = float(np.max(error[np.isfinite(error)], initial=0.0))
    largest = float(np.max(np.abs(want[finite])))
    return 2 * max(error, ulp(max(size, largest), "float32"), scores) + ulp(largest, dtype) / 2


def assert_close(
    case: str,
    got: Any,
    want: np.ndarray,
    torch_result: np.ndarray,
    size: float = 0.0,
    scores: float = 0.0,
    more: float = 0.0,
) -> None:
    """Fails with index, got, want and limit of the worst element; `more` is added to the limit."""
    dtype = dtype_name(got)
    got = to_float64(got)
    assert got.shape == want.shape, f"{case}: shape {got.shape}, want {want.shape}"
    if got.size == 0:
        return
    limit = limit_of(want, torch_result, dtype, size, scores) + more
    with np.errstate(invalid="ignore"):
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        error = np.where(same, 0.0, np.abs(got - want))
    error = np.where(np.isnan(error), np.inf, error)
    worst = np.unravel_index(np.argmax(error), error.shape)
    index = tuple(int(i) for i in worst)
    assert error[worst] <= limit, (
        f"{case}: index {index}, got {got[worst]!r}, want {want[worst]!r}, "
        f"error {error[worst]:.3g}, limit {limit:.3g}; {int(np.sum(error > limit))} of {error.size} beyond it"
    )


def gpu_math(features: Features, size: float, keys: int) -> tuple[float, float]:
    """What the hardware's functions add to the limit of an output of this size, and of an LSE over so many keys."""
    score = features.softcap * (2.0**-22 + 2.0**-23)  # 2 / (e + 1) moves by half as much as e
    of_out = (GPU_MATH * (2 + 2**-2) + 2 * score) * size  # P, l, 1 / l
    return of_out, float(GPU_MATH * (1 + max(1.0, np.log(keys + 1))) + score)  # l, log l


def rounded_scores(weights: Weights, v: torch.Tensor, out: np.ndarray, sinks: Any = None) -> tuple[float, float]:
    """What the roundings of scores move an output by, and an LSE. A sink is a score, too: of a key without a value."""
    with np.errstate(invalid="ignore", over="ignore"):
        d = np.where(weights.softmax > 0, SCORES * weights.size, 0.0)
        kept, p = weights.kept * d, weights.softmax * d
        of_lse = np.sum(p**2, axis=-1)
        squares = times_values(kept**2, v.double() ** 2) - 2 * out * times_values(kept * p, v)
        if sinks is not None:
            weight = np.maximum(0.0, 1 - np.sum(weights.softmax, axis=-1))
            of_lse = of_lse + (weight * SCORES * np.abs(to_float64(sinks))[:, None]) ** 2
        of_out = squares + out**2 * of_lse[..., None]
        of_lse, of_out = (np.sqrt(np.maximum(x, 0)) for x in (of_lse, of_out))
    return tuple(float(np.max(x[np.isfinite(x)], initial=0.0)) for x in (of_out, of_lse))


def check_attention(
    case: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    features: Features,
    out: Any,
    lse: Any = None,
    gpu: bool = False,
    drawn: bool = False,
) -> None:
    """out (B, H, Sq, Dv), and lse (B, H, Sq) if given, against the reference for q, k, v of (B, H, S, D).

    Keys and values that are known better than q's dtype has them PyTorch gets rounded to it. `drawn`: nobody has looked
    at the values, and one case of many thousands finds PyTorch at its luckiest: e is also at least what the roundings
    of P to 16 bits make if all go one way, 2^-9 or 2^-12 of P |V|, and a sum over n keys has 1 + sqrt(n) roundings.
    """
    weights = weights_of(q, k, features)
    want, want_lse = times_values(weights.kept, v), weights.lse
    by_torch, lse_by_torch = torch_attention(q, k.to(q.dtype), v.to(q.dtype), features)
    scores_of_out, scores_of_lse = rounded_scores(weights, v, want, features.sinks)
    assert dtype_name(out) == dtype_name(q), f"{case}: out is {out.dtype}, q is {q.dtype}"
    size, sums = 0.0, 1.0
    if want.size and (drawn or q.dtype == torch.float32):
        of_values = times_values(weights.kept, v.abs())
        size = float(np.max(of_values[np.isfinite(of_values)], initial=0.0))
    if drawn:
        sums = 1.0 + k.shape[2] ** 0.5
        scores_of_out = max(scores_of_out, size * 2.0 ** -(MANTISSA_BITS[dtype_name(q)] + 2))
    math_of_out, math_of_lse = gpu_math(features, size, k.shape[2]) if gpu else (0.0, 0.0)
    assert_close(f"{case} out", out, want, by_torch, size * sums, scores_of_out, math_of_out)
    if lse is not None:
        assert dtype_name(lse) == "float32", f"{case}: lse is {lse.dtype}"
        more = ulp(0.99, dtype_name(q)) / 2 + math_of_lse
        terms = float(np.max(np.abs(want_lse[np.isfinite(want_lse)]), initial=0.0)) + np.log(k.shape[2] + 1)
        assert_close(f"{case} lse", lse, want_lse, lse_by_torch, terms * sums, scores_of_lse, more)
