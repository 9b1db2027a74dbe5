"""How far a result may be from the reference, in all tests: by the rule of xeflash.selftest.tolerance.

`other` is PyTorch's result in the same dtype, whose luck is another on each CPU. size is the largest P |V|; of an LSE,
m + log l, max |want| + log Sk, as 0 <= log l <= log Sk; or max |want| where neither is known. Tests have scores of any
size, so theirs are told:

s = scale sum_i q_i k_i, where the sum and the scale are rounded, by 2^-24 each, so a score is known to d = 2^-23 of its
size before cancellation, scale sum_i |q_i k_i|; softcap dampens that, ALiBi, bias and score_mod may make it larger.
O = sum_j P_j V_j and P_j = exp(s_j - LSE), so to first order O moves by sum_j P_j d_j (V_j - O), and LSE by
sum_j P_j d_j (a sink is a score, of a key whose V is 0); roundings of different scores are independent: the terms add
as squares.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from reference import Features, Weights, times_values, to_float64, torch_attention, weights_of
from xeflash.selftest.tolerance import compare, limit_of, limit_of_probability, limits_of_math, size_of_lse

SCORES = 2.0**-23  # how far a score may be off, of its size


def dtype_name(x: Any) -> str:
    return str(x.dtype).removeprefix("torch.")


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
    finding = compare(case, got, want, limit_of(want, torch_result, dtype, size, scores) + more)
    assert finding.ok, finding


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
        scores_of_out = max(scores_of_out, size * limit_of_probability(dtype_name(q)))
    math_of_out, math_of_lse = limits_of_math(features.softcap, size, k.shape[2]) if gpu else (0.0, 0.0)
    assert_close(f"{case} out", out, want, by_torch, size * sums, scores_of_out, math_of_out)
    if lse is not None:
        assert dtype_name(lse) == "float32", f"{case}: lse is {lse.dtype}"
        more = limit_of_probability(dtype_name(q)) + math_of_lse
        terms = size_of_lse(want_lse, k.shape[2])
        assert_close(f"{case} lse", lse, want_lse, lse_by_torch, terms * sums, scores_of_lse, more)
