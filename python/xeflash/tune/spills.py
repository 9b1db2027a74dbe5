"""Tiles that need more registers than a thread has: the lines of spills.csv.

A line says of a kind of kernels, and a tile, how many bytes an example of the kind spills. An empty field is any value,
a|b is one of two, 72-128 a range; features are words of FEATURES, and a kernel has all of them. An example is an
architecture, rows, head dims of K and V, and what else the kernel has, in the words of perf/counting/spills.py.

`python perf/counts.py spills --candidates --output FILE` measures all lines, and leaves out those that do not spill. A
new line may have no example: the command finds one.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from xeflash.tune.desc import Desc

FILE = Path(__file__).with_name("spills.csv")


class Line(NamedTuple):
    """A line of the file, as it is written there; widest is the larger of the two head dims."""

    algorithm: str
    arch: str
    dtype: str
    access: str
    features: str
    rows: str
    widest: str
    head_dim: str
    head_dim_v: str
    block_q: str
    block_k: str
    example: str
    spilled: str

    @property
    def tile(self) -> tuple[int, int]:
        """Returns (block_q, block_k)."""
        return int(self.block_q), int(self.block_k)

    def is_of(self, desc: Desc) -> bool:
        """Returns whether a kernel is of this kind."""
        names = (desc.algorithm, desc.arch, desc.dtype, desc.access)
        numbers = (desc.rows, max(desc.head_dim, desc.head_dim_v), desc.head_dim, desc.head_dim_v)
        return (
            all(not text or name in text.split("|") for text, name in zip(self[:4], names, strict=True))
            and all(FEATURES[word](desc) for word in self.features.split())
            and all(number in sizes(text) for text, number in zip(self[5:9], numbers, strict=True))
        )


@functools.cache
def sizes(text: str) -> range:
    """Returns the sizes of a range."""
    low, _, high = (text or "1-576").partition("-")
    return range(int(low), int(high or low) + 1)


@functools.cache
def lines() -> list[Line]:
    """Returns the lines of the file."""
    with FILE.open(newline="") as file:
        return [Line(**row) for row in csv.DictReader(file)]


@functools.cache
def _of_tiles() -> dict[tuple[str, tuple[int, int]], list[Line]]:
    keys = {(line.algorithm, line.tile) for line in lines()}
    return {key: [line for line in lines() if (line.algorithm, line.tile) == key] for key in keys}


def spill(desc: Desc, blocks: tuple[int, int]) -> bool:
    """Returns whether a line says that a kernel of these tiles spills."""
    return any(line.is_of(desc) for line in _of_tiles().get((desc.algorithm, blocks), ()))


def changes_scores(desc: Desc) -> bool:
    """Returns whether a score is more than a product and a scale, or is hidden by what arrays say."""
    reads = desc.mask_mod is not None and any(kind not in ("float", "int") for _, kind, _ in desc.mask_mod.captures)
    return bool(desc.hooks) or desc.bias is not None or desc.score_mod is not None or reads


def is_heavy(desc: Desc) -> bool:
    """Returns whether the scores of the backward pass, and their slopes, take many registers."""
    features = len(desc.hooks) + (desc.bias is not None) + desc.dropout + (desc.mask != "Window")
    return desc.score_mod is not None or features > 1


def is_plain(desc: Desc) -> bool:
    """Returns whether scores are products and a scale, of K in its own type."""
    return not changes_scores(desc) and desc.cache_dtype is None


def sees_ranges(desc: Desc) -> bool:
    """Returns whether a row sees all keys of a range; a tree hides some in the last blocks only."""
    return desc.mask in ("Window", "Tree")


# Kinds of kernels, by what takes registers: the words of a row's scores, and of a line's features.
FEATURES: dict[str, Callable[[Desc], bool]] = {
    "plain": is_plain,
    "bare": lambda desc: is_plain(desc) and sees_ranges(desc),
    "lone": lambda desc: FEATURES["bare"](desc) and not desc.packed_heads and desc.cache != "beam",  # rows in order
    "ordered": lambda desc: FEATURES["quiet"](desc) and not desc.packed_heads and desc.cache != "beam",
    "quiet": lambda desc: is_plain(desc) and not desc.dropout,
    "calm": lambda desc: FEATURES["quiet"](desc) and sees_ranges(desc),
    "still": lambda desc: FEATURES["bare"](desc) and not (desc.dropout and desc.arch == "pvc"),
    "changed": changes_scores,
    "placed": lambda desc: desc.bias is not None or desc.score_mod is not None or "Alibi" in desc.hooks,  # by its place
    "heavy": is_heavy,
    "quantised": lambda desc: desc.cache_dtype is not None,
    "nibbles": lambda desc: desc.nibbles,
    "hides": lambda desc: desc.mask != "Window",
    "conditional": lambda desc: desc.mask_mod is not None,
    "packed": lambda desc: desc.packed_heads,
    "dropout": lambda desc: desc.dropout,
    "steady": lambda desc: not desc.dropout,
    "adds": lambda desc: desc.adds_up,
    "other_v": lambda desc: desc.head_dim_v != desc.head_dim,
}
