"""Packed queries on a cache, which is read as pages; each sequence of a dense cache is one page."""

from __future__ import annotations

from typing import Any

from xeflash.call.call import Call
from xeflash.call.schema import THD
from xeflash.call.values import flag, namespace, shape_of

_NOT_PACKED = ("k", "v", "rotary_cos", "rotary_sin", "rotary_positions", "cache_leftpad", "beam_index", "unified_max")
_WORDS = {"k_cache": "k_cache", "v_cache": "v_cache", "seqused_k": "cache_seqlens"}
_WORDS_WITHOUT_TABLE = {**_WORDS, "block_table": "cache_batch_idx"}
_GONE = ("cache_batch_idx", "cache_seqlens")
_REFUSED = frozenset((*_NOT_PACKED, "rotary_interleaved"))


def on_pages(call: Call) -> Call:
    """Replaces a call of packed queries (tokens, H, D) on a cache by one of packed sequences on pages."""
    if not _REFUSED.isdisjoint(call.arguments):
        call = _without_new_keys(call)
    if call.get("max_seqlen_q") is None:
        raise call.refuse("max_seqlen_q", "must be given with cu_seqlens_q", None)
    _shape(call, "q", "[tokens, heads, head_dim]")
    batch = _shape(call, "cu_seqlens_q", "[sequences + 1]")[0] - 1
    cached, rows, *_ = _shape(call, "k_cache", "[batch or pages, rows, heads, head_dim]")
    words = _WORDS
    if (table := call.get("block_table")) is not None:
        if call.get("cache_batch_idx") is not None:
            raise call.refuse("cache_batch_idx", f"must be None with {call.word('block_table')}", "an array")
        most = rows * _shape(call, "block_table", "[sequences, pages of a sequence]")[1]
    else:
        table, most = _sequences(call, batch, cached, rows)[:, None], rows
        words = _WORDS_WITHOUT_TABLE
    most, length = min(most, 2**31 - 1), call.get("cache_seqlens")
    if length is None or isinstance(length, int):
        length = _int32(call, batch, most if length is None else length)
    return call.with_(
        *_GONE, words=words, layout=THD, block_table=table, cu_seqlens_k=None, seqused_k=length, max_seqlen_k=most
    )


def _without_new_keys(call: Call) -> Call:
    for name in _NOT_PACKED:
        if call.get(name) is not None:
            raise call.refuse_given(name, "must be None with cu_seqlens_q")
    flag(call.function, "rotary_interleaved", call.get("rotary_interleaved", True))  # there is no rotation
    return call.with_(*_REFUSED)


def _sequences(call: Call, batch: int, cached: int, rows: int) -> Any:
    """Returns the sequence of the cache that belongs to each sequence of q."""
    if rows % 16:
        rule = "must have a multiple of 16 rows with cu_seqlens_q and without block_table"
        raise call.refuse("k_cache", rule, rows, NotImplementedError)
    sequences = call.get("cache_batch_idx")
    if sequences is None:
        if batch > cached:
            raise ValueError(
                f"{call.function}: k_cache.batch must be at least that of cu_seqlens_q, {batch}, got {cached}"
            )
        return _int32(call, batch)
    if (index_shape := _shape(call, "cache_batch_idx", "[sequences]")) != (batch,):
        raise call.refuse("cache_batch_idx", f"must have shape [{batch}]", list(index_shape))
    return sequences


def _shape(call: Call, name: str, axes: str) -> tuple[int, ...]:
    shape = shape_of(call.arguments["function"], call.words.get(name, name), call.arguments[name])
    if len(shape) != axes.count(",") + 1 or (name == "cu_seqlens_q" and not shape[0]):
        raise call.refuse(name, f"must have shape {axes}", list(shape))
    return shape


def _int32(call: Call, count: int, value: int | None = None) -> Any:
    """Returns `count` numbers on the device of q: 0, 1, 2, ..., or `value` throughout."""
    xp = namespace(call.function, "q", call["q"])
    numbers = xp.arange(count, dtype=xp.int32, device=call["q"].device)
    return numbers if value is None else xp.full_like(numbers, value)
