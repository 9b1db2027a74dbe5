"""Attention on a cache of keys and values: flash-attn 2's ``flash_attn_with_kvcache``, with additions for serving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from xeflash.api.attention.blocks import with_blocks
from xeflash.api.attention.float8 import query_in_16_bits
from xeflash.api.attention.packed_queries import on_pages
from xeflash.api.attention.trees import tree_in_words
from xeflash.api.route import run
from xeflash.call.bind import public
from xeflash.call.call import Call
from xeflash.call.schema import BSHD
from xeflash.call.values import as_number, shape_of


@public(BSHD, words={"return_lse": "return_softmax_lse"})
def flash_attn_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    block_table: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[Any] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Any = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    s_aux: Any = None,
    beam_index: Any = None,
    unified_max: float | None = None,
    q_scale: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    score_mod: str | None = None,
    captures: Mapping[str, Any] | None = None,
    mask_mod: str | None = None,
    block_mask: Any = None,
    block_size: int | tuple[int, int] | None = None,
    attention_chunk: int = 0,
    cu_seqlens_q: Any = None,
    max_seqlen_q: int = 0,
    tree_mask: Any = None,
    rotary_positions: Any = None,
    out: Any = None,
) -> Any:
    """Computes attention of q (B, Sq, H, D) on the keys and values of a cache, after appending new ones to it.

    Args:
        k_cache, v_cache: (B_cache, S, Hk, D), or (pages, page, Hk, D) with block_table; used in place. Their dtype is
            that of q, or float8_e4m3fn, float8_e5m2 or int8. Beside K in one of these, V may be in 4 bits: uint8
            (..., Hk, D / 2), whose words of 16 bits hold columns n, n + 16, n + 32 and n + 48 of each 64, as q + 8.
        k, v: (B, new, Hk, D), written into the cache in place, behind the cache_seqlens keys of each sequence, before
            attention; then all of them are attended.
        rotary_cos, rotary_sin: (positions, rotary / 2), of the dtype of q; rotate the first dimensions of new keys by
            their positions, and of queries: by the positions from cache_seqlens on if causal or with a window, else all
            by cache_seqlens.
        cache_seqlens: keys in the cache before the new ones, an int or int32 (B,); default all of the cache.
        cache_batch_idx: int32 (B,): the sequence of the cache for each sequence of q; default the same.
        cache_leftpad: int32 (B,): where the keys of a sequence begin in the cache.
        block_table: int32 (B, pages of a sequence): the pages of each sequence in order, of a multiple of 16 keys.
        softmax_scale, causal, window_size, softcap, alibi_slopes, s_aux, score_mod, captures, q_scale,
            attention_chunk, out: as in flash_attn_func.
        mask_mod, block_mask, block_size: see ``attention``; blocks of keys are those of all the room of a sequence, S
            or its pages, and begin, as k_idx does, after its cache_leftpad. They do not go with tree_mask and
            unified_max.
        rotary_interleaved: pairs are neighbours (GPT-J), else the two halves (GPT-NeoX).
        num_splits: of the keys, each for other work-groups, whose results are merged; up to 128; 0 chooses.
        return_softmax_lse: also return the LSE, fp32 (B, H, Sq).
        beam_index: int32 (B, >= keys): for beam search without copies, which sequence of the cache holds the key of
            each position of each row of q; new keys are written there, too.
        unified_max: the maximum to assume for all scores of a single query, so that the kernel does not search for it.
            This is up to 6 % faster with grouped queries, and no faster where memory is the limit. A row that is too
            far from it (by some 14 above or 28 below) is computed twice, so results are as exact. GPUs search all the
            same where the matrix unit multiplies (grouped queries in 16 bits), or head dims are above 128.
        k_scale, v_scale: factors of a quantised cache: a number, or fp32 of one element, per head (Hk,), per sequence
            and head (B, Hk), or per row and head, (B_cache, S, Hk) or (pages, page, Hk); arrays for both or neither.
            New keys are divided by their factors, and rounded to the nearest. Factors of rows are written instead: they
            make the largest of each new row the type's largest. Those of V in 4 bits are fp16 (..., Hk, D / 64), one of
            either sign for 64 columns, and are written, too: the largest of these becomes -8.
        cu_seqlens_q, max_seqlen_q: int32 (B + 1,) starts of packed queries (tokens, H, D), and the tokens of the
            longest (without packing, a bound of Sq); the LSE of packed ones is (H, tokens). Packed queries come without
            new keys, and a cache without block_table then needs a multiple of 16 rows.
        tree_mask: the last T = Sq keys of a sequence are those of its queries, the nodes of a tree of guesses, up to
            1,024: bool (T, T) or (B, T, T), [i, j] True if node i sees node j, as each sees itself; all see all keys
            before the nodes. Or words of int32, as ``pack_tree_mask`` makes them once for all layers, also with a row
            for each of all queries, (tokens, words). It does not go with causal, windows, chunks and ALiBi.
            ``keep_rows`` moves the keys of accepted nodes together.
        rotary_positions: int32 (B, new): positions by which the new keys are rotated, and as many queries.

    Keywords of flash-attn 3 are taken as by flash_attn_func.

    Lengths and tables in host memory are checked; on a device they are trusted, as reading them would wait for its
    queue, unless XEFLASH_CHECK is 1.

    >>> import numpy as np, xeflash
    >>> k_cache, v_cache = (np.zeros((2, 100, 2, 64), np.float32) for _ in range(2))
    >>> q, (k, v) = np.ones((2, 1, 8, 64), np.float32), np.ones((2, 2, 1, 2, 64), np.float32)
    >>> lengths = np.array([5, 0], np.int32)
    >>> xeflash.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True).shape
    (2, 1, 8, 64)
    >>> int(k_cache[0, 5].sum()), int(v_cache[1, 0].sum())
    (128, 128)
    """


@flash_attn_with_kvcache.body
def _(call: Call) -> Any:
    if call.arguments.get("cu_seqlens_q") is not None:
        call = on_pages(_with_a_length(call, "cache_seqlens"))
    else:
        call = _unpacked(call)
    out, lse = attend_cache(call)
    return out if lse is None else (out, lse)


def attend_cache(call: Call) -> tuple[Any, Any]:
    """Computes (out, LSE or None) of q on a cache; q may be in 8 bits, and scales may have any form."""
    call = with_blocks(query_in_16_bits(call))
    if "tree_mask" in call.arguments:
        call = tree_in_words(call)
    if "k_scale" in call.arguments or "v_scale" in call.arguments:
        call = with_numbers(call)
    return run(call)


def with_numbers(call: Call) -> Call:
    """Returns the call with numbers in place of scales that are arrays of one element in host memory."""
    found = {}
    for name in ("k_scale", "v_scale"):
        given = call.get(name)
        scale = as_number(call.function, call.word(name), given)
        if isinstance(scale, bool):
            raise call.refuse(name, "must be a number or an array", f"{scale} (bool)", TypeError)
        if scale is not given:
            found[name] = scale
    return call.with_(**found) if found else call


def _with_a_length(call: Call, name: str) -> Call:
    """Replaces a cache_seqlens that is a number by the integer argument `name`: one length for all sequences."""
    length = call.arguments.get("cache_seqlens")
    if not isinstance(length, int | Integral):  # numpy's are Integral
        return call
    if isinstance(length, bool):
        raise call.refuse("cache_seqlens", "must be an integer or an array of int32", f"{length} (bool)", TypeError)
    if not 0 <= int(length) < 2**31:
        raise call.refuse("cache_seqlens", "must be 0 to the rows of the cache", length)
    return call.with_("cache_seqlens", words={name: "cache_seqlens"}, **{name: int(length)})


def _unpacked(call: Call) -> Call:
    """Returns a call on q (B, Sq, H, D) without the arguments of packed queries."""
    given = call.arguments
    if "max_seqlen_q" in given or "cu_seqlens_q" in given:
        if (longest := given.get("max_seqlen_q")) is not None:  # Transformers' continuous batching gives it
            _check_longest(call, longest, shape_of(call.function, "q", call["q"])[1:2])
        call = call.with_("max_seqlen_q", "cu_seqlens_q")
    return _with_a_length(call, "cache_length") if "cache_seqlens" in given else call


def _check_longest(call: Call, longest: Any, rows: tuple[int, ...]) -> None:
    """Checks that max_seqlen_q is at least the rows of q, for a call without packing."""
    if not isinstance(longest, int | Integral) or isinstance(longest, bool):
        raise call.refuse("max_seqlen_q", "must be an integer", type(longest).__name__, TypeError)
    if not all(count <= int(longest) < 2**31 for count in rows):
        raise call.refuse("max_seqlen_q", f"must be at least q.rows ({rows[0]})", longest)
