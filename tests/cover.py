"""The default set of a sweep: those of its cases that cover its choices with the fewest kernels; the others are `wide`.

An algorithm meets each type with each choice, and each feature meets each other one. A kernel takes as long as many
checks, so they are chosen first; then the cases, those with much arithmetic late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, TypeVar

import pytest

C = TypeVar("C")
Choices = Mapping[str, Hashable]
Element = frozenset[tuple[str, Hashable]]
KERNEL = 8.0  # what compiling one costs, in checks of small cases


def met(choices: Choices, name: str) -> list[Hashable]:
    """The values of a choice that a case has: of a mixture several."""
    value = choices[name]
    return [*str(value).replace("+", "-").split("-")] if name == "variant" else [value]


def elements(choices: Choices, features: Iterable[str]) -> set[Element]:
    """What a case reaches: every choice with its algorithm and type, and every pair of features."""
    both = (("algorithm", choices["algorithm"]), ("dtype", choices["dtype"]))
    values = {name: [(name, value) for value in met(choices, name)] for name in choices}
    reached = {frozenset((*both, value)) for found in values.values() for value in found}
    pairs = combinations((value for name in features for value in values.get(name, ())), 2)
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
    is_shared: Callable[[Any], bool] = lambda kernel: False,
) -> list[C]:
    """Cases that reach all that `cases` reach, of which no kernel could be left out but those that other tests share.

    `work` is measured in small checks.
    """
    reached = {case: reached_by(case) for case in cases}
    by: dict[Hashable, list[C]] = {}
    for case in cases:
        by.setdefault(kernel(case), []).append(case)
    elements_of = {name: set().union(*map(reached.get, mine)) for name, mine in by.items()}
    kernels_of = Counter(element for elements in elements_of.values() for element in elements)

    def worth(name: Hashable) -> float:
        return len(elements_of[name]) / (KERNEL + min(map(work, by[name])))

    for name in sorted(reversed(by), key=worth):
        if not is_shared(name) and all(kernels_of[element] > 1 for element in elements_of[name]):
            kernels_of.subtract(elements_of[name])
            del by[name]
    left = [case for case in cases if kernel(case) in by]
    missing = set(kernels_of)
    chosen: dict[C, None] = {}
    while missing:
        best = max(left, key=lambda case: len(reached[case] & missing) / (1 + work(case)))
        chosen[best] = None
        missing -= reached[best]
    return [case for case in cases if case in chosen]


def each(case: C, others: Mapping[str, Iterable[Any]]) -> list[C]:
    """The case with each other choice, one at a time."""
    return [replace(case, **{name: value}) for name, values in others.items() for value in values]  # type: ignore[type-var]


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
