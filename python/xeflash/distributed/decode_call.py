"""A call of ``context_parallel_with_kvcache``: checked on all ranks, and put into the extension's words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from xeflash.api.attention.kv_cache import attend_cache
from xeflash.api.route import operators_for
from xeflash.call.bind import in_words_of_schema
from xeflash.call.call import Call
from xeflash.call.score_mod import without_comments
from xeflash.distributed.owners import Owners, checked_lengths, owners_of
from xeflash.distributed.rotation import check_tables, rotate
from xeflash.distributed.sharded_cache import EIGHT_BITS

OF_CACHE = {"k_cache", "v_cache", "k_scale", "v_scale", "block_table", "cache_batch_idx"}
OF_CACHE |= {"cache_seqlens", "cache_length"}
_NUMBERS = ["causal", "window_left", "window_right", "softmax_scale", "softcap", "score_mod", "rotary_interleaved"]
_NUMBERS += ["num_splits", "unified_max"]
_OF_ALL = ["owners", "page", "room", "return_softmax_lse", "cache_seqlens", "k", "v", "s_aux"]  # a part has its own
_OF_ALL += ["causal", "window_left", "window_right", "rotary_cos", "rotary_sin", "rotary_interleaved"]


@dataclass(frozen=True)
class Part:
    """The part of a call that one rank runs."""

    call: Call  # attention on this rank's cache
    owners: Owners
    length: int | Tensor  # keys on all ranks before the new ones
    k: Tensor | None  # new keys and values that `call` does not append
    v: Tensor | None
    is_apart: bool  # attention on the cache does not see them: queries see some of them only
    sinks_apart: Any
    return_lse: bool


def read_call(call: Call, groups: Sequence[dist.ProcessGroup], facts: dict[str, Any]) -> Part:
    """Reads a call without None; returns this rank's part, and adds to `facts` what ranks must agree on."""
    if len(groups) > 1:
        raise call.refuse("group", "must be one group", len(groups), NotImplementedError)
    call = in_words_of_schema(call)
    given = call.arguments
    check_arrays(call)
    operators_for(call, given["q"], given["k_cache"], given["v_cache"])  # refuses gradients
    length = checked_lengths(call.function, given.get("cache_seqlens"), len(given["q"]), given["q"].device)
    owners = owners_of_cache(call, groups[0])
    facts |= _facts(call, owners, length)
    q, k, v = _rotated(call, length)
    rows, new = q.shape[1], 0 if k is None else k.shape[1]
    if k is not None and not k.numel():
        k = v = None
    total = length + new
    owners.check_room(call.function, longest(total), room_of(call))

    left, right = given.get("window_left", -1), given.get("window_right", -1)
    if given.get("causal", False):
        right = 0
    if rows == 1:
        right = -1  # it is the last position
    names = _that_need_positions(call, left, right, rows, new)
    if names and not owners.is_ranges:
        name, got = names[0]
        raise NotImplementedError(
            f"{call.function}: {name} must come with owners='ranges', as it needs the positions of keys, got {got} "
            f"with owners='pages'"
        )
    changes: dict[str, Any] = {"q": q}
    if names or (owners.is_ranges and right == 0):
        if _shortest(total) < rows:
            rule = f"must have at most as many rows as there are keys ({_shortest(total)})"
            raise call.refuse("q", rule, rows, NotImplementedError)
        changes |= {"q_start": total - rows, "k_start": owners.start, "bottom_right": False}
        changes |= {"window_left": left, "window_right": right}
        changes |= _with_rows(given.get("score_mod"), given.get("captures"), total - rows)
        right = -1
    is_apart = right == 0 and new > 0
    here: int | Tensor = owners.length(length)
    if isinstance(length, Tensor) and not is_apart:
        here = owners.length(total)
    elif isinstance(length, int) and not is_apart and k is not None and v is not None:
        if runs := owners.runs(length, length + new):
            changes |= {name: joined(x, runs) for name, x in (("k", k), ("v", v))}
        k = v = None
    changes |= _length(here)
    if "s_aux" in given and owners.rank == 0 and not is_apart:
        changes["s_aux"] = given["s_aux"]
    part = call.with_(*_OF_ALL, **changes)
    _check(part, owners.length(total))
    return_lse = bool(given.get("return_softmax_lse", False))
    return Part(part, owners, length, k, v, is_apart, given.get("s_aux"), return_lse)


def _length(here: int | Tensor) -> dict[str, Any]:
    return {"cache_length": here} if isinstance(here, int) else {"cache_seqlens": here}


def _with_rows(score_mod: Any, captures: Any, first: int | Tensor) -> dict[str, Any]:
    """Rewrites a score_mod so that q_idx counts the rows of q, as in one process.

    The kernel's q_idx are positions from `first` on.
    """
    if not isinstance(score_mod, str) or not isinstance(captures, Mapping | None):
        return {}
    code = without_comments(score_mod)
    name = "first_row"
    while name in code:
        name += "_"
    start = f"{name}[b]" if isinstance(first, Tensor) else name
    changed = re.sub(r"\bq_idx\b", f"(q_idx - {start})", code)
    return {} if changed == code else {"score_mod": changed, "captures": {**(captures or {}), name: first}}


def _check(part: Call, here: int | Tensor) -> None:
    """Refuses before anything is written what the kernels would refuse: runs a call without queries."""
    attend_cache(part.with_("k", "v", "unified_max", "num_splits", q=part["q"][:, :0], **_length(here)))


def _facts(call: Call, owners: Owners, length: int | Tensor) -> dict[str, Any]:
    """Returns the facts that all ranks must share."""
    given = call.arguments
    names = ("owners='ranges'", "room") if owners.is_ranges else ("owners='pages'", "page")
    shapes = {f"{x}.shape": list(given[x].shape) for x in ("q", "k", "v") if x in given}
    caches = {f"{x}.heads and head_dim": list(given[x].shape[2:]) for x in ("k_cache", "v_cache")}
    arrays = ("alibi_slopes", "s_aux", "rotary_cos", "captures")
    is_known = isinstance(length, int) or length.device.type == "cpu"
    return {
        **shapes, "q.dtype": given["q"].dtype, **caches,
        "owners": names[0].removeprefix("owners="), names[1]: owners.page,
        "cache_seqlens": (length if isinstance(length, int) else length.tolist()) if is_known else "on a device",
        **{name: given[name] for name in _NUMBERS if name in given}, "arrays": [x for x in arrays if x in given],
    }  # fmt: skip


def joined(x: Tensor, runs: list[slice]) -> Tensor:
    """Joins runs of the columns of x."""
    return x[:, runs[0]] if len(runs) == 1 else torch.cat([x[:, run] for run in runs], 1)


def longest(total: int | Tensor) -> int:
    """Returns the length of the longest sequence, or 0 where only a device knows it."""
    if isinstance(total, int):
        return total
    return int(total.max()) if total.device.type == "cpu" and total.numel() else 0


def _shortest(total: int | Tensor) -> int:
    if isinstance(total, int):
        return total
    return int(total.min()) if total.device.type == "cpu" and total.numel() else 2**31 - 1


def check_arrays(call: Call, like: str = "q") -> None:
    """Refuses arrays that do not suit a call over ranks; the extension checks the rest."""
    given = call.arguments
    sizes = {"q": 4, "k_cache": 4, "v_cache": 4, "k": 4, "v": 4, "block_table": 2, "cache_batch_idx": 1}
    first = given.get(like)
    for name, ndim in sizes.items():
        x = given.get(name)
        if x is None and name not in (like, "k_cache", "v_cache"):
            continue
        if not isinstance(x, Tensor):
            raise call.refuse(name, "must be a torch tensor", type(x).__name__, TypeError)
        if x.ndim != ndim:
            raise call.refuse(name, f"must have {ndim} dimensions", f"shape {list(x.shape)}")
        if isinstance(first, Tensor) and x.device != first.device:
            raise call.refuse(name, f"must be on the device of {like} ({first.device})", x.device)
    if ("k" in given) != ("v" in given):
        raise ValueError(f"{call.function}: k and v must be given together")
    for name in ("k", "v"):
        if name in given:
            _check_new(call, name, like)


def _check_new(call: Call, name: str, like: str) -> None:
    """Refuses new keys, or values, that do not fit into the cache."""
    first, x, scale, cache_name = call[like], call[name], call.get(f"{name}_scale"), f"{name}_cache"
    cache = call[cache_name]
    if x.dtype is not first.dtype:
        raise call.refuse(name, f"must have the dtype of {like} ({first.dtype})", x.dtype, TypeError)
    want = (len(first), call["k"].shape[1], *cache.shape[2:])
    if x.shape != want:
        raise call.refuse(name, f"must have shape {list(want)}", list(x.shape))
    if cache.dtype is not first.dtype and cache.dtype not in EIGHT_BITS:
        rule = f"must have the dtype of {like} ({first.dtype}), or 8 bits"
        raise call.refuse(cache_name, rule, cache.dtype, TypeError)
    if isinstance(scale, Tensor) and scale.shape != cache.shape[:3]:
        rule = (
            f"must be a number or have the shape of {cache_name} without its last dimension {list(cache.shape[:3])} "
            f"with new keys"
        )
        raise call.refuse(f"{name}_scale", rule, list(scale.shape), NotImplementedError)
    if scale is not None and cache.dtype not in EIGHT_BITS:
        raise call.refuse(f"{name}_scale", f"must be None with a cache of {cache.dtype}", "one")


def room_of(call: Call) -> int:
    """Returns the rows that this rank's cache has for a sequence."""
    given = call.arguments
    rows: int = given["k_cache"].shape[1]
    return rows * given["block_table"].shape[1] if "block_table" in given else rows


def owners_of_cache(call: Call, group: dist.ProcessGroup) -> Owners:
    """Returns the owners of positions that the arguments owners, page and room describe."""
    rows = None if "block_table" in call else room_of(call)
    owners = owners_of(call.function, call.get("owners", "pages"), call.get("page"), call.get("room"), rows, group)
    if owners.is_ranges and owners.page > room_of(call):
        raise call.refuse("room", f"must be at most the rows of the cache ({room_of(call)})", owners.page)
    return owners


def _rotated(call: Call, length: int | Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Returns q, k and v, rotated by their positions among the keys of all ranks.

    The kernel of one rank does not know these positions.
    """
    q, k, v, cos, sin = (call.get(name) for name in ("q", "k", "v", "rotary_cos", "rotary_sin"))
    assert isinstance(q, Tensor)
    if cos is None and sin is None:
        return q, k, v
    check_tables(call.function, q, cos, sin)
    if k is None:
        raise ValueError(f"{call.function}: k must be given with rotary_cos and rotary_sin")
    in_order = call.get("causal", False) or max(call.get("window_left", -1), call.get("window_right", -1)) >= 0
    end = longest(length) + max(k.shape[1], q.shape[1] if in_order else 1)
    if end > len(cos):
        raise ValueError(
            f"{call.function}: rotary_cos.rows must be at least the longest sequence ({end}), got {len(cos)}"
        )
    first = length[:, None] if isinstance(length, Tensor) else length

    def at(rows: int) -> Tensor:
        return first + torch.arange(rows, device=q.device).unsqueeze(0)

    interleaved, of_q = (
        call.get("rotary_interleaved", True),
        at(q.shape[1]) if in_order else at(1).expand(-1, q.shape[1]),
    )
    return rotate(q, of_q, cos, sin, interleaved), rotate(k, at(k.shape[1]), cos, sin, interleaved), v


def _that_need_positions(call: Call, left: int, right: int, rows: int, new: int) -> list[tuple[str, Any]]:
    """Returns the arguments whose effect depends on a key's position, with their values."""
    given = call.arguments
    found: list[tuple[str, Any]] = []
    if left >= 0 or right > 0:
        found.append(("window_size", (left, right)))
    elif right == 0 and rows > max(new, 1):
        found.append(("causal=True with more queries than new keys", f"{rows} and {new}"))
    if "alibi_slopes" in given:
        found.append(("alibi_slopes", "some"))
    text = given.get("score_mod")
    if isinstance(text, str) and re.search(r"\b[qk]_idx\b", without_comments(text)):
        found.append(("a score_mod of q_idx or k_idx", repr(text)))
    return found
