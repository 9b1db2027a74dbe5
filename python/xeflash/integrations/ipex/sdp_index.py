"""torch.xpu.IpexSDP_Index: beam search over a prompt that its beams share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from xeflash import attention, flash_attn_with_kvcache, merge_states
from xeflash.integrations.ipex.scores import added_to_scores, as_float, as_score_mod, refuse, require_4d


def IpexSDP_Index(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    index: Tensor,
    alibi: Tensor | None,
    attn_mask: Tensor | None,
    head_mask: Any,
    timestep: int,
    alpha: float,
    beta: float = 1.0,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: ARG001
) -> Tensor:
    """Attends from one token of a beam search to a prompt that beams share, then to each beam's own history.

    query (B beams, H, 1, D); key, value: the prompt, (B, Hk, prompt, D); key_cache, value_cache: what was generated,
    (B beams, Hk, steps, D) with any strides; index (steps, B, beams) int32: the beam that holds a step's key.
    ``alibi`` and ``attn_mask`` are added to the scores of prompt and steps, as in IpexSDP, where ``alpha`` is;
    ``timestep`` is the number of steps, with or without that of the prompt. ``is_causal`` changes nothing, as the
    token is the last.
    ``head_mask`` has to be None, ``beta`` 1, ``dropout_p`` 0.
    """
    function = "IpexSDP_Index"
    refuse(function, head_mask, beta)
    tensors = {"query": query, "key": key, "value": value, "key_cache": key_cache, "value_cache": value_cache}
    require_4d(function, **tensors)
    if dropout_p:
        raise NotImplementedError(f"{function}: dropout_p must be 0, got {dropout_p}")
    rows, heads, tokens, dim = query.shape
    batch, prompt, steps = key.shape[0], key.shape[2], key_cache.shape[2]
    if tokens != 1 or batch == 0 or rows % batch:
        raise ValueError(
            f"{function}: query must have one token and a multiple of the prompt's {batch} sequences, got "
            f"{list(query.shape)}"
        )
    if timestep not in (steps, prompt + steps) or index.shape[0] < steps or index[0].numel() != rows:
        raise ValueError(
            f"{function}: timestep must be {steps}, as key_cache has, and index that long for {rows} rows, "
            f"got {timestep} and {list(index.shape)}"
        )
    beams = rows // batch
    added = added_to_scores(query, prompt + steps, alibi, attn_mask)
    over_prompt = None
    if added is not None:
        added = added.expand(rows, -1, 1, prompt + steps)
        over_prompt = added[..., :prompt].view(batch, beams, -1, prompt).transpose(1, 2)
    shared = query.view(batch, beams, heads, dim).transpose(1, 2)  # beams are rows of one sequence's queries
    out, lse = attention(shared, key, value, over_prompt, scale=alpha, enable_gqa=True, return_lse=True)
    first_row = torch.arange(batch, device=index.device, dtype=torch.int32)[:, None] * beams
    places = (index[:steps].view(steps, batch, beams).int() + first_row).view(steps, rows).t().contiguous()
    own, own_lse = flash_attn_with_kvcache(
        query.transpose(1, 2), key_cache.transpose(1, 2), value_cache.transpose(1, 2), cache_seqlens=steps,
        softmax_scale=alpha, beam_index=places, return_softmax_lse=True,
        **as_score_mod(None if added is None else as_float(added[..., prompt:])),
    )  # fmt: skip
    merged, _ = merge_states(
        out.transpose(1, 2).reshape(rows, 1, heads, -1), lse.transpose(1, 2).reshape(rows, heads, 1), own, own_lse
    )
    return merged.transpose(1, 2)
