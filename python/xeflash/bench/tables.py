"""The tables of a result: a `Layout` of each benchmark, and the columns that all comparisons with torch share."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from xeflash.bench.limits import words
from xeflash.bench.numbers import errors, percent, ratio, size, timings
from xeflash.bench.rows import Result

Cells = Mapping[str, Callable[[typing.Any], str]]
NONE = "-"  # the text of a number that was not measured


@dataclass(frozen=True)
class Layout:
    """A type of rows, and the columns of a table of them, by their `section`.

    A terminal shows columns of `case` once if all rows have the same there, leaves out those of `details`, in this
    order, if it is narrow, and explains the others by `legend`.
    """

    row: type[typing.Any]
    tables: Mapping[str, Cells]
    case: Sequence[str] = ()
    details: Sequence[str] = ()
    legend: str = ""

    def columns(self, results: Sequence[Result]) -> dict[str, dict[str, list[str]]]:
        """Returns the texts of each column of each table that has rows; a column without any number is left out."""
        found = {}
        for section, cells in self.tables.items():
            if rows := [result.row for result in results if result.row.section == section]:
                texts = {name: [cell(row) for row in rows] for name, cell in cells.items()}
                found[section] = {name: column for name, column in texts.items() if set(column) != {NONE}}
        return found


_BESIDE_TORCH: Cells = {
    "% of peak": lambda r: percent(r.percent_of_peak),
    "bound by": lambda r: words(r.bound_by, r.peak),
    "torch form": lambda r: r.torch_form or NONE,
    "torch ms": lambda r: timings(r, "torch_"),
    "ratio": lambda r: ratio(r.ratio),
    "per round": lambda r: ratio(r.ratio_per_round),
    "plain torch": lambda r: ratio(r.plain_ratio),
    "error / allowed": errors,
    "peak memory": lambda r: size(r.peak_bytes),
    "of torch": lambda r: size(r.torch_peak_bytes),
    "of eager": lambda r: size(r.eager_peak_bytes),
}
_LEGEND = (
    "times: median (minimum, interquartile range); torch: its fastest form; ratio: torch's time / ours, also as the "
    "median over rounds (per round), and for the form that a user writes first (plain torch); bound by: the peak that "
    "% of peak is of; peak memory: ours, that of torch's fastest form, and that of eager torch"
)


def comparison(
    row: type[typing.Any],
    sections: Sequence[str],
    case: Cells,
    rate: Cells,
    more: Cells | None = None,
    legend: str = "",
) -> Layout:
    """Returns the layout of calls beside torch's.

    Args:
        row: the type of rows, a `Compared`.
        sections: the tables that rows are in; all have the same columns.
        case: the columns that tell the case.
        rate: the columns of what our time means.
        more: columns after the shared ones.
        legend: what a reader of these needs to know.
    """
    cells = {**case, "arch": lambda r: r.arch or NONE, "xeflash ms": timings, **rate, **_BESIDE_TORCH, **(more or {})}
    details = ("error / allowed", *(more or {}), "per round", "plain torch", "of torch", "torch form", "bound by")
    legend = f"{_LEGEND}; {legend}" if legend else _LEGEND
    return Layout(row, dict.fromkeys(sections, cells), (*case, "arch"), (*details, "% of peak"), legend)
