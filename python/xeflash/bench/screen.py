"""Results on a terminal: tables that fit it. The header's method is left to the other formats."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from xeflash.bench.formats import Header, device_of
from xeflash.bench.rows import Result
from xeflash.bench.tables import Layout


def print_results(header: Header, results: Sequence[Result], layout: Layout, console: Console) -> None:
    """Prints a table per section; what all its rows have in common stands above it, once."""
    console.print(Text(device_of(header), "bold"))
    for section, columns in layout.columns(results).items():
        common = {name: columns.pop(name)[0] for name in layout.case if len(set(columns.get(name, ()))) == 1}
        console.print(Text(f"\n{section}: {', '.join(f'{name} {text}' for name, text in common.items())}".rstrip(": ")))
        # rows that are not "ok" have long notes in the place of a time
        timed = [result.row.status == "ok" for result in results if result.row.section == section]
        widths = {
            name: max(len(name), *(len(text) for text, ok in zip(texts, timed, strict=True) if ok), 0)
            for name, texts in columns.items()
        }
        left_out = []
        for name in layout.details:
            if sum(widths.values()) + 2 * len(widths) <= console.width:
                break
            if widths.pop(name, None) is not None:
                left_out.append(name)
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        for name, width in widths.items():
            table.add_column(Text(name), max_width=width, overflow="fold")
        for texts in zip(*(columns[name] for name in widths), strict=True):
            table.add_row(*map(Text, texts))
        console.print(table)
        if left_out:
            console.print(Text(f"no room on {console.width} columns: {', '.join(left_out)}", "dim"))
    if layout.legend:
        console.print(Text(f"\n{layout.legend}", "dim"))
    console.print(Text("environment and method: --format md", "dim"))
