"""The formula of xeflash.selftest.reference as a PyTorch user writes it in the dtype under test: the yardstick of
tolerance.py."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from xeflash.selftest.reference import (
    Features,
    Weights,
    attention_reference,
    distance,
    dropout_scale,
    modified,
    philox,
    times_values,
    to_float64,
    to_numpy,
    visible,
    weights_of,
)

__all__ = [
    "Features",
    "Weights",
    "attention_reference",
    "dropout_scale",
    "philox",
    "times_values",
    "to_float64",
    "to_numpy",
    "torch_attention",
    "visible",
    "weights_of",
]


def torch_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, f: Features = Features()
) -> tuple[np.ndarray, np.ndarray]:
    """The same by PyTorch in the dtype of q: SDPA where it has the features, else flex_attention's arithmetic.

    That is: scores and softmax in fp32, probabilities cast to the dtype, second product in the dtype. (Scores rounded
    to the dtype, as naive code has them, would be a yardstick too long to see a lost sink.)
    """
    (batch, heads, rows, dim), keys, dtype = q.shape, k.shape[2], q.dtype
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
    scale = dim**-0.5 if f.scale is None else f.scale
    seen = torch.from_numpy(visible(rows, keys, f.window, f.top_left))
    mask = None if f.mask is None else torch.as_tensor(f.mask)

    s = torch.matmul(q.float(), k.float().transpose(-1, -2)) * scale
    if f.softcap > 0:
        s = f.softcap * torch.tanh(s / f.softcap)
    if f.alibi is not None:
        slopes = torch.as_tensor(f.alibi).expand(batch, heads)[:, :, None, None]
        s = s - slopes * torch.from_numpy(distance(rows, keys, f.top_left)).abs()
    if mask is not None:
        s = s.masked_fill(~mask, -np.inf) if mask.dtype == torch.bool else s + mask
    s = torch.from_numpy(modified(s.numpy(), f)).float()
    s = s.masked_fill(~seen, -np.inf)
    if f.sinks is not None:
        s = torch.cat([s, torch.as_tensor(f.sinks)[:, None, None].expand(batch, -1, rows, 1).float()], dim=-1)
    lse = torch.logsumexp(s, dim=-1)
    empty = lse == -np.inf
    lse = torch.where(empty, f.empty_lse, lse)

    simple = f.softcap == 0 and f.alibi is None and f.sinks is None and f.dropout == 0 and f.score_mod is None
    if simple and (mask is None or mask.dtype == torch.bool) and keys > 0:
        hidden = seen if mask is None else seen & mask
        out = F.scaled_dot_product_attention(q, k, v, hidden.expand(batch, heads, rows, keys), scale=scale)
        return to_float64(out), to_float64(lse)

    p = torch.softmax(s, dim=-1)[..., :keys]
    p = torch.where(empty[..., None], 0.0, p)
    if f.dropout > 0:
        p = p * torch.from_numpy(dropout_scale(tuple(p.shape), f.dropout, f.rng, f.batch0)).float()
    return to_float64(torch.matmul(p.to(dtype), v)), to_float64(lse)
