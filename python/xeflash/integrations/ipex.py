"""The attention calls of Intel Extension for PyTorch (IPEX), which is archived, by xeflash; IPEX is not imported.

For code written for ``torch.xpu.IpexSDP``, ``torch.xpu.IpexSDP_Index`` and ``ipex.llm.modules``: the same names,
arguments and results, on CPU and XPU tensors:

>>> import torch
>>> from xeflash.integrations import ipex
>>> q = torch.ones(1, 8, 5, 64)  # batch, heads, sequence, head dim
>>> ipex.IpexSDP(q, q, q, alpha=64**-0.5, is_causal=True).shape
torch.Size([1, 8, 5, 64])

IPEX's last releases (2.8 for CPU, 2.8.10 and 2.9.10 for XPU) differ in places; here each is accepted on every device:
what comes first after ``alibi_slopes``, or in its place, says by its type whose order of arguments it is. Two methods
of PagedAttention have caches of another shape on XPU, as they had in IPEX.

What IPEX's kernels took and did not use is refused here: a head mask, ``beta`` other than 1, attention weights.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
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
    asked = None if head_mapping.is_inference() else (head_mapping._version, heads, heads_k)
    if asked is not None and _in_order.get(head_mapping) == asked:
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
    """softmax(alpha Q K^T + alibi + bias) V of query (B, H, Sq, D), key and value (B, Hk, Sk, D).

    ``alibi`` (B, H, 1, >= Sk), or (B H, 1, >= Sk), and ``bias`` (broadcast to B, H, Sq, >= Sk; bool: True takes part)
    may be padded. ``is_causal`` ends at the last key. ``dropout_p`` is the probability of dropping a softmax
    probability. ``seq_last``: the result lies in memory as (S, B, H, D), else as (B, S, H, D). ``head_mask`` has to be
    None, and ``beta`` 1.
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
    ``alibi`` and ``attn_mask`` are added to the scores of prompt and steps, as in IpexSDP, where ``alpha`` is;
    ``timestep`` is the number of steps, with or without that of the prompt. ``is_causal`` changes nothing, as the
    token is the last.
    ``head_mask`` has to be None, ``beta`` 1, ``dropout_p`` 0.
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


def _alibi_may_be_missing(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """As in IPEX for XPU, where max_seqlen_q, an integer, may stand in the place of alibi_slopes."""
    place = 7  # the class, and six tensors before

    @functools.wraps(call)
    def wrapper(*arguments: Any, **named: Any) -> Tensor:
        if len(arguments) > place and isinstance(arguments[place], int):
            arguments = (*arguments[:place], None, *arguments[place:])
        elif len(arguments) <= place:
            named.setdefault("alibi_slopes", None)
        return call(*arguments, **named)

    return wrapper


class VarlenAttention(torch.nn.Module):  # type: ignore[misc]
    """ipex.llm.modules.VarlenAttention: attention of packed sequences, written into ``out``."""

    @classmethod
    @_alibi_may_be_missing
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
        zero_tensors: bool,
        is_causal: bool,
        return_softmax: bool,
        gen_: torch.Generator | None,
        window_size_left: int = -1,
        window_size_right: int = -1,
        softcap: float = -1.0,
    ) -> Tensor:
        """query (tokens, H, D), key and value (tokens, Hk, D); seqlen_* are the B + 1 starts of sequences.

        All of ``out`` is written, with or without zero_tensors. Dropout takes its numbers from ``gen_``, or as the
        public functions do. alibi_slopes may be left out.
        """
        return cls.apply_function_flash_varlen(
            query, key, value, out, seqlen_q, seqlen_k, None, None, alibi_slopes, max_seqlen_q, max_seqlen_k, pdropout,
            softmax_scale, zero_tensors, is_causal, window_size_left, window_size_right, return_softmax, gen_, softcap,
        )  # fmt: skip

    @classmethod
    def apply_function_flash_varlen(
        cls,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        seqlen_q: Tensor,
        seqlen_k: Tensor,
        seqused_k: Tensor | None,
        block_tables_: Any,
        alibi_slopes: Tensor | None,
        max_seqlen_q: int,
        max_seqlen_k: int,
        p_dropout: float,
        softmax_scale: float,
        zero_tensors: bool,  # noqa: ARG003
        is_causal: bool,
        window_size_left: int,
        window_size_right: int,
        return_softmax: bool,
        gen_: torch.Generator | None,
        softcap: float = -1.0,
    ) -> Tensor:
        """The same with other places; seqused_k (B,) limits the keys of each sequence to the first ones."""
        function = "VarlenAttention"
        if return_softmax:
            raise NotImplementedError(f"{function}: return_softmax must be False, got {return_softmax}")
        if block_tables_ is not None:
            raise NotImplementedError(
                f"{function}: block_tables_ must be None, got {type(block_tables_).__name__}. Use PagedAttention"
            )
        arrays = {"query": query, "key": key, "value": value, "alibi_slopes": alibi_slopes, "out": out}
        core = engine(function, query, key, value, arrays)
        rng = _random.draw(function, gen_) if p_dropout and gen_ is not None else None
        seed, offset = seeds(function, p_dropout, query, rng, core)
        core.forward(
            function=function, layout=THD, q=query, k=key, v=value, out=out, cu_seqlens_q=seqlen_q.int(),
            cu_seqlens_k=seqlen_k.int(), max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
            seqused_k=None if seqused_k is None else seqused_k.int(),
            softmax_scale=softmax_scale, causal=is_causal, window_left=window_size_left,
            window_right=window_size_right, softcap=max(softcap, 0.0), alibi_slopes=alibi_slopes, dropout_p=p_dropout,
            seed=seed, offset=offset,
        )  # fmt: skip
        return out

    def forward(self, *arguments: Any, **more: Any) -> Tensor:
        """As apply_function."""
        return self.apply_function(*arguments, **more)


_EIGHT_BITS = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


class PagedAttention:
    """ipex.llm.modules.PagedAttention: a cache in pages, as vLLM 0.x had it.

    Caches are (pages, Hk, page, D). On XPU those of reshape_and_cache_flash and flash_attn_varlen_func are (pages,
    page, Hk, D), as they were in IPEX; the packed ones of its reshape_and_cache, with D before page, are refused.

    kv_cache_dtype is "auto", or what the dtype of the caches is: "fp8_e4m3", "fp8_e5m2", or "fp8" for both.
    """

    @classmethod
    def reshape_and_cache(
        cls,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slot_mapping: Tensor,
        kv_cache_dtype: str = "auto",
        k_scale: float = 1.0,
        v_scale: float = 1.0,
    ) -> None:
        """Writes key and value (tokens, Hk, D) to the slots: page number times page size, plus the row in the page.

        Negative slots are left out. Caches of 8-bit floats get key / k_scale and value / v_scale.
        """
        for new, cache, scale in ((key, key_cache, k_scale), (value, value_cache, v_scale)):
            write_slots("PagedAttention", new, _by_rows(cache, kv_cache_dtype), slot_mapping, scale)

    @classmethod
    def reshape_and_cache_flash(
        cls,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slot_mapping: Tensor,
        kv_cache_dtype: str = "auto",
        k_scale: float = 1.0,
        v_scale: float = 1.0,
    ) -> None:
        """The same, for the caches of flash_attn_varlen_func."""
        for new, cache, scale in ((key, key_cache, k_scale), (value, value_cache, v_scale)):
            write_slots("PagedAttention", new, _by_rows(cache, kv_cache_dtype, flash=True), slot_mapping, scale)

    @classmethod
    def swap_blocks(cls, src: Tensor, dst: Tensor, block_mapping: Any) -> None:
        """Copies pages of src to pages of dst, which may be on another device.

        block_mapping is a tensor of pairs of page numbers, or a dict with one or several numbers for each.
        """
        sources, targets = _pairs("PagedAttention", block_mapping)
        if dst.dtype.itemsize == 1:  # torch indexes no 8-bit floats
            src, dst = src.view(torch.int8), dst.view(torch.int8)
        dst[targets.to(dst.device)] = src[sources.to(src.device)].to(dst.device)

    @classmethod
    def copy_blocks(cls, key_caches: list[Tensor], value_caches: list[Tensor], block_mapping: Any) -> None:
        """Copies pages of each cache to others of the same."""
        for cache in (*key_caches, *value_caches):
            cls.swap_blocks(cache, cache, block_mapping)

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
        *options: Any,
        **named: Any,
    ) -> Tensor:
        """Attention of one token of each sequence, query (B, H, D), written into output.

        head_mapping (H,): the KV head of each head, which must be the consecutive ones; it is read once per tensor.
        Then come window_size, the last keys that take part, or -1 for all; k_scale, v_scale, softcap; or before them,
        as for XPU, kv_cache_dtype, a string.
        """
        if options and isinstance(options[0], str):
            named, options = {"kv_cache_dtype": options[0], **named}, options[1:]
        given = _decode_options(*options, **named)
        _require_consecutive("PagedAttention", head_mapping, query.shape[1], key_cache.shape[1])
        return cls._attend_single(
            output, query, key_cache, value_cache, scale, block_tables, context_lens, block_size, max_context_len,
            alibi_slopes, **given,
        )  # fmt: skip

    @classmethod
    def single_query_kv_attention(
        cls,
        output: Tensor,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        num_queries_per_tokens: int,
        scale: float,
        block_tables: Tensor,
        context_lens: Tensor,
        block_size: int,
        max_context_len: int,
        alibi_slopes: Tensor | None = None,
        softcap: float = -1.0,
    ) -> Tensor:
        """The same; num_queries_per_tokens heads have one KV head."""
        heads, heads_k = query.shape[1], key_cache.shape[1]
        if num_queries_per_tokens * heads_k != heads:
            raise ValueError(
                f"PagedAttention: num_queries_per_tokens must be {heads} heads divided by {heads_k}, "
                f"got {num_queries_per_tokens}"
            )
        return cls._attend_single(
            output, query, key_cache, value_cache, scale, block_tables, context_lens, block_size, max_context_len,
            alibi_slopes, **_decode_options(softcap=softcap),
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
        *options: Any,
        **named: Any,
    ) -> Tensor:
        """Attention of packed tokens, query (tokens, H, D), on the pages of their sequences, written into output.

        Then come window_size_left, window_size_right, kv_cache_dtype, k_scale, v_scale, softcap; or before them, as for
        XPU since 2.9, sink: None or a tensor (H,).
        """
        if options and (options[0] is None or isinstance(options[0], Tensor)):
            named, options = {"sink": options[0], **named}, options[1:]
        return cls._attend(
            output, query, key_cache, value_cache, scale, block_tables, alibi_slopes, flash=True, causal=is_cusal,
            cu_seqlens_q=cu_seqlens_q.int(), cu_seqlens_k=cu_seqlens_kv.int(), max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_kv, **_varlen_options(*options, **named),
        )  # fmt: skip

    flash_atten_varlen = flash_attn_varlen_func

    @classmethod
    def _attend_single(
        cls, output: Tensor, query: Tensor, key_cache: Tensor, value_cache: Tensor, scale: float, pages: Tensor,
        lengths: Tensor, block_size: int, longest: int, alibi: Tensor | None, **options: Any,
    ) -> Tensor:  # fmt: skip
        for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
            shape = list(cache.shape)
            if cache.dim() != 4 or shape[2] != block_size:
                raise ValueError(
                    f"PagedAttention: {name} must be (pages, Hk, page, D) of pages of block_size = {block_size}, "
                    f"got shape {shape}"
                )
            if cache.device.type != "cpu" and shape[2] == shape[3]:  # (pages, Hk, D, page) in IPEX for XPU
                raise ValueError(
                    f"PagedAttention: {name} must have a page size other than D on XPU, where it would not tell which "
                    f"of them comes first, got shape {shape}"
                )
        return cls._attend(
            output, query, key_cache, value_cache, scale, pages, alibi, causal=True, max_seqlen_q=1,
            cu_seqlens_q=torch.arange(query.shape[0] + 1, dtype=torch.int32, device=query.device),
            max_seqlen_k=longest, seqused_k=lengths.int(), **options,
        )  # fmt: skip

    @classmethod
    def _attend(
        cls, output: Tensor, query: Tensor, key_cache: Tensor, value_cache: Tensor, scale: float, pages: Tensor,
        alibi: Tensor | None, *, kv_cache_dtype: str, k_scale: float, v_scale: float, flash: bool = False, **more: Any,
    ) -> Tensor:  # fmt: skip
        function = "PagedAttention"
        caches = [_by_rows(cache, kv_cache_dtype, flash) for cache in (key_cache, value_cache)]
        scales: Any = {"k_scale": k_scale, "v_scale": v_scale} if key_cache.dtype.itemsize == 1 else {}
        arrays = {"query": query, "key_cache": key_cache, "value_cache": value_cache, "alibi_slopes": alibi}
        arrays |= {"output": output, "sink": more["s_aux"]}
        engine(function, query, caches[0], caches[1], arrays).forward(
            function=function, layout=THD, q=query, k_cache=caches[0], v_cache=caches[1], block_table=pages.int(),
            out=output, softmax_scale=scale, alibi_slopes=alibi, **scales, **more,
        )  # fmt: skip
        return output


def _decode_options(
    window_size: int = -1,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    softcap: float = -1.0,
    *,
    kv_cache_dtype: str = "auto",
) -> dict[str, Any]:
    """What follows alibi_slopes in single_query_cached_kv_attention; a window of n is the last n keys."""
    left = _integer("window_size", window_size) - 1 if window_size != -1 else -1
    return _varlen_options(left, -1, kv_cache_dtype, k_scale, v_scale, softcap)


def _varlen_options(
    window_size_left: int = -1,
    window_size_right: int = -1,
    kv_cache_dtype: str = "auto",
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    softcap: float = -1.0,
    *,
    sink: Tensor | None = None,
) -> dict[str, Any]:
    """What follows alibi_slopes in flash_attn_varlen_func, by the names of the extension."""
    return {
        "window_left": _integer("window_size_left", window_size_left),
        "window_right": _integer("window_size_right", window_size_right),
        "kv_cache_dtype": kv_cache_dtype,
        "k_scale": k_scale,
        "v_scale": v_scale,
        "softcap": max(softcap, 0.0),
        "s_aux": sink,
    }


def _integer(name: str, value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"PagedAttention: {name} must be an integer, got {value!r}")
    return value


def _by_rows(cache: Tensor, kv_cache_dtype: str, flash: bool = False) -> Tensor:
    """A cache, which is of kv_cache_dtype, as (pages, page, Hk, D)."""
    if cache.dim() != 4:
        raise NotImplementedError(f"PagedAttention: caches must have 4 dimensions, got shape {list(cache.shape)}")
    kinds = {"auto": (cache.dtype,), "fp8": tuple(_EIGHT_BITS.values())}
    kinds |= {name: (dtype,) for name, dtype in _EIGHT_BITS.items()}
    if not isinstance(kv_cache_dtype, str) or cache.dtype not in kinds.get(kv_cache_dtype, ()):
        raise ValueError(
            f"PagedAttention: kv_cache_dtype must be 'auto', or 'fp8', 'fp8_e4m3', 'fp8_e5m2' as the caches are "
            f"({cache.dtype}), got {kv_cache_dtype!r}"
        )
    return cache if flash and cache.device.type != "cpu" else cache.transpose(1, 2)


def _pairs(function: str, mapping: Any) -> tuple[Tensor, Tensor]:
    """The page numbers from which, and those to which something is copied."""
    if isinstance(mapping, Mapping):
        several = ((page, [to] if isinstance(to, int) else to) for page, to in mapping.items())
        mapping = torch.tensor([(page, to) for page, pages in several for to in pages], dtype=torch.int64, device="cpu")
        mapping = mapping.view(-1, 2)
    if not isinstance(mapping, Tensor) or mapping.dim() != 2 or mapping.shape[1] != 2:
        raise ValueError(
            f"{function}: block_mapping must be a dict of page numbers, or a tensor of pairs, "
            f"got {list(mapping.shape) if isinstance(mapping, Tensor) else type(mapping).__name__}"
        )
    return mapping[:, 0].long(), mapping[:, 1].long()


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
        text_max_length: int = 0,
    ) -> tuple[Tensor, None, Past]:
        """Appends key and value (B beams, S, Hk, D) to the cache, then attends: query (B beams, S, H, D).

        Scores are divided by scale_attn. layer_past is (a tensor of which only size(-2) counts: the tokens so far, or
        seq_info's first element; key cache and value cache, (text_max_length, B beams, Hk, D), which grow; beam_idx, of
        their first two sizes). For a prompt it is None, or one of no tokens of which only beam_idx counts, by its rows:
        there may be one row of a prompt for several beams. To reorder, write the parent of each row to
        beam_idx[tokens - 1].

        Returned are the output (rows of query, H, S, D), None for attention weights, and the next layer_past.
        """
        _refuse("IndirectAccessKVCacheAttention", head_mask)
        if seq_info is not None:
            past = int(seq_info.flatten()[0])
        else:
            past = 0 if layer_past is None else layer_past[0].size(-2)
        added = (attention_mask, _per_head(alibi, query))
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
        """As apply_function, with the text_max_length of the module."""
        return self.apply_function(
            query, key, value, scale_attn, layer_past, head_mask, attention_mask, alibi, add_casual_mask, seq_info,
            self.text_max_length,
        )  # fmt: skip


def _begin(
    query: Tensor, key: Tensor, value: Tensor, scale_attn: float, layer_past: Past | None,
    added: tuple[Tensor | None, Tensor | None], causal: bool, room: int,
) -> tuple[Tensor, None, Past]:  # fmt: skip
    """Attention of prompts, and a cache that has each of them in the rows of all its beams."""
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
        q, k, v, _added(q, tokens, *reversed(added)), is_causal=causal, scale=1 / scale_attn, enable_gqa=True,
        bottom_right=True, out=out,
    )  # fmt: skip
    return out, None, (query.new_empty((1, 0, tokens, 1)), caches[0], caches[1], itself.repeat(room, 1))


def _continue(
    query: Tensor, key: Tensor, value: Tensor, scale_attn: float, past: int, layer_past: Past,
    added: tuple[Tensor | None, Tensor | None],
) -> tuple[Tensor, None, Past]:  # fmt: skip
    """Attention of new tokens on what their beams have seen."""
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
        **_as_score_mod(*(None if x is None else _float(x) for x in added)),
    )  # fmt: skip
    return out.transpose(1, 2), None, (query.new_empty((1, 0, size, 1)), caches[0], caches[1], parents)


def _per_head(alibi: Tensor | None, query: Tensor) -> Tensor | None:
    """(B H, 1, S) as (B, H, 1, S)."""
    if alibi is None or alibi.dim() == 4:
        return alibi
    return alibi.reshape(query.shape[0], query.shape[2], *alibi.shape[-2:])
