"""The default set of a sweep: those of its cases that cover its choices with the fewest kernels; the others are `wide`.

An algorithm meets each type with each choice, and each feature meets each other one. A kernel takes as long as many
checks, so a case that needs a new one is taken late, and so is one with much arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeVar

import pytest

C = TypeVar("C")
Choices = Mapping[str, Hashable]
Element = frozenset[tuple[str, Hashable]]
KERNEL = 8.0  # what compiling one costs, in checks of small cases


def elements(choices: Choices, features: Iterable[str]) -> set[Element]:
    """What a case reaches: every choice with its algorithm and type, and every pair of features."""
    both = (("algorithm", choices["algorithm"]), ("dtype", choices["dtype"]))
    reached = {frozenset((*both, choice)) for choice in choices.items()}
    pairs = combinations(((name, choices[name]) for name in features if name in choices), 2)
    return reached | {frozenset(pair) for pair in pairs}


def kind_of_dims(dim: int, dim_v: int) -> str:
    """What head dims are to a kernel."""
    if dim != dim_v:
        return "two"
    return "odd" if dim % 8 else "wide" if dim > 128 else "usual"


def cover(
    cases: Sequence[C],
    reached_by: Callable[[C], set[Element]],
    kernel: Callable[[C], Hashable],
    work: Callable[[C], float] = lambda case: 0.0,
) -> list[C]:
    """Cases that reach all that `cases` reach; `work` is measured in small checks."""
    reached = {case: reached_by(case) for case in cases}
    missing = set().union(*reached.values())
    paid: set[Hashable] = set()
    chosen: dict[C, None] = {}

    def worth(case: C) -> float:
        return len(reached[case] & missing) / (1 + work(case) + KERNEL * (kernel(case) not in paid))

    while missing:
        best = max((case for case in cases if case not in chosen), key=worth)
        chosen[best] = None
        paid.add(kernel(best))
        missing -= reached[best]
    return [case for case in cases if case in chosen]


def with_wide(cases: Iterable[C], default: Iterable[C]) -> list[Any]:
    """Parameters of a test: cases that are not of the default set are marked."""
    chosen = set(default)
    return [pytest.param(case, id=case.id, marks=() if case in chosen else pytest.mark.wide) for case in cases]


def few(values: Iterable[Any], *default: Any) -> list[Any]:
    """Parameters of a test: the default set has these of them only."""
    return few_rows([(value,) for value in values], *((value,) for value in default))


def few_rows(rows: Iterable[Sequence[Any]], *default: Sequence[Any]) -> list[Any]:
    """The same for several parameters at once."""
    return [pytest.param(*row, marks=() if row in default else pytest.mark.wide) for row in rows]
