"""Tables of figures, as text, markdown, CSV or JSON."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

Value = str | int | float | None
Row = Mapping[str, Value]


@dataclass(frozen=True)
class Table:
    """Rows of numbers by the names of their columns, with a format specification for each column.

    A table that says `above` is turned there: each of its rows becomes a column, with these values on top. The others
    are written row by row in markdown and CSV, as soon as each is there.
    """

    title: str
    formats: Mapping[str, str]
    rows: Iterable[Row]
    above: Sequence[str] = ()


def _lines(table: Table) -> Iterator[list[str]]:
    """Yields the cells as text, with the heads of columns first."""
    cells = (
        {name: "-" if row[name] is None else format(row[name], spec) for name, spec in table.formats.items()}
        for row in table.rows
    )
    if not table.above:
        yield list(table.formats)
        yield from (list(row.values()) for row in cells)
        return
    turned = list(cells)
    yield ["", *(" ".join(row[name] for name in table.above) for row in turned)]
    yield from ([name, *(row[name] for row in turned)] for name in table.formats if name not in table.above)


def _as_text(table: Table, console: Console) -> None:
    head, *lines = _lines(table)
    drawn = RichTable(title=table.title, title_justify="left")
    for name, *column in zip(head, *lines, strict=True):
        numbers = all(cell[:1].isdigit() or cell == "-" for cell in column)
        drawn.add_column(name, justify="right" if numbers else "left")
    for line in lines:
        drawn.add_row(*map(Text, line))
    console.print(drawn)


def print_text(tables: Iterable[Table | str]) -> None:
    """Prints tables and sentences as text, each when it is there."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    for table in tables:
        if isinstance(table, Table):
            _as_text(table, console)
        else:
            console.print(table, markup=False, soft_wrap=True)


def print_markdown(tables: Iterable[Table | str]) -> None:
    """Prints tables and sentences as markdown, each when it is there."""
    for table in tables:
        if isinstance(table, str):
            print(f"- {table.strip()}", flush=True)
            continue
        print(f"\n### {table.title}\n")
        for number, line in enumerate(_lines(table)):
            print(f"| {' | '.join(line)} |", flush=True)
            if number == 0:
                print("|---" * len(line) + "|")
        print(flush=True)


def print_csv(tables: Iterable[Table | str]) -> None:
    """Prints CSV; titles and sentences are lines that begin with #, and numbers are not rounded."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for table in tables:
        if isinstance(table, str):
            print(f"# {table.strip()}")
            continue
        print(f"# {table.title}")
        writer.writerow(table.formats)
        for row in table.rows:
            writer.writerow([row[name] for name in table.formats])
            sys.stdout.flush()


def print_json(tables: Iterable[Table | str]) -> None:
    """Prints one object of JSON; numbers are not rounded."""
    every = list(tables)
    found = [{"title": table.title, "rows": list(table.rows)} for table in every if isinstance(table, Table)]
    print(json.dumps({"tables": found, "notes": [note for note in every if isinstance(note, str)]}, indent=1))


PRINTERS: dict[str, Callable[[Iterable[Table | str]], None]] = {
    "text": print_text,
    "md": print_markdown,
    "csv": print_csv,
    "json": print_json,
}
