"""torch.xpu.IpexSDP: attention with biases and masks."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from xeflash import attention
from xeflash.integrations.ipex.scores import added_to_scores, refuse, require_4d


def IpexSDP(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    alibi: Tensor | None = None,
    bias: Tensor | None = None,
    head_mask: Any = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    seq_last: bool = False,
) -> Tensor:
    """Computes softmax(alpha Q K^T + alibi + bias) V of query (B, H, Sq, D), key and value (B, Hk, Sk, D).

    ``alibi`` (B, H, 1, >= Sk), or (B H, 1, >= Sk), and ``bias`` (broadcast to B, H, Sq, >= Sk; bool: True takes part)
    may be padded. ``is_causal`` ends at the last key. ``dropout_p`` is the probability of dropping a softmax
    probability. ``seq_last``: the result lies in memory as (S, B, H, D), else as (B, S, H, D). ``head_mask`` has to be
    None, and ``beta`` 1.
    """
    refuse("IpexSDP", head_mask, beta)
    require_4d("IpexSDP", query=query, key=key, value=value)
    batch, heads, rows, _ = query.shape
    order = (rows, batch, heads) if seq_last else (batch, rows, heads)
    out = query.new_empty((*order, value.shape[-1]))
    out = out.permute(1, 2, 0, 3) if seq_last else out.transpose(1, 2)
    added = added_to_scores(query, key.shape[2], alibi, bias)
    attention(
        query, key, value, added, dropout_p, is_causal, alpha, enable_gqa=True, bottom_right=True, out=out
    )  # fmt: skip
    return out
