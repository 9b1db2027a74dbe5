"""Rows that cover every pair of choices which some possible row has: greedy, the same rows every time."""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Hashable, Sequence
from itertools import combinations
from typing import Any

Row = dict[str, Any]


def worth(indices: Sequence[int], missing: Container[Any]) -> int:
    return sum(pair in missing for pair in combinations(enumerate(indices), 2))


def pairwise(
    choices: dict[str, Sequence[Any]],
    possible: Callable[[Row], bool],
    costly: Callable[[Row], Hashable] = lambda row: None,
    tries: int = 12,
    give_up: int = 300,
) -> list[Row]:
    """Each row is built around the first pair not yet covered; of `tries` possible rows the one covering most is taken.

    A row that costs what no row before has cost (costly(row) is new) counts as covering 20 pairs less.
    """
    draw = random.Random(0).random
    sizes = [len(values) for values in choices.values()]

    def named(indices: Sequence[int]) -> Row:
        return {name: values[i] for (name, values), i in zip(choices.items(), indices, strict=True)}

    missing = {  # a dict keeps the order
        ((a, i), (b, j)): None
        for a, b in combinations(range(len(sizes)), 2)
        for i in range(sizes[a])
        for j in range(sizes[b])
    }
    rows = []
    paid = set()
    while missing:
        pair = next(iter(missing))
        (a, i), (b, j) = pair
        candidates: list[list[int]] = []
        for _ in range(give_up):
            indices = [int(draw() * size) for size in sizes]
            indices[a], indices[b] = i, j
            if possible(named(indices)):
                candidates.append(indices)
                if len(candidates) == tries:
                    break
        del missing[pair]  # no row can have it, or the next lines add one
        if not candidates:
            continue
        best = max(candidates, key=lambda row: worth(row, missing) - 20 * (costly(named(row)) not in paid))
        for covered in combinations(enumerate(best), 2):
            missing.pop(covered, None)
        rows.append(named(best))
        paid.add(costly(rows[-1]))
    return rows
