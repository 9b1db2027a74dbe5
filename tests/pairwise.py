"""Rows that cover every pair of choices which some possible row has: greedy, the same rows every time."""

from __future__ import annotations

import random
from collections.abc import Callable, Container, Hashable, Sequence
from itertools import combinations
from typing import Any

Row = dict[str, Any]


def named(indices: dict[str, int], choices: dict[str, Sequence[Any]]) -> Row:
    return {name: choices[name][i] for name, i in indices.items()}


def worth(indices: dict[str, int], missing: Container[Any]) -> int:
    return sum(pair in missing for pair in combinations(indices.items(), 2))


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
    numbers = random.Random(0)
    missing = {
        ((a, i), (b, j)): None  # a dict keeps the order
        for a, b in combinations(choices, 2)
        for i in range(len(choices[a]))
        for j in range(len(choices[b]))
    }
    rows = []
    paid = set()
    while missing:
        pair = next(iter(missing))
        candidates: list[dict[str, int]] = []
        for _ in range(give_up):
            indices = {name: numbers.randrange(len(values)) for name, values in choices.items()} | dict(pair)
            if possible(named(indices, choices)):
                candidates.append(indices)
                if len(candidates) == tries:
                    break
        del missing[pair]  # no row can have it, or the next lines add one
        if not candidates:
            continue
        best = max(
            candidates,
            key=lambda row: worth(row, missing) - 20 * (costly(named(row, choices)) not in paid),
        )
        for covered in combinations(best.items(), 2):
            missing.pop(covered, None)
        rows.append(named(best, choices))
        paid.add(costly(rows[-1]))
    return rows
