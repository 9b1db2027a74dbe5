"""Rows that cover every pair of choices which some possible row has: greedy, the same rows every time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

Row = dict[str, Any]


def pairwise(
    choices: dict[str, Sequence[Any]], possible: Callable[[Row], bool], tries: int = 12, give_up: int = 300
) -> list[Row]:
    """Each row is built around the first pair not yet covered; of `tries` possible rows the one covering most is taken."""
    numbers = random.Random(0)
    missing = {
        ((a, i), (b, j)): None  # a dict keeps the order
        for a, b in combinations(choices, 2)
        for i in range(len(choices[a]))
        for j in range(len(choices[b]))
    }
    rows = []
    while missing:
        pair = next(iter(missing))
        candidates: list[dict[str, int]] = []
        for _ in range(give_up):
            indices = {name: numbers.randrange(len(values)) for name, values in choices.items()} | dict(pair)
            if possible({name: choices[name][i] for name, i in indices.items()}):
                candidates.append(indices)
                if len(candidates) == tries:
                    break
        del missing[pair]  # no row can have it, or the next lines add one
        if not candidates:
            continue
        best = max(candidates, key=lambda indices: sum(p in missing for p in combinations(indices.items(), 2)))
        for covered in combinations(best.items(), 2):
            missing.pop(covered, None)
        rows.append({name: choices[name][i] for name, i in best.items()})
    return rows
