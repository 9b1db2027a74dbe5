"""Attention on a cache of keys and values: flash-attn 2's ``flash_attn_with_kvcache``, and what serving adds to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from xeflash.api.public import public
from xeflash.api.route import engine
from xeflash.call.schema import BSHD
from xeflash.call.values import shape_of, snippet, take_window


def _attend(function: str, given: dict[str, Any]) -> Any:
    return_lse = given["return_lse"] = given.pop("return_softmax_lse", False)
    length = given.get("cache_seqlens")
    if isinstance(length, int | Integral) and not isinstance(length, bool):  # numpy's are Integral
        given["cache_length"] = length = int(length)
        if not 0 <= length < 2**31:
            raise ValueError(f"{function}: cache_seqlens must be 0 to the rows of the cache, got {length}")
        del given["cache_seqlens"]
    out, lse = attend_cache(function, BSHD, given)
    return (out, lse) if return_lse else out


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
    k_scale: Any = None,
    v_scale: Any = None,
    score_mod: str | None = None,
    captures: Mapping[str, Any] | None = None,
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
        softmax_scale, causal, window_size, softcap, alibi_slopes, s_aux, score_mod, captures: as in flash_attn_func.
        rotary_interleaved: pairs are neighbours (GPT-J), else the two halves (GPT-NeoX).
        num_splits: of the keys, each for other work-groups, whose results are merged; up to 128; 0 chooses.
        return_softmax_lse: also return the LSE, fp32 (B, H, Sq).
        beam_index: int32 (B, >= keys): for beam search without copies, which sequence of the cache holds the key of
            each position of each row of q; new keys are written there, too.
        unified_max: the maximum to assume for all scores of a single query, so that none is looked for: up to 6 %
            faster with grouped queries, nothing where memory is the limit; a row that is too far from it (by some 14
            above or 28 below) is computed twice. The results are as exact. GPUs look for it all the same where the
            matrix unit multiplies (grouped queries in 16 bits), or head dims are above 128.
        k_scale, v_scale: what the elements of a quantised cache are multiplied by: a number, or fp32 arrays of the
            cache's shape without D. New keys are divided by the number, and rounded to the nearest; arrays get the
            scale that makes the largest of each new row the type's largest. Or fp32 (B, Hk), for each sequence and
            head, without new keys; with block_table, cache_batch_idx or beam_index it has to be one number, expanded.

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
    core = engine(function, given["q"], given["k_cache"], given["v_cache"], given)
    for name in ("k_scale", "v_scale"):
        scale = given.get(name)
        if scale is None or isinstance(scale, int | float):
            if isinstance(scale, bool):
                raise TypeError(f"{function}: {name} must be a number or an array, got {scale} (bool)")
        elif isinstance(scale, Real):  # of numpy's
            given[name] = float(scale)
        elif len(getattr(scale, "shape", ())) == 2:
            given[name] = _of_rows(function, name, given)
    score_mod, captures = given.pop("score_mod", None), given.pop("captures", None)
    if score_mod is not None or captures is not None:
        given["score_mod"] = snippet(core, function, score_mod, captures)
    given["function"], given["layout"] = function, layout
    return core.forward(**given)


def _of_rows(function: str, name: str, arguments: dict[str, Any]) -> Any:
    """Scales (B, Hk) as those of the rows of a cache, (B_cache, S, Hk), without a copy."""
    scale, cache = arguments[name], name[0] + "_cache"
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
    return scale.__array_namespace__().broadcast_to(scale, (rows, keys, heads))
