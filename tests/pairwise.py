"""Rows that cover every pair of choices which some possible row has: greedy, the same rows every time."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from itertools import combinations, count, islice
from operator import getitem
from typing import Any

import numpy as np

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
    names, values, sizes = [*choices], [*choices.values()], [*map(len, choices.values())]
    draw = np.random.RandomState([0]).random_sample
    draws = (row for _ in count() for row in (draw((4096, len(sizes))) * sizes).astype(int).tolist())

    def named(indices: Sequence[int]) -> Row:
        return dict(zip(names, map(getitem, values, indices), strict=True))

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
        for indices in islice(draws, give_up):
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
