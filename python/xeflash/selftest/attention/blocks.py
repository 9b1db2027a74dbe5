"""Blocks of a Spec: which blocks of rows and keys are listed, and the forms in which a call says it.

Behind the size of a block may stand, with dots between: 11, b1 or 1h, which have the same blocks for all sequences or
heads; all or none, where that many are listed; causal, where those are listed that a causal mask does not hide whole,
and those are full of which it hides nothing; lists, for FA4's four arrays in the place of bools; words, for the
extension's own bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from xeflash.selftest.attention.spec import MEMORY, Spec
from xeflash.selftest.reference import Blocks, to_numpy
from xeflash.selftest.values import Values

Array: TypeAlias = "np.ndarray[Any, Any]"
Random: TypeAlias = np.random.Generator

_LISTS = ("mask_block_cnt", "mask_block_idx", "full_block_cnt", "full_block_idx")
_NOWHERE = 2**31 - 1  # behind the end of a list


def _words(spec: Spec) -> tuple[str, ...]:
    return tuple((spec.word("blocks") or "64").split("."))


def block_of(spec: Spec) -> tuple[int, int]:
    """Returns the rows and keys of a block."""
    rows, _, keys = _words(spec)[0].partition("x")
    return int(rows), int(keys or rows)


def draw_blocks(spec: Spec, longest: tuple[int, int], random: Random) -> dict[str, Values]:
    """Draws which blocks of the longest sequence are listed, and which of these are full: without a mask_mod, all."""
    if not spec.has("blocks"):
        return {}
    words, (rows, keys), block = _words(spec), longest, block_of(spec)
    axes = next((word for word in words if word in ("11", "b1", "1h")), "bh")
    shape = [len(spec.sequences) if axes[0] == "b" else 1, spec.heads[0] if axes[1] == "h" else 1]
    shape += [-(-n // size) for n, size in zip((rows, keys), block, strict=True)]
    share = 1.0 if "all" in words else 0.0 if "none" in words else random.choice([0.3, 0.6])
    listed = random.random(shape) < share
    listed &= random.random((*shape[:3], 1)) < (1.0 if share == 1 else 0.85)  # some rows have no block
    full = random.random(shape) < 0.5
    if "causal" in words:
        first, last = np.arange(shape[2])[:, None] * block[0], np.arange(shape[3]) * block[1]
        ends = np.minimum(first + block[0], rows) - 1, np.minimum(last + block[1], keys) - 1
        shift = 0 if spec.top_left else keys - rows
        listed[...], full[...] = last <= ends[0] + shift, ends[1] <= first + shift
    elif not spec.has("mask_mod"):
        full[...] = True
    elif "lists" not in words and "words" not in words:
        full[...] = False
    return {"listed": Values.of(listed, "bool"), "full": Values.of(listed & full, "bool")}


def blocks_of(spec: Spec, b: int, given: Mapping[str, Any]) -> Blocks | None:
    """Returns the blocks of sequence b."""
    if not spec.has("blocks"):
        return None
    listed, full = (to_numpy(given[name]) for name in ("listed", "full"))
    own = slice(b, b + 1) if len(listed) == len(spec.sequences) else slice(None)
    return Blocks(listed[own], full[own], *block_of(spec))


def said_blocks(spec: Spec, longest: tuple[int, int], values: Mapping[str, Values]) -> dict[str, Values]:
    """Returns the arrays by which a call says what is listed."""
    if not spec.has("blocks"):
        return {}
    listed, full, words = values["listed"].bits, values["full"].bits, _words(spec)
    if "words" in words or spec.kind in MEMORY:
        return {"blocks": Values.of(bits_of(listed, full, longest, block_of(spec)), "int32")}
    if "lists" not in words:
        return {"block_mask": Values.of(listed, "bool")}
    lists = (*_lists(listed & ~full), *_lists(full))
    return {name: Values.of(x, "int32") for name, x in zip(_LISTS, lists, strict=True)}


def blocks_in_words(spec: Spec, said: dict[str, Any]) -> dict[str, Any]:
    """Returns the keywords of blocks; takes their lists out of what is `said`."""
    if not spec.has("blocks"):
        return {}
    block = block_of(spec)
    if "blocks" in said:
        return dict(zip(("block_rows", "block_keys"), map(_least, block), strict=True))
    lists = {"block_mask": tuple(said.pop(name) for name in _LISTS)} if _LISTS[0] in said else {}
    return lists | {"block_size": block if block[0] != block[1] else block[0]}


def _lists(marked: Array) -> tuple[Array, Array]:
    """Returns how many key blocks each block of rows has, and which, in some order."""
    counts, columns = marked.sum(-1), np.arange(marked.shape[-1])
    order = np.argsort(np.where(marked, -columns, 1), axis=-1, kind="stable")  # ascending is not promised
    return counts, np.where(columns < counts[..., None], order, _NOWHERE)


def _least(size: int) -> int:
    """Returns the largest power of two that divides it."""
    return size & -size


def bits_of(listed: Array, full: Array, sizes: tuple[int, int], block: tuple[int, int]) -> Array:
    """Returns the bits of a call in the extension, (B or 1, H or 1, n), of blocks that are powers of two."""
    sides = [_split(_split(x, -2, sizes[0], block[0]), -1, sizes[1], block[1]) for x in (listed, full)]
    sides += [x.swapaxes(-1, -2) for x in sides]
    padded = [np.pad(x, (*[(0, 0)] * 3, (0, -x.shape[-1] % 32))) for x in sides]
    words = [np.packbits(np.ascontiguousarray(x), axis=-1, bitorder="little").view(np.int32) for x in padded]
    return np.concatenate([x.reshape(*x.shape[:2], x.shape[2] * x.shape[3]) for x in words], -1)


def _split(blocks: Array, axis: int, count: int, size: int) -> Array:
    """Returns the blocks of `count` rows or keys divided into some of the least size."""
    least = _least(size)
    return np.repeat(blocks, size // least, axis).take(np.arange(-(-count // least)), axis)
