"""How far a result may be from the reference, in all tests: by the rule of xeflash.selftest.tolerance, and PyTorch's error."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from xeflash.selftest.reference import Features, Result, formula, seen_by, to_float64
from xeflash.selftest.tolerance import Array, compare, judge, limit_of


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
    limit = limit_of(want, torch_result, dtype_name(got), size, scores) + more
    finding = compare(case, to_float64(got), want, limit)
    assert finding.ok, finding


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
    """Fails where out (B, H, Sq, Dv), or lse (B, H, Sq) if given, is beyond its limit for q, k, v of (B, H, S, D)."""
    assert dtype_name(out) == dtype_name(q), f"{case}: out is {out.dtype}, q is {q.dtype}"
    assert lse is None or dtype_name(lse) == "float32", f"{case}: lse is {lse.dtype}"
    qkv = to_float64(q), to_float64(k), to_float64(v)
    got = to_float64(out), None if lse is None else to_float64(lse)
    for finding in by_rule(f"{case} ", dtype_name(q), qkv, features, *got, gpu, drawn=drawn):
        assert finding.ok, finding


def check_sequences(
    case: str,
    qkv: Sequence[torch.Tensor],
    starts: Sequence[Sequence[int]],
    features: Features,
    out: Any,
    lse: Any = None,
    used: Sequence[int] | None = None,
    **how: bool,
) -> None:
    """The same for packed sequences, (tokens, H, D) and (H, tokens), of whose keys so many are used."""
    (cu_q, cu_k), slopes = starts, features.alibi
    for i in range(len(cu_q) - 1 if out.numel() else 0):
        rows, keys = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1] if used is None else cu_k[i] + used[i])
        q, k, v, got = (
            x[part].transpose(0, 1)[None] for x, part in zip((*qkv, out), (rows, keys, keys, rows), strict=True)
        )
        f = features.with_(batch0=i, alibi=slopes[i : i + 1] if slopes is not None and slopes.dim() == 2 else slopes)
        check_attention(f"{case} sequence {i}", q, k, v, f, got, None if lse is None else lse[None, :, rows], **how)


def by_torch(dtype: str, q: Array, k: Array, v: Array, f: Features) -> tuple[Array, Array]:
    return torch_attention(*(torch.from_numpy(x).to(getattr(torch, dtype)) for x in (q, k, v)), f)


by_rule = functools.partial(judge, other=by_torch, any_scores=True)


def torch_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, f: Features = Features()) -> tuple[Array, Array]:
    """The same by PyTorch in the dtype of q: SDPA where it has the features, else flex_attention's arithmetic."""
    if (change := f.score_mod) is not None:  # of numpy
        f = f.with_(score_mod=lambda *given: torch.from_numpy(change(*(x.numpy() for x in given))))
    out, lse = torch_formula(q, k, v, f)[:2]
    simple = f.softcap == 0 and f.alibi is None and f.sinks is None and f.dropout == 0 and f.score_mod is None
    mask, (rows, keys) = None if f.mask is None else torch.as_tensor(f.mask), (q.shape[2], k.shape[2])
    if simple and (mask is None or mask.dtype == torch.bool) and keys > 0:
        seen = torch.from_numpy(seen_by(rows, keys, f, *q.shape[:2]))
        hidden = (seen if mask is None else seen & mask).expand(*q.shape[:3], keys)
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, hidden, scale=f.scale)
    return to_float64(out), to_float64(lse)


def torch_formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, f: Features = Features(), **more: Any) -> Result:
    """The formula that autograd differentiates: scores and softmax in fp32, or in float64 if q is of it, P in q's dtype.

    (Scores rounded to 16 bits, as naive code has them, would be a yardstick too long to see a lost sink.)
    """
    return formula(q, k, v, f, torch.promote_types(q.dtype, torch.float32), rounded=lambda p: p.to(q.dtype), **more)
