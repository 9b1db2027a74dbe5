"""`xeflash bench`: attention, decode-attention, linear, matmul-softmax, decode, generate, train, distributed."""

from __future__ import annotations

from typing import Any

from xeflash.cli import (
    bench_attention,
    bench_distributed,
    bench_linear,
    bench_llm,
    bench_lm_head,
    bench_softmax,
    bench_train,
)


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "bench", help="measure attention, products, and language models with them, against torch"
    )
    kinds = parser.add_subparsers(metavar="WHAT", required=True)
    bench_attention.add_parsers(kinds)
    bench_linear.add_parsers(kinds)
    bench_softmax.add_parsers(kinds)
    bench_lm_head.add_parsers(kinds)
    bench_llm.add_parsers(kinds)
    bench_train.add_parsers(kinds)
    bench_distributed.add_parsers(kinds)
