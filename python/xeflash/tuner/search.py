"""The way through all rows: in the order of use, until the time is over, with each choice kept at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from xeflash import tune
from xeflash.bench.cases import Case
from xeflash.bench.shares import call_of
from xeflash.jit.calls import Launch, shares_of
from xeflash.jit.headers import NoCompiler
from xeflash.tune.table import schedule_candidates, schedule_of_tables
from xeflash.tune.tuned import Choice, Tuning
from xeflash.tuner.cases import Row
from xeflash.tuner.measure import texts_of
from xeflash.tuner.rounds import Failed


class OutOfTime(Exception):
    """The time that a search may take is over."""


class Chooser(Protocol):
    """A way to choose among the candidates of a row: by times or by counts."""

    def choose(self, row: Row, texts: Sequence[str]) -> Choice[Any]:
        """Returns the choice for a row, of whose candidates `texts` are the tunings.

        Raises rounds.Failed if the first candidate has no result, NoCompiler, and OutOfTime.
        """


@dataclass
class Found:
    """The results of a search, also of one that was interrupted; `left` are the keys that had no turn."""

    tuning: Tuning
    left: list[str]
    failed: dict[str, str] = field(default_factory=dict)  # rows that cannot be judged, and why
    no_compiler: str = ""


def search(
    rows: Sequence[Row], chooser: Chooser, found: Found, keep: Callable[[Row], None], begin: Callable[[Row], None]
) -> None:
    """Fills in what is found, row by row; `keep` is told each row that is done."""
    for row in rows:
        begin(row)
        try:
            if found.no_compiler and row.kernels:
                continue
            some = row if row.kernels else changing(row, found.tuning)
            if len(some.candidates) > 1:
                choice = chooser.choose(some, texts_of(some, rows, found.tuning))
                found.tuning = with_choice(found.tuning, row, choice)
        except OutOfTime:
            return
        except NoCompiler as error:
            found.no_compiler = str(error)
            continue
        except Failed as error:
            found.failed[row.key] = str(error)
        found.left.remove(row.key)
        keep(row)


def with_choice(tuning: Tuning, row: Row, choice: Choice[Any]) -> Tuning:
    """Returns the tuning with a row's choice."""
    if row.kernels:
        return dataclasses.replace(tuning, choices={**tuning.choices, row.key: choice})
    return dataclasses.replace(tuning, schedule={**tuning.schedule, row.key: choice})


def rows_of_schedule(cases: Sequence[Case], arch: str) -> Iterator[Row]:
    """Yields a row for each number of the schedule that may be another one."""
    for name, values in schedule_candidates(arch).items():
        if cases and len(values) > 1:
            yield Row(name, values, tuple(cases))


def ordered(kernels: Sequence[Row], schedule: Sequence[Row]) -> list[Row]:
    """Returns all rows; those of the schedule, which compile nothing, follow the kernels of the first head dim."""
    first = [row for row in kernels if not row.trained and row.kernels[0].head_dim == kernels[0].kernels[0].head_dim]
    return [*first, *schedule, *(row for row in kernels if row not in first)]


def changing(row: Row, tuning: Tuning) -> Row:
    """Returns the row of a number of the schedule with what changes something: values, and cases of one of them."""
    numbers = {name: choice.value for name, choice in tuning.schedule.items()}
    shared = {
        value: [launches_of(case, tuning, {**numbers, row.key: value}) for case in row.cases]
        for value in row.candidates
    }
    first = shared[row.candidates[0]]
    cases = [case for place, case in enumerate(row.cases) if any(x[place] != first[place] for x in shared.values())]
    values = [value for value in row.candidates if value == row.candidates[0] or shared[value] != first]
    return dataclasses.replace(row, candidates=tuple(values), cases=tuple(cases))


def launches_of(case: Case, tuning: Tuning, numbers: dict[str, object]) -> tuple[int, tuple[Launch, ...]]:
    """Returns how a call is shared out with numbers in the place of the tables'; nothing runs."""
    device, before = tuning.device, tune.schedule
    of_tables = schedule_of_tables(device.arch)
    try:
        tune.schedule = lambda *_: dataclasses.replace(of_tables, **numbers)  # type: ignore[arg-type]
        shares = shares_of(call_of(case), device.arch, device.units, tuning.name, tuning.driver)
    finally:
        tune.schedule = before
    return shares.splits, shares.launches
