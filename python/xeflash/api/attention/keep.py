"""Moves of accepted rows of a cache, for decoding that verifies a tree of guesses and keeps one of its paths."""

from __future__ import annotations

import sys
from numbers import Integral
from typing import Any

from xeflash.api.route import operators_for
from xeflash.call.bind import public
from xeflash.call.call import Call
from xeflash.call.values import host_sees, is_array, namespace, shape_of

_AXES = {"k_cache": ("heads", "head_dim"), "v_cache": ("head_dim",), "k_scale": (), "v_scale": ()}  # others: of k_cache


@public()
def keep_rows(
    k_cache: Any,
    v_cache: Any,
    accepted: Any,
    cache_seqlens: Any,
    *,
    block_table: Any = None,
    cache_batch_idx: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
) -> None:
    """Moves the keys and values of a tree's accepted nodes together in a cache, in place and in their order.

    Args:
        k_cache, v_cache: (B_cache, S, Hk, D), or (pages, page, Hk, D) with block_table, of any dtype and strides; or
            lists of those of all layers. V may be a part of K, as in latent caches, or in 4 bits.
        accepted: int32 or int64 (B, N): the nodes of each sequence to keep, and -1 behind the last one.
        cache_seqlens: the keys before the nodes, an int or int32 (B,). Row cache_seqlens[b] + n gets what row
            cache_seqlens[b] + accepted[b, n] had; for a -1 no row changes.
        block_table, cache_batch_idx: as in flash_attn_with_kvcache.
        k_scale, v_scale: fp32 factors of rows, (B_cache, S, Hk) or (pages, page, Hk), or lists of them; they move, too.
            Both are given, or neither. v_scale is fp16 (..., Hk, D / 64) for a V in 4 bits.

    Nothing waits for a device. Numbers in host memory are checked, but below torch.compile; those on a device are
    trusted, unless XEFLASH_CHECK is 1.

    >>> import numpy as np, xeflash
    >>> k_cache, v_cache = np.arange(12.0).reshape(2, 1, 6, 1, 1)
    >>> xeflash.keep_rows(k_cache, v_cache, np.array([[0, 2, -1]]), 2)
    >>> k_cache.flatten().tolist(), v_cache.flatten().tolist()
    ([0.0, 1.0, 2.0, 4.0, 4.0, 5.0], [6.0, 7.0, 8.0, 10.0, 10.0, 11.0])
    """


@keep_rows.body
def _(call: Call) -> None:
    operators_for(call, None)  # which refuses gradients
    arrays = [x for name in _AXES for x in _layers(call, name)]
    if (call.get("k_scale") is None) != (call.get("v_scale") is None):
        raise ValueError(f"{call.function}: k_scale and v_scale must be given together")
    (cached, rows, *_), accepted, start = arrays[0].shape, call["accepted"], call["cache_seqlens"]
    batch, count = _shape(call, "accepted", accepted, arrays[0], "int32 or int64", "sequences", "nodes")
    is_number = isinstance(start, Integral) and not isinstance(start, bool)
    if not is_number:
        if not is_array(call.function, "cache_seqlens", start):
            raise call.refuse("cache_seqlens", "must be an int, or int32 of each sequence", repr(start), TypeError)
        _shape(call, "cache_seqlens", start, arrays[0], "int32", batch)
        start = start[:, None]
    elif not 0 <= start < 2**31:
        raise call.refuse("cache_seqlens", "must be 0 to the rows of the cache", f"{start!s:.40}")
    xp = namespace(call.function, "accepted", accepted)
    one, live = xp.ones_like(accepted, dtype=xp.int64), accepted >= 0
    number, sequence = one.cumsum(1) - 1, one.cumsum(0) - 1
    if (table := call.get(by := "block_table")) is not None:
        _shape(call, by, table, arrays[0], "int32", batch, "pages of a sequence")
        if call.get("cache_batch_idx") is not None:
            raise call.refuse_given("cache_batch_idx", f"must be None with {call.word(by)}")
    elif (table := call.get(by := "cache_batch_idx")) is not None:
        _shape(call, by, table, arrays[0], "int32", batch)
        table = table[:, None]  # a sequence of the cache is its only page
    elif batch != cached:
        raise call.refuse("accepted", f"must have a row for each sequence of k_cache ({cached})", batch)
    else:
        table = sequence[:, :1]
    if count and host_sees(call.function, "accepted", accepted):
        _check_values(call, by, (one * start).tolist(), table.tolist(), rows, cached)
    if not batch * count * cached * rows * table.shape[1]:
        return
    # A -1 copies an accepted row once more, and where there is none at all a row of the cache onto itself.
    chosen = xp.where(live.reshape(-1), one.reshape(-1).cumsum(0) - 1, accepted.reshape(-1).argmax(0))
    places = []
    for node in (accepted, number):
        row = xp.where(live, node * one + start, 0)
        page = xp.where(live, table[sequence, row // rows] * one, 0)
        places.append((page.reshape(-1)[chosen], (row % rows).reshape(-1)[chosen]))
    kept = [x[places[0]] for x in arrays]  # of all, before one is written, as arrays may share memory
    for x, values in zip(arrays, kept, strict=True):
        x[places[1]] = values


def _layers(call: Call, name: str) -> list[Any]:
    """Returns the arrays of an argument, one for each layer, checked against those of k_cache."""
    given, keys, found = call.get(name), call["k_cache"], []
    if given is None and name in ("k_scale", "v_scale"):
        return []
    are_lists = isinstance(keys, list | tuple)
    if are_lists != isinstance(given, list | tuple):
        rule = "must be a list" if are_lists else "must be one array"
        raise call.refuse(name, f"{rule}, as k_cache is", type(given).__name__, TypeError)
    if not are_lists:
        given, keys = [given], [keys]
    elif not keys or len(given) != len(keys):
        raise call.refuse(name, f"must have an array for each layer ({max(1, len(keys))})", len(given))
    for i, (x, k) in enumerate(zip(given, keys, strict=True)):
        word = name if keys is not call["k_cache"] else f"{name}[{i}]"
        like = shape_of(call.function, "k_cache", keys[0] if name == "k_cache" else k)[: 2 if name == "k_cache" else 3]
        of_units = name == "v_scale" and len(shape_of(call.function, call.word(word), x)) == 4  # a V in 4 bits
        dtype = "float16" if of_units else "float32" if "scale" in name else ""
        _shape(call, word, x, keys[0], dtype, *like, *(("units",) if of_units else _AXES[name]))
        found.append(_to_write(call, word, x))
    return found


def _to_write(call: Call, name: str, x: Any) -> Any:
    """Returns an array that can be written through; torch's of 8 bits as integers, which it moves on any device."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor):
        if not getattr(getattr(x, "flags", None), "writeable", True):
            raise call.refuse(name, "must be writable", "one that is read-only")
        return x
    if x.layout is not torch.strided:
        raise call.refuse(name, "must be a dense tensor", x.layout, TypeError)
    if any(n > 1 and step == 0 for n, step in zip(x.shape, x.stride(), strict=True)):
        raise call.refuse(name, "must not have elements in one place", f"strides {list(x.stride())}")
    if not torch.compiler.is_compiling() and x.is_inference() and not torch.is_inference_mode_enabled():
        raise call.refuse(name, "must be written in inference mode, where it was made", "a call outside of it")
    return x.view(torch.uint8) if x.element_size() == 1 else x


def _shape(call: Call, name: str, x: Any, like: Any, dtypes: str, *axes: int | str) -> tuple[int, ...]:
    """Returns the shape of an array, which is checked against axes; its library and device are those of `like`."""
    word, shape = call.word(name), shape_of(call.function, call.word(name), x)
    if namespace(call.function, word, x) is not namespace(call.function, "k_cache", like):
        raise call.refuse(name, f"must be a {type(like).__name__} as k_cache is one", type(x).__name__, TypeError)
    if (device := getattr(x, "device", None)) != getattr(like, "device", None):
        raise call.refuse(name, f"must be on the device of k_cache ({like.device})", device)
    if dtypes and (dtype := str(x.dtype).removeprefix("torch.")) not in dtypes.split(" or "):
        raise call.refuse(name, f"must be {dtypes}", dtype, TypeError)
    if len(shape) != len(axes) or not all(isinstance(a, str) or n == a for n, a in zip(shape, axes, strict=True)):
        raise call.refuse(name, f"must have shape [{', '.join(map(str, axes))}]", list(shape))
    return shape


def _check_values(call: Call, by: str, starts: list[Any], table: list[list[int]], rows: int, cached: int) -> None:
    places = []
    for b, (row, (start, *_), pages) in enumerate(zip(call["accepted"].tolist(), starts, table, strict=True)):
        nodes = [node for node in row if node >= 0]
        if row != nodes + [-1] * (len(row) - len(nodes)) or len(set(nodes)) < len(nodes):
            raise call.refuse("accepted", "must name nodes of a sequence, each once, and then -1", f"{row} at [{b}]")
        if nodes and not 0 <= start <= start + max(nodes) < rows * len(pages):
            rule = f"and the last node must be rows of a sequence, 0 to {rows * len(pages) - 1}"
            raise call.refuse("cache_seqlens", rule, f"{start} and node {max(nodes)} at [{b}]")
        used = pages[start // rows : (start + max(nodes)) // rows + 1] if nodes else []
        if wrong := [page for page in used if not 0 <= page < cached]:
            raise call.refuse(by, f"must be 0 to {cached - 1}", f"{wrong[0]} for sequence {b}")
        places += [(pages[at // rows], at % rows) for at in range(start, start + len(nodes))]
    if len(set(places)) < len(places):
        raise call.refuse(by, "must lead kept rows to a place each", "one place for two")
