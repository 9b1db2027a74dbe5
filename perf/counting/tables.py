"""Tables of figures, as text, markdown, CSV or JSON."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table as RichTable

Value = str | int | float | None
Row = Mapping[str, Value]


@dataclass(frozen=True)
class Table:
    """Rows of numbers by the names of their columns; text and markdown write them by these format specifications.

    A table that says `above` is turned there: each of its rows becomes a column, with these values on top.
    """

    title: str
    formats: Mapping[str, str]
    rows: Sequence[Row]
    above: Sequence[str] = ()
    complaints: bool = False  # rows are what is wrong


def _lines(table: Table) -> list[list[str]]:
    """The cells as text, with the heads of columns first."""
    cells = [
        {name: "-" if row[name] is None else format(row[name], spec) for name, spec in table.formats.items()}
        for row in table.rows
    ]
    if not table.above:
        return [list(table.formats), *(list(row.values()) for row in cells)]
    heads = [" ".join(row[name] for name in table.above) for row in cells]
    own = [name for name in table.formats if name not in table.above]
    return [["", *heads], *([name, *(row[name] for row in cells)] for name in own)]


def as_text(table: Table, console: Console) -> None:
    """Prints a table for people."""
    head, *lines = _lines(table)
    drawn = RichTable(title=table.title, title_justify="left")
    for number, name in enumerate(head):
        words = all(isinstance(row[name], str) for row in table.rows) if name in table.formats else number == 0
        drawn.add_column(name, justify="left" if words else "right")
    for line in lines:
        drawn.add_row(*line)
    console.print(drawn, markup=False)


def print_text(tables: Iterable[Table | str]) -> None:
    """Each when it is there."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    for table in tables:
        if isinstance(table, Table):
            as_text(table, console)
        else:
            console.print(table, markup=False, soft_wrap=True)


def print_markdown(tables: Iterable[Table | str]) -> None:
    """Each when it is there."""
    for table in tables:
        if isinstance(table, str):
            print(f"- {table.strip()}", flush=True)
            continue
        head, *lines = _lines(table)
        print(f"\n### {table.title}\n")
        for line in (head, ["---"] * len(head), *lines):
            print(f"| {' | '.join(line)} |")
        print(flush=True)


def print_csv(tables: Iterable[Table | str]) -> None:
    """Titles and sentences are lines that begin with #; numbers are not rounded."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for table in tables:
        if isinstance(table, str):
            print(f"# {table.strip()}")
            continue
        print(f"# {table.title}")
        writer.writerow(table.formats)
        writer.writerows([row[name] for name in table.formats] for row in table.rows)


def print_json(tables: Iterable[Table | str]) -> None:
    """One object; numbers are not rounded."""
    every = list(tables)
    found = [{"title": table.title, "rows": list(table.rows)} for table in every if isinstance(table, Table)]
    print(json.dumps({"tables": found, "notes": [note for note in every if isinstance(note, str)]}, indent=1))


PRINTERS: dict[str, Callable[[Iterable[Table | str]], None]] = {
    "text": print_text,
    "md": print_markdown,
    "csv": print_csv,
    "json": print_json,
}
