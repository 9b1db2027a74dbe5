"""Attention on a cache of keys and values: flash-attn 2's ``flash_attn_with_kvcache``, and what serving adds to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from xeflash.api.float8 import take_query
from xeflash.api.public import public, renamed
from xeflash.api.route import engine
from xeflash.call.schema import BSHD, THD
from xeflash.call.values import as_number, flag, is_array, namespace, shape_of, shown, snippet, take_window


def _attend(function: str, given: dict[str, Any]) -> Any:
    return_lse = given["return_lse"] = flag(function, "return_softmax_lse", given.pop("return_softmax_lse", False))
    longest = given.pop("max_seqlen_q", None)
    length = given.get("cache_seqlens")
    if isinstance(length, bool):
        raise TypeError(f"{function}: cache_seqlens must be an integer or an array of int32, got {length} (bool)")
    if isinstance(length, int | Integral):  # numpy's are Integral
        given["cache_seqlens"] = length = int(length)
        if not 0 <= length < 2**31:
            raise ValueError(f"{function}: cache_seqlens must be 0 to the rows of the cache, got {length}")
    if given.get("cu_seqlens_q") is not None:
        out, lse = _attend_packed(function, given, longest)
        return (out, lse) if return_lse else out
    given.pop("cu_seqlens_q", None)
    if longest is not None:  # Transformers' continuous batching gives it
        _check_longest(function, longest, shape_of(function, "q", given["q"])[1:2])
    if isinstance(length, int):
        given["cache_length"] = given.pop("cache_seqlens")
    out, lse = attend_cache(function, BSHD, given)
    return (out, lse) if return_lse else out


def _check_longest(function: str, longest: Any, rows: tuple[int, ...]) -> None:
    """Without packing, max_seqlen_q bounds the rows of q."""
    if not isinstance(longest, int | Integral) or isinstance(longest, bool):
        raise TypeError(f"{function}: max_seqlen_q must be an integer, got {type(longest).__name__}")
    if not all(count <= int(longest) < 2**31 for count in rows):
        raise ValueError(f"{function}: max_seqlen_q must be at least q.rows ({rows[0]}), got {longest}")


_NOT_PACKED = "k v rotary_cos rotary_sin cache_leftpad beam_index unified_max"


def _attend_packed(function: str, given: dict[str, Any], longest: Any) -> tuple[Any, Any]:
    """Queries (tokens, H, D) on a cache: it is read as pages, which a sequence of a dense one has one of."""
    for name in _NOT_PACKED.split():
        if (value := given.pop(name, None)) is not None:
            raise NotImplementedError(f"{function}: {name} must be None with cu_seqlens_q, got {shown(value)}")
    flag(function, "rotary_interleaved", given.pop("rotary_interleaved", True))  # there is no rotation
    if longest is None:
        raise ValueError(f"{function}: max_seqlen_q must be given with cu_seqlens_q, got None")
    _shape(function, "q", given["q"], "[tokens, heads, head_dim]")
    batch = _shape(function, "cu_seqlens_q", given["cu_seqlens_q"], "[sequences + 1]")[0] - 1
    cached, rows, *_ = _shape(function, "k_cache", given["k_cache"], "[batch or pages, rows, heads, head_dim]")
    sequences, length = given.pop("cache_batch_idx", None), given.pop("cache_seqlens", None)
    names = {"k": "k_cache", "v": "v_cache", "seqused_k": "cache_seqlens"}
    if given.get("block_table") is not None:
        if sequences is not None:
            raise ValueError(f"{function}: cache_batch_idx must be None with block_table, got an array")
        most = rows * _shape(function, "block_table", given["block_table"], "[sequences, pages of a sequence]")[1]
    else:
        if rows % 16:
            raise NotImplementedError(
                f"{function}: k_cache must have a multiple of 16 rows with cu_seqlens_q and without block_table, "
                f"got {rows}"
            )
        if sequences is None:
            if batch > cached:
                raise ValueError(
                    f"{function}: k_cache.batch must be at least that of cu_seqlens_q, {batch}, got {cached}"
                )
            sequences = _int32(function, given["q"], batch)
        elif (of_table := _shape(function, "cache_batch_idx", sequences, "[sequences]")) != (batch,):
            raise ValueError(f"{function}: cache_batch_idx must have shape [{batch}], got {list(of_table)}")
        names |= {"block_table": "cache_batch_idx"}
        given["block_table"], most = sequences[:, None], rows
    most = min(most, 2**31 - 1)
    if length is None or isinstance(length, int):
        length = _int32(function, given["q"], batch, most if length is None else length)
    given |= {"cu_seqlens_k": None, "seqused_k": length, "max_seqlen_q": longest, "max_seqlen_k": most}
    with renamed(names):
        return attend_cache(function, THD, given)


def _shape(function: str, name: str, array: Any, axes: str) -> tuple[int, ...]:
    shape = shape_of(function, name, array)
    if len(shape) != axes.count(",") + 1 or (name == "cu_seqlens_q" and not shape[0]):
        raise ValueError(f"{function}: {name} must have shape {axes}, got {list(shape)}")
    return shape


def _int32(function: str, q: Any, count: int, value: int | None = None) -> Any:
    """So many numbers on the device of q: 0, 1, 2, ..., or one value."""
    xp = namespace(function, "q", q)
    numbers = xp.arange(count, dtype=xp.int32, device=q.device)
    return numbers if value is None else xp.full_like(numbers, value)


@public(_attend)
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
    attention_chunk: int = 0,
    cu_seqlens_q: Any = None,
    max_seqlen_q: int = 0,
    out: Any = None,
) -> Any:
    """Attention of q (B, Sq, H, D) on the keys and values of a cache, after appending new ones to it.

    Args:
        k_cache, v_cache: (B_cache, S, Hk, D), or (pages, page, Hk, D) with block_table; used where they are. Of the
            dtype of q, or float8_e4m3fn, float8_e5m2 or int8.
        k, v: (B, new, Hk, D), written into the cache in place, behind the cache_seqlens keys of each sequence, before
            attention; then all of them are attended.
        rotary_cos, rotary_sin: (positions, rotary / 2), of the dtype of q; rotate the first dimensions of new keys by
            their positions, and of queries: by the positions from cache_seqlens on if causal or with a window, else all
            by cache_seqlens.
        cache_seqlens: keys in the cache before the new ones, an int or int32 (B,); default all of the cache.
        cache_batch_idx: int32 (B,): which sequence of the cache belongs to which of q; default the same.
        cache_leftpad: int32 (B,): where the keys of a sequence begin in the cache.
        block_table: int32 (B, pages of a sequence): the pages of each sequence in order, of a multiple of 16 keys.
        softmax_scale, causal, window_size, softcap, alibi_slopes, s_aux, score_mod, captures, q_scale,
            attention_chunk, out: as in flash_attn_func.
        rotary_interleaved: pairs are neighbours (GPT-J), else the two halves (GPT-NeoX).
        num_splits: of the keys, each for other work-groups, whose results are merged; up to 128; 0 chooses.
        return_softmax_lse: also return the LSE, fp32 (B, H, Sq).
        beam_index: int32 (B, >= keys): for beam search without copies, which sequence of the cache holds the key of
            each position of each row of q; new keys are written there, too.
        unified_max: the maximum to assume for all scores of a single query, so that none is looked for: up to 6 %
            faster with grouped queries, nothing where memory is the limit; a row that is too far from it (by some 14
            above or 28 below) is computed twice. The results are as exact. GPUs look for it all the same where the
            matrix unit multiplies (grouped queries in 16 bits), or head dims are above 128.
        k_scale, v_scale: what the elements of a quantised cache are multiplied by: a number, also as an array of one,
            or fp32 arrays of the cache's shape without D, both or neither. New keys are divided by the number, and
            rounded to the nearest; arrays get the scale that makes the largest of each new row the type's largest. Or
            fp32 (B, Hk), for each sequence and head, without new keys; with block_table, cache_batch_idx or beam_index
            it has to be one number, expanded. An array of one on a device is fp32; with new keys the call waits for it.
        cu_seqlens_q, max_seqlen_q: int32 (B + 1,) starts of packed queries (tokens, H, D), and the tokens of the
            longest (without packing, a bound of Sq); the LSE of packed ones is (H, tokens). There are no new keys, and
            a cache without block_table has a multiple of 16 rows.

    Keywords of flash-attn 3 are taken as by flash_attn_func.

    Lengths and tables in host memory are checked; on a device they are trusted, as reading them would wait for its
    queue.

    >>> import numpy as np, xeflash
    >>> k_cache, v_cache = (np.zeros((2, 100, 2, 64), np.float32) for _ in range(2))
    >>> q, (k, v) = np.ones((2, 1, 8, 64), np.float32), np.ones((2, 2, 1, 2, 64), np.float32)
    >>> lengths = np.array([5, 0], np.int32)
    >>> xeflash.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True).shape
    (2, 1, 8, 64)
    >>> int(k_cache[0, 5].sum()), int(v_cache[1, 0].sum())
    (128, 128)
    """


def attend_cache(function: str, layout: int, given: dict[str, Any]) -> tuple[Any, Any]:
    """(out, LSE or None) of q on a cache; `given` are the arguments of a function."""
    take_window(function, given)
    take_query(function, given)
    core = engine(function, given["q"], given["k_cache"], given["v_cache"], given)
    for name in ("k_scale", "v_scale"):
        if given.get(name) is not None:
            given[name] = _scale(function, name, given)
    score_mod, captures = given.pop("score_mod", None), given.pop("captures", None)
    if score_mod is not None or captures is not None:
        given["score_mod"] = snippet(core, function, score_mod, captures)
    given["function"], given["layout"] = function, layout
    return core.forward(**given)


def _scale(function: str, name: str, arguments: dict[str, Any]) -> Any:
    """A number, or an array for each row and head of the cache, from any form that a scale has."""
    with_new = arguments.get("k") is not None
    scale = as_number(function, name, arguments[name], waits=with_new)
    if isinstance(scale, bool):
        raise TypeError(f"{function}: {name} must be a number or an array, got {scale} (bool)")
    if isinstance(scale, int | float) or not is_array(function, name, scale):
        return scale
    if isinstance(scale, Real):  # of numpy's
        return float(scale)
    shape = tuple(scale.shape)
    dense = hasattr(scale, "reshape") and not getattr(scale, "is_sparse", False)
    if shape in ((), (1,)) and dense and not with_new:  # on a device, which nobody waits for
        scale, shape = scale.reshape(1, 1), (1, 1)
    return _of_rows(function, name, scale, arguments) if len(shape) == 2 else scale


def _of_rows(function: str, name: str, scale: Any, arguments: dict[str, Any]) -> Any:
    """Scales (B, Hk) as those of the rows of a cache, (B_cache, S, Hk), without a copy."""
    cache = name[0] + "_cache"
    if getattr(scale, "is_sparse", False):
        return scale  # which the extension refuses
    rows, keys, heads = shape_of(function, cache, arguments[cache])[:3]
    strides = scale.stride() if hasattr(scale, "stride") else scale.strides
    is_one = scale.shape[1] in (1, heads) and all(n == 1 or not by for n, by in zip(scale.shape, strides, strict=True))
    elsewhere = any(arguments.get(table) is not None for table in ("block_table", "cache_batch_idx", "beam_index"))
    if not is_one and not elsewhere and tuple(scale.shape) != (rows, heads):
        return scale  # which the extension refuses, by its shape
    if arguments.get("k") is not None:
        raise NotImplementedError(
            f"{function}: {name} of (B, Hk) must come without new keys, got shape {list(scale.shape)}"
        )
    if elsewhere and not is_one:
        raise NotImplementedError(
            f"{function}: {name} of (B, Hk) must be one number, expanded, where sequences are not rows of the cache, "
            f"got shape {list(scale.shape)} and strides {list(strides)}"
        )
    scale = scale[:1, None, :1] if is_one else scale[:, None]
    if hasattr(scale, "expand"):
        return scale.expand(rows, keys, heads)
    return namespace(function, name, scale).broadcast_to(scale, (rows, keys, heads))
