"""What a call of ``context_parallel_with_kvcache`` says: checked on all ranks, and as the extension takes it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from xeflash.api.kv_cache import attend_cache
from xeflash.api.route import engine
from xeflash.call.schema import BSHD
from xeflash.call.score_mod import without_comments
from xeflash.call.values import take_window
from xeflash.distributed.owners import Owners, checked_lengths, owners_of
from xeflash.distributed.rotation import check_tables, rotate
from xeflash.distributed.sharded_cache import EIGHT_BITS

OF_CACHE = {"k_cache", "v_cache", "k_scale", "v_scale", "block_table", "cache_batch_idx"}
OF_CACHE |= {"cache_seqlens", "cache_length"}
_NUMBERS = ["causal", "window_left", "window_right", "softmax_scale", "softcap", "score_mod", "rotary_interleaved"]
_NUMBERS += ["num_splits", "unified_max"]


@dataclass(frozen=True)
class Call:
    """A call on one rank."""

    function: str
    owners: Owners
    length: int | Tensor  # keys on all ranks before the new ones
    arguments: dict[str, Any]  # of attention on this rank's cache
    k: Tensor | None  # new keys and values that `arguments` do not append
    v: Tensor | None
    is_apart: bool  # attention on the cache does not see them: queries see some of them only
    sinks_apart: Any
    return_lse: bool


def read_call(function: str, groups: Sequence[dist.ProcessGroup], given: dict[str, Any], facts: dict[str, Any]) -> Call:
    """Of arguments that are given, none of which is None; puts what ranks must have in common into `facts`."""
    if len(groups) > 1:
        raise NotImplementedError(f"{function}: group must be one group, got {len(groups)}")
    return_lse = bool(given.pop("return_softmax_lse", False))
    take_window(function, given)
    check_arrays(function, given)
    engine(function, given["q"], given["k_cache"], given["v_cache"], given)  # refuses gradients
    length = checked_lengths(function, given.pop("cache_seqlens", None), len(given["q"]), given["q"].device)
    owners = owners_of_cache(function, given, groups[0])
    facts |= _facts(given, owners, length)
    q, k, v = _rotated(function, given, length)
    rows, new = q.shape[1], 0 if k is None else k.shape[1]
    if k is not None and not k.numel():
        k = v = None
    total = length + new
    owners.check_room(function, longest(total), room_of(given))

    left, right = given.pop("window_left", -1), given.pop("window_right", -1)
    if given.pop("causal", False):
        right = 0
    if rows == 1:
        right = -1  # it is the last position
    names = _that_need_positions(given, left, right, rows, new)
    if names and not owners.is_ranges:
        name, got = names[0]
        raise NotImplementedError(
            f"{function}: {name} must come with owners='ranges', as it needs the positions of keys, got {got} with "
            f"owners='pages'"
        )
    sinks = given.pop("s_aux", None)
    call = {**given, "q": q}
    if names or (owners.is_ranges and right == 0):
        if _shortest(total) < rows:
            raise NotImplementedError(
                f"{function}: q must have at most as many rows as there are keys ({_shortest(total)}), got {rows}"
            )
        call |= {"q_start": total - rows, "k_start": owners.start, "bottom_right": False}
        call |= {"window_left": left, "window_right": right}
        call |= _with_rows(given.get("score_mod"), given.get("captures"), total - rows)
        right = -1
    is_apart = right == 0 and new > 0
    here: int | Tensor = owners.length(length)
    if isinstance(length, Tensor) and not is_apart:
        here = owners.length(total)
    elif isinstance(length, int) and not is_apart and k is not None and v is not None:
        if runs := owners.runs(length, length + new):
            call |= {name: joined(x, runs) for name, x in (("k", k), ("v", v))}
        k = v = None
    call |= {"cache_length": here} if isinstance(here, int) else {"cache_seqlens": here}
    if sinks is not None and owners.rank == 0 and not is_apart:
        call["s_aux"] = sinks
    _check(function, call, owners.length(total))
    return Call(function, owners, length, call, k, v, is_apart, sinks, return_lse)


def _with_rows(score_mod: Any, captures: Any, first: int | Tensor) -> dict[str, Any]:
    """A score_mod whose q_idx counts the rows of q, as in one process: the kernel's are positions from `first` on."""
    if not isinstance(score_mod, str) or not isinstance(captures, Mapping | None):
        return {}
    code = without_comments(score_mod)
    name = "first_row"
    while name in code:
        name += "_"
    start = f"{name}[b]" if isinstance(first, Tensor) else name
    changed = re.sub(r"\bq_idx\b", f"(q_idx - {start})", code)
    return {} if changed == code else {"score_mod": changed, "captures": {**(captures or {}), name: first}}


def _check(function: str, call: dict[str, Any], here: int | Tensor) -> None:
    """Refuses what the kernels would, before anything is written: a call without queries, as if new keys were there."""
    without = {name: x for name, x in call.items() if name not in ("k", "v", "unified_max", "num_splits")}
    without |= {"cache_length": here} if isinstance(here, int) else {"cache_seqlens": here}
    attend_cache(function, BSHD, {**without, "q": call["q"][:, :0]})


def _facts(given: Mapping[str, Any], owners: Owners, length: int | Tensor) -> dict[str, Any]:
    """What all ranks must have in common."""
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
    """These columns of x, one run behind the other."""
    return x[:, runs[0]] if len(runs) == 1 else torch.cat([x[:, run] for run in runs], 1)


def longest(total: int | Tensor) -> int:
    """Of the sequences, as far as it is known: what lies on a device is trusted."""
    if isinstance(total, int):
        return total
    return int(total.max()) if total.device.type == "cpu" and total.numel() else 0


def _shortest(total: int | Tensor) -> int:
    if isinstance(total, int):
        return total
    return int(total.min()) if total.device.type == "cpu" and total.numel() else 2**31 - 1


def check_arrays(function: str, given: Mapping[str, Any], like: str = "q") -> None:
    """Refuses arrays that are not as what is done here needs them; the extension looks at the rest."""
    sizes = {"q": 4, "k_cache": 4, "v_cache": 4, "k": 4, "v": 4, "block_table": 2, "cache_batch_idx": 1}
    for name, ndim in sizes.items():
        x = given.get(name)
        if x is None and name not in (like, "k_cache", "v_cache"):
            continue
        if not isinstance(x, Tensor):
            raise TypeError(f"{function}: {name} must be a torch tensor, got {type(x).__name__}")
        if x.ndim != ndim:
            raise ValueError(f"{function}: {name} must have {ndim} dimensions, got shape {list(x.shape)}")
        if isinstance(first := given.get(like), Tensor) and x.device != first.device:
            raise ValueError(f"{function}: {name} must be on the device of {like} ({first.device}), got {x.device}")
    first = given[like]
    if ("k" in given) != ("v" in given):
        raise ValueError(f"{function}: k and v must be given together")
    for name in ("k", "v"):
        if name not in given:
            continue
        x, cache = given[name], given[f"{name}_cache"]
        if x.dtype is not first.dtype:
            raise TypeError(f"{function}: {name} must have the dtype of {like} ({first.dtype}), got {x.dtype}")
        want = (len(first), given["k"].shape[1], *cache.shape[2:])
        if x.shape != want:
            raise ValueError(f"{function}: {name} must have shape {list(want)}, got {list(x.shape)}")
        if cache.dtype is not first.dtype and cache.dtype not in EIGHT_BITS:
            raise TypeError(
                f"{function}: {name}_cache must have the dtype of {like} ({first.dtype}), or 8 bits, got {cache.dtype}"
            )
        scale = given.get(f"{name}_scale")
        if isinstance(scale, Tensor) and scale.shape != cache.shape[:3]:
            raise NotImplementedError(
                f"{function}: {name}_scale must be a number or have the shape of {name}_cache without its last "
                f"dimension {list(cache.shape[:3])} with new keys, got {list(scale.shape)}"
            )
        if scale is not None and cache.dtype not in EIGHT_BITS:
            raise ValueError(f"{function}: {name}_scale must be None with a cache of {cache.dtype}, got one")


def room_of(given: Mapping[str, Any]) -> int:
    """Rows that this rank's cache has for a sequence."""
    rows: int = given["k_cache"].shape[1]
    return rows * given["block_table"].shape[1] if "block_table" in given else rows


def owners_of_cache(function: str, given: dict[str, Any], group: dist.ProcessGroup) -> Owners:
    """What owners, page and room say, which are taken out of `given`."""
    rows = None if "block_table" in given else room_of(given)
    page, room = given.pop("page", None), given.pop("room", None)
    owners = owners_of(function, given.pop("owners", "pages"), page, room, rows, group)
    if owners.is_ranges and owners.page > room_of(given):
        raise ValueError(
            f"{function}: room must be at most the rows of the cache ({room_of(given)}), got {owners.page}"
        )
    return owners


def _rotated(function: str, given: dict[str, Any], length: int | Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """q, k and v, by their positions among the keys of all ranks, which the kernel of one rank does not know."""
    q, k, v = given.pop("q"), given.pop("k", None), given.pop("v", None)
    cos, sin = given.pop("rotary_cos", None), given.pop("rotary_sin", None)
    interleaved = given.pop("rotary_interleaved", True)
    if cos is None and sin is None:
        return q, k, v
    check_tables(function, q, cos, sin)
    if k is None:
        raise ValueError(f"{function}: k must be given with rotary_cos and rotary_sin")
    in_order = given.get("causal", False) or max(given.get("window_left", -1), given.get("window_right", -1)) >= 0
    end = longest(length) + max(k.shape[1], q.shape[1] if in_order else 1)
    if end > len(cos):
        raise ValueError(f"{function}: rotary_cos.rows must be at least the longest sequence ({end}), got {len(cos)}")
    first = length[:, None] if isinstance(length, Tensor) else length

    def at(rows: int) -> Tensor:
        return first + torch.arange(rows, device=q.device).unsqueeze(0)

    of_q = at(q.shape[1]) if in_order else at(1).expand(-1, q.shape[1])
    return rotate(q, of_q, cos, sin, interleaved), rotate(k, at(k.shape[1]), cos, sin, interleaved), v


def _that_need_positions(given: Mapping[str, Any], left: int, right: int, rows: int, new: int) -> list[tuple[str, Any]]:
    """Arguments by whose results a key's position matters, and their values."""
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
