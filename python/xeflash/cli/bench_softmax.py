"""`xeflash bench matmul-softmax`: a product and its softmax against eager torch and torch.compile."""

from __future__ import annotations

import argparse
from typing import Any

from xeflash.bench.cases import DTYPES, parse_choices, parse_sizes
from xeflash.cli.arguments import converter
from xeflash.cli.bench_shared import add_measuring, add_output, guarded, report

_ROUNDS = 15


def add_parsers(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "matmul-softmax",
        help="xeflash.matmul_softmax against torch: a product of matrices whose rows become their softmax",
        description="Check and time xeflash.matmul_softmax against eager torch and torch.compile, and measure the peak "
        "memory of torch's allocator. Without sizes: 1024 x 4096 with 64, 128 and 1024 inputs, and 10,000 calls of "
        "16 x 16 with 40. Lists are comma lists, and 4k means 4096.",
    )
    cases = parser.add_argument_group("cases")
    cases.add_argument(
        "--dtype",
        metavar="LIST",
        default=("fp32", "bf16"),
        type=converter(lambda text: parse_choices(text, DTYPES)),
        help="of fp32, bf16, fp16; default: fp32,bf16",
    )
    for name, what in (("rows", "M"), ("columns", "N"), ("inputs", "K")):
        cases.add_argument(f"--{name}", metavar="LIST", type=converter(parse_sizes), help=what)
    add_measuring(parser, peaks=False, rounds=_ROUNDS)
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and write; 0 if every case was right, 1 if not, 2 if nothing could be measured."""
    return guarded(arguments, lambda: _measure(arguments))


def _measure(arguments: argparse.Namespace) -> int:
    """Run the cases; the heavy imports happen here."""
    import torch

    from xeflash.bench import matmul_softmax as bench
    from xeflash.bench.measure import Options
    from xeflash.bench.run import choose_device

    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    options = Options(choose_device(arguments.device), arguments.rounds, arguments.seed)
    cases = bench.expand(arguments.dtype, arguments.rows, arguments.columns, arguments.inputs)
    return report(
        arguments,
        bench.run(cases, options),
        [case.label for case in cases],
        bench.LAYOUT,
        header=lambda _: bench.header(options),
        figure=bench.figure,
        title="xeflash.matmul_softmax on {}: median and quartiles",
    )
