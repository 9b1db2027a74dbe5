"""The attention calls of Intel Extension for PyTorch (IPEX), which is archived, by xeflash; IPEX is not imported.

For code written for ``torch.xpu.IpexSDP``, ``torch.xpu.IpexSDP_Index`` and ``ipex.llm.modules``: the same names,
arguments and results, on CPU and XPU tensors:

>>> import torch
>>> from xeflash.integrations import ipex
>>> q = torch.ones(1, 8, 5, 64)  # batch, heads, sequence, head dim
>>> ipex.IpexSDP(q, q, q, alpha=64**-0.5, is_causal=True).shape
torch.Size([1, 8, 5, 64])

What IPEX's kernels took and did not use is refused here: a head mask, ``beta`` other than 1, attention weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from xeflash import _random, attention, flash_attn_with_kvcache, merge_states
from xeflash._common import THD, engine, seeds
from xeflash.integrations._pages import write_slots

Past = tuple[Tensor, Tensor, Tensor, Tensor]

# Head mappings that were found in order, and what was asked then: reading one waits for its device.
_in_order: Any = WeakIdKeyDictionary()


def _refuse(function: str, head_mask: Any = None, beta: float = 1.0) -> None:
    if head_mask is not None:
        raise NotImplementedError(f"{function}: head_mask must be None, got {type(head_mask).__name__}")
    if beta != 1:
        raise NotImplementedError(f"{function}: beta must be 1, got {beta}")


def _require_consecutive(function: str, head_mapping: Tensor, heads: int, heads_k: int) -> None:
    asked = head_mapping._version, heads, heads_k
    if _in_order.get(head_mapping) == asked:
        return
    wanted = [head // max(heads // heads_k, 1) for head in range(heads)]
    if (got := head_mapping.flatten().tolist()) != wanted:
        raise NotImplementedError(f"{function}: head_mapping must be {wanted}, got {got}")
    _in_order[head_mapping] = asked


def _added(query: Tensor, keys: int, alibi: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """What is added to scores (B, H, Sq, keys): their sum, of the first keys, as both may be padded."""
    batch, heads = query.shape[:2]
    terms = []
    for x in (alibi, bias):
        if x is not None:
            x = x.view(batch, heads, *x.shape[1:]) if x.dim() == 3 and x.shape[0] == batch * heads else x
            terms.append(x[..., :keys] if x.shape[-1] > 1 else x)
    if not terms:
        return None
    if len(terms) == 1:
        fits = terms[0].dtype in (torch.bool, torch.float32, query.dtype)
        return terms[0] if fits else terms[0].float()
    alibi, bias = terms
    if bias.dtype is torch.bool:
        return torch.where(bias, alibi.float(), -torch.inf)
    return alibi.float() + bias.float()


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
    """softmax(alpha Q K^T + alibi + bias) V of (B, H, S, D); key and value may have fewer heads.

    ``alibi`` (B, H, 1, >= Sk), or (B H, 1, >= Sk), and ``bias`` (broadcast to B, H, Sq, >= Sk; bool: True takes part)
    may be padded. ``is_causal`` ends at the last key. ``seq_last``: the result lies in memory as (S, B, H, D), else as
    (B, S, H, D).
    """
    _refuse("IpexSDP", head_mask, beta)
    batch, heads, rows, _ = query.shape
    order = (rows, batch, heads) if seq_last else (batch, rows, heads)
    out = query.new_empty((*order, value.shape[-1]))
    out = out.permute(1, 2, 0, 3) if seq_last else out.transpose(1, 2)
    added = _added(query, key.shape[2], alibi, bias)
    attention(
        query, key, value, added, dropout_p, is_causal, alpha, enable_gqa=True, bottom_right=True, out=out
    )  # fmt: skip
    return out


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
    """One token of a beam search: attention over a prompt that beams share, then over each beam's own history.

    query (B beams, H, 1, D); key, value: the prompt, (B, Hk, prompt, D); key_cache, value_cache: what was generated,
    (B beams, Hk, steps, D) with any strides; index (steps, B, beams) int32: the beam that holds a step's key.
    ``alibi`` and ``attn_mask`` are those of IpexSDP over prompt and steps; ``timestep`` is the number of steps, with or
    without that of the prompt. On XPU the two parts cannot be merged yet: see merge_states.
    """
    function = "IpexSDP_Index"
    _refuse(function, head_mask, beta)
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
    added = _added(query, prompt + steps, alibi, attn_mask)
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
        **_as_score_mod(None if added is None else _float(added[..., prompt:])),
    )  # fmt: skip
    merged, _ = merge_states(
        out.transpose(1, 2).reshape(rows, 1, heads, -1), lse.transpose(1, 2).reshape(rows, heads, 1), own, own_lse
    )
    return merged.transpose(1, 2)


def _float(mask: Tensor) -> Tensor:
    return torch.where(mask, 0.0, -torch.inf) if mask.dtype is torch.bool else mask


def _as_score_mod(*added: Tensor | None) -> dict[str, Any]:
    """What is added to scores of a cache, by reading it: dimensions of size 1 are read for every index."""
    names = {f"added_{i}": x for i, x in enumerate(x for x in added if x is not None)}
    if not names:
        return {}
    terms = [f"{name}(b, h, q_idx, k_idx)" for name in names]
    return {"score_mod": " + ".join(["s", *terms]), "captures": names}


class VarlenAttention(torch.nn.Module):  # type: ignore[misc]
    """ipex.llm.modules.VarlenAttention: attention of packed sequences, written into ``out``."""

    @classmethod
    def apply_function(
        cls,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        seqlen_q: Tensor,
        seqlen_k: Tensor,
        alibi_slopes: Tensor | None,
        max_seqlen_q: int,
        max_seqlen_k: int,
        pdropout: float,
        softmax_scale: float,
        zero_tensors: bool,  # noqa: ARG003
        is_causal: bool,
        return_softmax: bool,
        gen_: torch.Generator | None,
        window_size_left: int = -1,
        window_size_right: int = -1,
        softcap: float = -1.0,
    ) -> Tensor:
        """query (tokens, H, D), key and value (tokens, Hk, D); seqlen_* are the B + 1 starts of sequences.

        All of ``out`` is written, with or without zero_tensors. Dropout takes its numbers from ``gen_``, or as the
        public functions do.
        """
        function = "VarlenAttention"
        if return_softmax:
            raise NotImplementedError(f"{function}: return_softmax must be False, got {return_softmax}")
        arrays = {"query": query, "key": key, "value": value, "alibi_slopes": alibi_slopes, "out": out}
        core = engine(function, query, key, value, arrays)
        rng = _random.draw(function, gen_) if pdropout and gen_ is not None else None
        seed, offset = seeds(function, pdropout, query, rng, core)
        core.forward(
            function=function, layout=THD, q=query, k=key, v=value, out=out, cu_seqlens_q=seqlen_q.int(),
            cu_seqlens_k=seqlen_k.int(), max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
            softmax_scale=softmax_scale, causal=is_causal, window_left=window_size_left,
            window_right=window_size_right, softcap=max(softcap, 0.0), alibi_slopes=alibi_slopes, dropout_p=pdropout,
            seed=seed, offset=offset,
        )  # fmt: skip
        return out

    def forward(self, *arguments: Any, **more: Any) -> Tensor:
        """As apply_function."""
        return self.apply_function(*arguments, **more)


class PagedAttention:
    """ipex.llm.modules.PagedAttention: a cache in pages (pages, Hk, page, D), as vLLM 0.x had it."""

    @classmethod
    def reshape_and_cache(
        cls,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slot_mapping: Tensor,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
    ) -> None:
        """Writes key and value (tokens, Hk, D) to the slots: page number times page size, plus the row in the page.

        Negative slots are left out. Caches of 8-bit floats get key / k_scale and value / v_scale.
        """
        write_slots("PagedAttention", key, key_cache.transpose(1, 2), slot_mapping, k_scale)
        write_slots("PagedAttention", value, value_cache.transpose(1, 2), slot_mapping, v_scale)

    @classmethod
    def reshape_and_cache_flash(
        cls,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slot_mapping: Tensor,
        kv_cache_dtype: str = "auto",  # noqa: ARG003
        k_scale: float = 1.0,
        v_scale: float = 1.0,
    ) -> None:
        """The same for caches of (pages, page, Hk, D); kv_cache_dtype is what the caches say."""
        write_slots("PagedAttention", key, key_cache, slot_mapping, k_scale)
        write_slots("PagedAttention", value, value_cache, slot_mapping, v_scale)

    @classmethod
    def single_query_cached_kv_attention(
        cls,
        output: Tensor,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        head_mapping: Tensor,
        scale: float,
        block_tables: Tensor,
        context_lens: Tensor,
        block_size: int,
        max_context_len: int,
        alibi_slopes: Tensor | None = None,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
    ) -> Tensor:
        """Attention of one token of each sequence, query (B, H, D), written into output.

        head_mapping (H,): the KV head of each head, which must be the consecutive ones; it is read once per tensor.
        """
        function = "PagedAttention"
        _require_consecutive(function, head_mapping, query.shape[1], key_cache.shape[1])
        if key_cache.shape[2] != block_size:
            raise ValueError(f"{function}: block_size must be the caches' {key_cache.shape[2]}, got {block_size}")
        starts = torch.arange(query.shape[0] + 1, dtype=torch.int32, device=query.device)
        return cls._attend(
            output, query, key_cache, value_cache, starts, None, 1, max_context_len, scale, True, block_tables,
            alibi_slopes, k_scale, v_scale, context_lens.int(),
        )  # fmt: skip

    @classmethod
    def flash_attn_varlen_func(
        cls,
        output: Tensor,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_kv: Tensor,
        max_seqlen_q: int,
        max_seqlen_kv: int,
        scale: float,
        is_cusal: bool,
        block_tables: Tensor,
        alibi_slopes: Tensor | None = None,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
    ) -> Tensor:
        """Attention of packed tokens, query (tokens, H, D), on the pages of their sequences, written into output."""
        return cls._attend(
            output, query, key_cache, value_cache, cu_seqlens_q.int(), cu_seqlens_kv.int(), max_seqlen_q,
            max_seqlen_kv, scale, is_cusal, block_tables, alibi_slopes, k_scale, v_scale, None,
        )  # fmt: skip

    flash_atten_varlen = flash_attn_varlen_func

    @classmethod
    def _attend(
        cls, output: Tensor, query: Tensor, key_cache: Tensor, value_cache: Tensor, cu_q: Tensor, cu_k: Tensor | None,
        max_q: int, max_k: int, scale: float, causal: bool, pages: Tensor, alibi: Tensor | None, k_scale: float,
        v_scale: float, used: Tensor | None,
    ) -> Tensor:  # fmt: skip
        function = "PagedAttention"
        key_cache, value_cache = key_cache.transpose(1, 2), value_cache.transpose(1, 2)
        scales: Any = {"k_scale": k_scale, "v_scale": v_scale} if key_cache.dtype.itemsize == 1 else {}
        arrays = {"query": query, "key_cache": key_cache, "value_cache": value_cache, "alibi_slopes": alibi}
        engine(function, query, key_cache, value_cache, arrays | {"output": output}).forward(
            function=function, layout=THD, q=query, k_cache=key_cache, v_cache=value_cache, block_table=pages.int(),
            out=output, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=max_q, max_seqlen_k=max_k, seqused_k=used,
            softmax_scale=scale, causal=causal, alibi_slopes=alibi, **scales,
        )  # fmt: skip
        return output


class IndirectAccessKVCacheAttention(torch.nn.Module):  # type: ignore[misc]
    """ipex.llm.modules.IndirectAccessKVCacheAttention: beam search that reorders indices, never the cache."""

    def __init__(self, text_max_length: int = 2048) -> None:
        """text_max_length: the tokens that a cache has room for."""
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
        text_max_length: int = 2048,
    ) -> tuple[Tensor, None, Past]:
        """Appends key and value (B beams, S, Hk, D) to the cache, then attends: query (B beams, S, H, D).

        Scores are divided by scale_attn. layer_past is (a tensor of which only size(-2) counts: the tokens so far, or
        seq_info's first element; key cache and value cache, (text_max_length, B beams, Hk, D); beam_idx, of their first
        two sizes); None before the first token. To reorder, write the parent of each row to beam_idx[tokens - 1].
        Returned are the output, None for attention weights, and the next layer_past.
        """
        function = "IndirectAccessKVCacheAttention"
        _refuse(function, head_mask)
        rows, tokens = key.shape[:2]
        itself = torch.arange(rows, device=key.device, dtype=torch.int32)
        if layer_past is None:
            caches = [x.new_zeros((text_max_length, *x.shape[:1], *x.shape[2:])) for x in (key, value)]
            parents = itself.repeat(text_max_length, 1)
            past = 0
        else:
            info, *caches, parents = layer_past
            past = info.size(-2) if seq_info is None else int(seq_info.flatten()[0])
        if caches[0].shape[1] != rows:
            raise ValueError(f"{function}: key must have the {caches[0].shape[1]} rows of the cache, got {rows}")
        if past + tokens > parents.shape[0]:
            raise ValueError(
                f"{function}: the cache must have room for {past + tokens} tokens, got {parents.shape[0]} "
                "(text_max_length)"
            )
        if past:  # a row reads what its parent read, and what the parent wrote
            parent = parents[past - 1].clone()
            parents[: past - 1] = parents[: past - 1][:, parent.long()]
        parents[past : past + tokens] = itself
        out = flash_attn_with_kvcache(
            query, caches[0].transpose(0, 1), caches[1].transpose(0, 1), key, value, cache_seqlens=past,
            softmax_scale=1 / scale_attn, causal=add_casual_mask,
            beam_index=parents[: past + tokens].t().int().contiguous(),
            **_as_score_mod(*(None if x is None else _float(x) for x in (attention_mask, _per_head(alibi, query)))),
        )  # fmt: skip
        size = past + tokens
        return out, None, (query.new_empty((1, 0, size, 1)), caches[0], caches[1], parents)

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
        """As apply_function, with the text_max_length of the module."""
        return self.apply_function(
            query, key, value, scale_attn, layer_past, head_mask, attention_mask, alibi, add_casual_mask, seq_info,
            self.text_max_length,
        )  # fmt: skip


def _per_head(alibi: Tensor | None, query: Tensor) -> Tensor | None:
    """(B H, 1, S) as (B, H, 1, S)."""
    if alibi is None or alibi.dim() == 4:
        return alibi
    return alibi.reshape(query.shape[0], query.shape[2], *alibi.shape[-2:])
