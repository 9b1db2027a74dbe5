"""The tables of a result: a `Layout` of each benchmark, and the columns that all comparisons with torch share."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from xeflash.bench.limits import words
from xeflash.bench.numbers import errors, per_round, percent, ratio, size, timings
from xeflash.bench.rows import Result

Cells = Mapping[str, Callable[[typing.Any], str]]
NONE = "-"  # the text of a number that was not measured


class Table(typing.NamedTuple):
    """Rows of a section: what they have in common, and the texts of each column."""

    title: str
    rows: list[typing.Any]
    columns: dict[str, list[str]]


@dataclass(frozen=True)
class Layout:
    """A type of rows, and the columns of a table of them, by their `section`.

    Columns of `case` stand above the table once if all rows have the same there. Those of `details` are shown if a
    table is wide; a terminal that is too narrow leaves out those of `spare`, too. `words` tell what a column is, and
    `remark` what a reader has to know of these rows.
    """

    row: type[typing.Any]
    tables: Mapping[str, Cells]
    case: Sequence[str] = ()
    details: Sequence[str] = ()
    spare: Sequence[str] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    remark: Callable[[Sequence[typing.Any]], str] = lambda _: ""

    def shown(self, results: Sequence[Result], wide: bool) -> list[Table]:
        """Returns the tables that have rows; a column without any number is left out."""
        found = []
        for section, cells in self.tables.items():
            if not (rows := [result.row for result in results if result.row.section == section]):
                continue
            texts = {
                name: [cell(row) for row in rows] for name, cell in cells.items() if wide or name not in self.details
            }
            columns = {name: column for name, column in texts.items() if set(column) != {NONE}}
            common = {name: columns.pop(name)[0] for name in self.case if len(set(columns.get(name, ()))) == 1}
            title = f"{section}: {', '.join(f'{name} {text}' for name, text in common.items())}".removesuffix(": ")
            found.append(Table(title, rows, columns))
        return found

    def legend(self, tables: Sequence[Table]) -> list[str]:
        """Returns what the columns of these tables are, and what a reader has to know of their rows."""
        names = dict.fromkeys(name for table in tables for name in table.columns if name in self.words)
        words = "; ".join(f"{name}: {self.words[name]}" for name in names)
        return [line for line in (self.remark([row for table in tables for row in table.rows]), words) if line]


_BESIDE_TORCH: Cells = {
    "% of peak": lambda r: percent(r.percent_of_peak),
    "bound by": lambda r: words(r.bound_by, r.peak),
    "torch form": lambda r: r.torch_form or NONE,
    "torch ms": lambda r: timings(r, "torch_"),
    "ratio per round": lambda r: per_round(r, "ratio_per_round"),
    "ratio": lambda r: ratio(r.ratio),
    "plain torch": lambda r: ratio(r.plain_ratio),
    "error / allowed": errors,
    "peak memory": lambda r: size(r.peak_bytes),
    "of torch": lambda r: size(r.torch_peak_bytes),
    "of eager": lambda r: size(r.eager_peak_bytes),
}
_WORDS = {
    "xeflash ms": "median (minimum, interquartile range)",
    "% of peak": "of the rate that bounds the call",
    "bound by": "that rate, measured on this machine",
    "torch ms": "its fastest form",
    "ratio per round": "median (lowest to highest) of torch's time / ours",
    "ratio": "of the medians",
    "plain torch": "the ratio of the form that a user writes first",
    "peak memory": "what our call takes",
    "of torch": "what its fastest form takes",
    "of eager": "what eager torch takes",
}
_DETAILS = ("error / allowed", "plain torch", "ratio", "torch form", "of eager")
_SPARE = ("of torch", "bound by", "% of peak", "arch")  # then the rate, and torch's time, which the ratio tells


def comparison(
    row: type[typing.Any],
    sections: Sequence[str],
    case: Cells,
    rate: Cells,
    more: Cells | None = None,
    legend: Mapping[str, str] | None = None,
) -> Layout:
    """Returns the layout of calls beside torch's.

    Args:
        row: the type of rows, a `Compared`.
        sections: the tables that rows are in; all have the same columns.
        case: the columns that tell the case.
        rate: the columns of what our time means.
        more: columns after the shared ones, for wide tables.
        legend: what these columns are.
    """
    more = more or {}
    cells = {**case, "arch": lambda r: r.arch or NONE, "xeflash ms": timings, **rate, **_BESIDE_TORCH, **more}
    return Layout(
        row,
        dict.fromkeys(sections, cells),
        case=(*case, "arch"),
        details=(*more, *_DETAILS),
        spare=(*_SPARE, *rate, "torch ms"),
        words={**_WORDS, **(legend or {})},
    )
