"""Trees of guesses of a Spec: which of the nodes, the last keys of a sequence, each node sees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from xeflash.selftest.attention.spec import Spec
from xeflash.selftest.reference import to_numpy
from xeflash.selftest.values import Values

Array: TypeAlias = "np.ndarray[Any, Any]"


def draw_trees(spec: Spec, before: Array, random: np.random.Generator) -> dict[str, Values]:
    """Draws the nodes that each node sees, and its position, if keys are rotated behind those `before` the call."""
    seen = _seen(spec, random)
    found = {"tree_mask": Values.of(seen, "bool")}
    if spec.rotary:
        found["rotary_positions"] = Values.of(before[:, None] + seen.sum(-1) - 1, "int32")
    return found


def _seen(spec: Spec, random: np.random.Generator) -> Array:
    """Draws for each node its ancestors and itself, or any nodes and itself."""
    count, nodes = len(spec.sequences), max([0, *(n for n, _ in spec.sequences)])
    seen = np.repeat(np.eye(nodes, dtype=bool)[None], 1 if spec.word("tree") == "shared" else count, axis=0)
    if spec.word("tree") == "any":
        return seen | (random.random(seen.shape) < 0.4)
    for mask in seen:
        for node in range(1, nodes):
            mask[node] |= mask[random.integers(0, node)]
    return seen


def seen_nodes(spec: Spec, b: int, given: Mapping[str, Any]) -> Array | None:
    """Returns which of its nodes each node of sequence b sees, or None without a tree."""
    if (trees := given.get("tree_mask")) is None:
        return None
    rows = spec.sequences[b][0]
    return to_numpy(trees[0 if spec.word("tree") == "shared" else b, :rows, :rows]) != 0


def in_words(spec: Spec, trees: Array) -> Array:
    """Returns the bits of all rows of q, (rows, words), or those that all sequences share, (1, T, words)."""
    if spec.word("tree") != "shared":
        rows = [tree[:n] for tree, (n, _) in zip(trees, spec.sequences, strict=True)]
        trees = np.concatenate([np.zeros((0, trees.shape[-1]), bool), *rows])
    padded = np.pad(trees, (*[(0, 0)] * (trees.ndim - 1), (0, -trees.shape[-1] % 32)))
    return np.packbits(padded, axis=-1, bitorder="little").view(np.int32)
