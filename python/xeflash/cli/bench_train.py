"""`xeflash bench train`: training steps of language models with our attention, torch's and the eager one."""

from __future__ import annotations

import argparse
from typing import Any

from xeflash.bench.cases import parse_choices, parse_sizes
from xeflash.bench.llm.cells import ATTENTIONS
from xeflash.cli.arguments import converter
from xeflash.cli.bench_llm import add_models
from xeflash.cli.bench_shared import add_measuring, add_output, guarded, report

_ROUNDS, _LENGTHS = 3, (512, 2048)


def add_parsers(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "train",
        help="a model's training steps: tokens/s and peak memory, attention by attention",
        description="Build models of Transformers with random weights and make training steps (forward pass, loss, "
        "backward pass, AdamW) with several attentions, in turns; their losses and gradients are checked to agree "
        "first. Peak memory is the most that torch's allocator gives out during a step, above what it had given out "
        "before. Lists are comma lists, and 4k means 4096.",
    )
    cases = parser.add_argument_group("cases")
    add_models(cases, ("fp32", "bf16"))  # in fp16, what AdamW adds to a denominator is 0
    cases.add_argument(
        "--seq", metavar="LIST", type=converter(parse_sizes), default=_LENGTHS, help="tokens (default: 512,2k)"
    )
    cases.add_argument("--checkpointing", action="store_true", help="layers are computed again in the backward pass")
    cases.add_argument(
        "--compare",
        metavar="LIST",
        type=converter(lambda words: tuple(dict.fromkeys(parse_choices(words, ATTENTIONS)))),
        default=ATTENTIONS,
        help=f"attentions (default: {','.join(ATTENTIONS)})",
    )
    add_measuring(parser, peaks=False, rounds=_ROUNDS)
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and write; 0 if every case was right, 1 if not, 2 if nothing could be measured."""
    return guarded(arguments, lambda: _measure(arguments))


def _measure(arguments: argparse.Namespace) -> int:
    """Run the cells; the heavy imports happen here."""
    import torch

    from xeflash.bench.llm import plot, training, training_rows
    from xeflash.bench.llm.models import check_models
    from xeflash.bench.run import choose_device

    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    options = training.Options(choose_device(arguments.device), arguments.rounds, arguments.seed, arguments.compare)
    cells = training_rows.expand(
        arguments.model, arguments.layers, arguments.dtype, arguments.batch, arguments.seq, arguments.checkpointing
    )
    if 1 in arguments.seq:
        raise ValueError("bench: --seq must be at least 2, as the loss is that of the next token, got 1")
    check_models(arguments.model, arguments.layers)
    return report(
        arguments,
        training.run(cells, options),
        [f"{cell.label} {name}" for cell in cells for name in options.attentions],
        training_rows.LAYOUT,
        header=lambda _: training.header(options),
        figure=plot.training_figure,
        finish=training_rows.with_ratios,
    )
