"""`xeflash bench`: measures attention, products, language models with them, and ranks, against torch."""

from __future__ import annotations

from typing import Any

from xeflash.cli import bench_calls, bench_distributed, bench_models


def add_parser(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "bench", help="measure attention, products, and language models with them, against torch"
    )
    kinds = parser.add_subparsers(metavar="WHAT", required=True)
    for module in (bench_calls, bench_models, bench_distributed):
        module.add_parsers(kinds)
