"""Results on a terminal: tables that fit it."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from xeflash.bench.formats import Header, device_of, header_lines
from xeflash.bench.rows import Result
from xeflash.bench.tables import Layout


def print_results(header: Header, results: Sequence[Result], layout: Layout, console: Console, wide: bool) -> None:
    """Prints a table per section, what its columns are, and, if it is wide, all columns and the header."""
    console.print(Text(device_of(header), "bold"))
    tables = layout.shown(results, wide)
    for title, rows, columns in tables:
        console.print(Text(f"\n{title}"))
        # rows that are not "ok" have long notes in the place of a time
        timed = [row.status == "ok" for row in rows]
        widths = {
            name: max(len(name), *(len(text) for text, ok in zip(texts, timed, strict=True) if ok), 0)
            for name, texts in columns.items()
        }
        left_out = []
        for name in layout.spare:
            if wide or sum(widths.values()) + 2 * len(widths) <= console.width:
                break
            if columns.pop(name, None) is not None:
                del widths[name]
                left_out.append(name)
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        for name, width in widths.items():
            table.add_column(Text(name), max_width=width, overflow="fold")
        for texts in zip(*columns.values(), strict=True):
            table.add_row(*map(Text, texts))
        room = console.width
        console.width = max(room, sum(widths.values()) + 2 * len(widths)) if wide else room  # the terminal breaks lines
        console.print(table)
        console.width = room
        if left_out:
            console.print(Text(f"no room on {console.width} columns: {', '.join(left_out)}", "dim"))
    console.print()
    for line in layout.legend(tables):
        console.print(Text(line))
    for line in header_lines(header) if wide else ():
        console.print(Text(line, "dim"))
