"""ipex.llm.modules.PagedAttention: a cache in pages, written and read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from xeflash.api.attention.write import write
from xeflash.api.route import run
from xeflash.call.call import Call
from xeflash.call.schema import THD

_EIGHT_BITS = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}

# Head mappings that were found in order, and what was asked then: reading one waits for its device.
_in_order: Any = WeakIdKeyDictionary()
_WORDS = {"q": "query", "k_cache": "key_cache", "v_cache": "value_cache", "out": "output", "s_aux": "sink"}
_WORDS_OF_SLOTS = _WORDS | {"k": "key", "v": "value", "slots": "slot_mapping"}


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
        caches = _by_rows(key_cache, kv_cache_dtype), _by_rows(value_cache, kv_cache_dtype)
        _write(key, value, *caches, slot_mapping, k_scale, v_scale)

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
        """Writes keys and values to their slots in the caches of flash_attn_varlen_func."""
        caches = _by_rows(key_cache, kv_cache_dtype, True), _by_rows(value_cache, kv_cache_dtype, True)
        _write(key, value, *caches, slot_mapping, k_scale, v_scale)

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
        """Computes attention of one token of each sequence, query (B, H, D), and writes it into output.

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
        """Computes attention of one token of each sequence, where num_queries_per_tokens heads share a KV head."""
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
        """Attends from packed tokens, query (tokens, H, D), to the pages of their sequences; writes to output.

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
                    f"PagedAttention: {name} must be (pages, Hk, page, D) with pages of block_size = {block_size}, "
                    f"got shape {shape}"
                )
            if cache.device.type != "cpu" and shape[2] == shape[3]:  # (pages, Hk, D, page) in IPEX for XPU
                raise ValueError(
                    f"PagedAttention: {name} must have a page size other than D on XPU, as equal sizes do not tell "
                    f"which comes first, got shape {shape}"
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
        caches = [_by_rows(cache, kv_cache_dtype, flash) for cache in (key_cache, value_cache)]
        given: dict[str, Any] = dict(
            function="PagedAttention", layout=THD, q=query, k_cache=caches[0], v_cache=caches[1], out=output,
            block_table=pages.int(), softmax_scale=scale, alibi_slopes=alibi, **more,
            **_scales(key_cache, k_scale, v_scale),
        )  # fmt: skip
        run(Call(given, _WORDS))
        return output


def _write(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor, k_scale: Any, v_scale: Any) -> None:
    arrays = {"k": k, "v": v, "k_cache": k_cache, "v_cache": v_cache, "slots": slots}
    write(Call({"function": "PagedAttention", **arrays, **_scales(k_cache, k_scale, v_scale)}, _WORDS_OF_SLOTS))


def _scales(cache: Tensor, k_scale: Any, v_scale: Any) -> dict[str, Any]:
    """Returns the scales that matter: those of caches in 8 bits."""
    return {"k_scale": k_scale, "v_scale": v_scale} if cache.dtype.itemsize == 1 else {}


def _require_consecutive(function: str, head_mapping: Tensor, heads: int, heads_k: int) -> None:
    asked = None if head_mapping.is_inference() else (head_mapping._version, heads, heads_k)
    if asked is not None and _in_order.get(head_mapping) == asked:
        return
    wanted = [head // max(heads // heads_k, 1) for head in range(heads)]
    if (got := head_mapping.flatten().tolist()) != wanted:
        raise NotImplementedError(f"{function}: head_mapping must be {wanted}, got {got}")
    _in_order[head_mapping] = asked


def _decode_options(
    window_size: int = -1,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    softcap: float = -1.0,
    *,
    kv_cache_dtype: str = "auto",
) -> dict[str, Any]:
    """Reads the arguments behind alibi_slopes of single_query_cached_kv_attention; a window of n is the last n keys."""
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
    """Reads the arguments behind alibi_slopes of flash_attn_varlen_func; returns them by the names of the extension."""
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
    """Returns a cache of type kv_cache_dtype as (pages, page, Hk, D)."""
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
    """Returns the numbers of the pages that are copied, and of the pages that they are copied to."""
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
