"""Rewrites of a call: each returns a call in which the schema's arguments replace others."""

from __future__ import annotations

from typing import Any

from xeflash.call.call import Call
from xeflash.call.newer_words import WORDS
from xeflash.call.schema import THD
from xeflash.call.values import is_on, seeds, shape_of
from xeflash.runtime.interop import UsmPart

_AS_CACHE = {**WORDS, "k_cache": "k", "v_cache": "v"}


def seed_of_rng(call: Call) -> Call:
    """Replaces rng by its seed and offset; without dropout, rng is only checked."""
    if "rng" not in call.arguments:
        return call
    if (rng := call["rng"]) is None:
        return call.with_("rng")
    seed, offset = seeds(call.function, call["q"], rng)
    drops = is_on(call.function, "dropout_p", call.get("dropout_p"))
    return call.with_("rng", seed=seed, offset=offset) if drops else call.with_("rng")


def in_parts(call: Call, packed: str) -> Call:
    """Replaces qkv (..., 3, H, D), or kv, by views of its parts."""
    parts, rank = "qkv"[3 - len(packed) :], 4 if call.layout == THD else 5
    views = _views(call, packed, rank, len(parts))
    return call.with_(packed, words=dict.fromkeys(parts, packed), **dict(zip(parts, views, strict=True)))


def starts_of_both(call: Call) -> Call:
    """Replaces cu_seqlens and max_seqlen by the arguments of q and of k."""
    both = ("cu_seqlens", "max_seqlen")
    given = {f"{name}_{part}": call[name] for name in both if name in call for part in "qk"}
    return call.with_(*both, words={f"{name}_{part}": name for name in both for part in "qk"}, **given)


def _views(call: Call, packed: str, rank: int, parts: int) -> tuple[Any, ...]:
    array = call[packed]
    shape = shape_of(call.function, packed, array)
    if len(shape) != rank or shape[-3] != parts:
        rule = f"must have {rank} dimensions with {parts} in the third from last"
        raise call.refuse(packed, rule, f"shape {list(shape)}")
    if hasattr(array, "__getitem__"):
        unbind = getattr(array, "unbind", None)  # torch makes one gradient of an unbind, not one for each part
        return unbind(-3) if unbind else tuple(array[..., i, :, :] for i in range(parts))
    return tuple(UsmPart(array, i) for i in range(parts))


def as_cache(call: Call) -> Call:
    """Replaces k and v by k_cache and v_cache, as both are read alike."""
    given = call.arguments.copy()
    given["k_cache"], given["v_cache"] = given.pop("k"), given.pop("v")
    return Call(given, _AS_CACHE if call.words is WORDS else {**call.words, **_AS_CACHE})
