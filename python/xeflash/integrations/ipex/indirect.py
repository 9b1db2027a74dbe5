"""ipex.llm.modules.IndirectAccessKVCacheAttention: beam search that reorders indices, never the cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from xeflash import attention, flash_attn_with_kvcache
from xeflash.integrations.ipex.scores import added_to_scores, as_float, as_score_mod, per_head, refuse, require_4d

Past = tuple[Tensor, Tensor, Tensor, Tensor]


class IndirectAccessKVCacheAttention(torch.nn.Module):  # type: ignore[misc]
    """ipex.llm.modules.IndirectAccessKVCacheAttention: beam search that reorders indices, never the cache."""

    def __init__(self, text_max_length: int = 2048) -> None:
        """Makes a module whose cache has room for `text_max_length` tokens."""
        super().__init__()
        self.text_max_length = text_max_length

    @classmethod
    def apply_function(
        cls,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale_attn: float,
        layer_past: Past | None = None,
        head_mask: Any = None,
        attention_mask: Tensor | None = None,
        alibi: Tensor | None = None,
        add_casual_mask: bool = True,
        seq_info: Tensor | None = None,
        text_max_length: int = 0,
    ) -> tuple[Tensor, None, Past]:
        """Appends key and value (B beams, S, Hk, D) to the cache, then attends: query (B beams, S, H, D).

        Scores are divided by scale_attn. layer_past is a tuple: a tensor whose size(-2) is the number of tokens so far,
        unless seq_info's first element gives it; the key cache and the value cache, (text_max_length, B beams, Hk, D),
        which grow; and beam_idx, (text_max_length, B beams). For a prompt it is None, or a tuple of no tokens, of which
        only the rows of beam_idx count: a row of a prompt may serve several beams. To reorder, write the parent of each
        row to beam_idx[tokens - 1].

        Returned are the output (rows of query, H, S, D), None for attention weights, and the next layer_past.
        """
        refuse("IndirectAccessKVCacheAttention", head_mask)
        require_4d("IndirectAccessKVCacheAttention", query=query, key=key, value=value)
        if seq_info is not None:
            past = int(seq_info.flatten()[0])
        else:
            past = 0 if layer_past is None else layer_past[0].size(-2)
        added = (attention_mask, per_head(alibi, query))
        if not past:
            return _begin(query, key, value, scale_attn, layer_past, added, add_casual_mask, text_max_length)
        if layer_past is None:
            raise ValueError(f"IndirectAccessKVCacheAttention: layer_past must be given after {past} tokens, got None")
        return _continue(query, key, value, scale_attn, past, layer_past, added)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale_attn: float,
        layer_past: Past | None = None,
        head_mask: Any = None,
        attention_mask: Tensor | None = None,
        alibi: Tensor | None = None,
        add_casual_mask: bool = True,
        seq_info: Tensor | None = None,
    ) -> tuple[Tensor, None, Past]:
        """Calls apply_function with the text_max_length of the module."""
        return self.apply_function(
            query, key, value, scale_attn, layer_past, head_mask, attention_mask, alibi, add_casual_mask, seq_info,
            self.text_max_length,
        )  # fmt: skip


def _begin(
    query: Tensor, key: Tensor, value: Tensor, scale_attn: float, layer_past: Past | None,
    added: tuple[Tensor | None, Tensor | None], causal: bool, room: int,
) -> tuple[Tensor, None, Past]:  # fmt: skip
    """Computes attention of prompts, and makes a cache that has each prompt in the rows of all its beams."""
    batch, tokens = key.shape[:2]
    rows = batch if layer_past is None else layer_past[3].shape[1]
    if batch == 0 or rows % batch:
        raise ValueError(
            f"IndirectAccessKVCacheAttention: beam_idx must have a multiple of the prompt's {batch} rows, got {rows}"
        )
    room = room if room > tokens else room + tokens
    caches = []
    for i, x in enumerate((key, value)):
        dtype = x.dtype if layer_past is None or layer_past[1 + i].dtype.itemsize > 1 else layer_past[1 + i].dtype
        cache = x.new_zeros((room, rows, *x.shape[2:]), dtype=dtype)
        cache[:tokens] = x.transpose(0, 1).repeat_interleave(rows // batch, 1).to(dtype)
        caches.append(cache)
    itself = torch.arange(rows, device=key.device, dtype=torch.int32)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    out = query.new_empty((*query.shape[:3], value.shape[3])).transpose(1, 2)
    attention(
        q, k, v, added_to_scores(q, tokens, *reversed(added)), is_causal=causal, scale=1 / scale_attn, enable_gqa=True,
        bottom_right=True, out=out,
    )  # fmt: skip
    return out, None, (query.new_empty((1, 0, tokens, 1)), caches[0], caches[1], itself.repeat(room, 1))


def _continue(
    query: Tensor, key: Tensor, value: Tensor, scale_attn: float, past: int, layer_past: Past,
    added: tuple[Tensor | None, Tensor | None],
) -> tuple[Tensor, None, Past]:  # fmt: skip
    """Computes attention of new tokens on the keys that their beams have seen."""
    rows, tokens = key.shape[:2]
    _, *caches, parents = layer_past
    if caches[0].shape[1] != rows:
        raise ValueError(
            f"IndirectAccessKVCacheAttention: key must have the {caches[0].shape[1]} rows of the cache, got {rows}"
        )
    size = past + tokens
    if size > parents.shape[0]:
        more = max(size, 2 * parents.shape[0]) - parents.shape[0]
        caches = [torch.cat([x, x.new_zeros((more, *x.shape[1:]))]) for x in caches]
        parents = torch.cat([parents, parents.new_zeros((more, rows))])
    parent = parents[past - 1].clone()  # a row reads what its parent read, and what the parent wrote
    parents[: past - 1] = parents[: past - 1][:, parent.long()]
    parents[past:size] = torch.arange(rows, device=key.device, dtype=parents.dtype)
    scales: Any = {"k_scale": 1.0, "v_scale": 1.0} if caches[0].dtype.itemsize == 1 else {}
    out = flash_attn_with_kvcache(
        query, caches[0].transpose(0, 1), caches[1].transpose(0, 1), key, value, cache_seqlens=past,
        softmax_scale=1 / scale_attn, causal=True, beam_index=parents[:size].t().int().contiguous(), **scales,
        **as_score_mod(*(None if x is None else as_float(x) for x in added)),
    )  # fmt: skip
    return out.transpose(1, 2), None, (query.new_empty((1, 0, size, 1)), caches[0], caches[1], parents)
