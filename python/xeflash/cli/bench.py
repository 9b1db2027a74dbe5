"""`xeflash bench`: attention, decode-attention, decode, generate, train."""

from __future__ import annotations

from typing import Any

from xeflash.cli import bench_attention, bench_llm, bench_train


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser("bench", help="measure attention, and language models with it, against torch")
    kinds = parser.add_subparsers(metavar="WHAT", required=True)
    bench_attention.add_parsers(kinds)
    bench_llm.add_parsers(kinds)
    bench_train.add_parsers(kinds)
