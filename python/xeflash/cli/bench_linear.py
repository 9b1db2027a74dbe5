"""`xeflash bench linear`: linear layers of models, with weights of 16, 8 and 4 bits, against torch's."""

from __future__ import annotations

import argparse
from typing import Any

from xeflash.bench.cases import DTYPES, parse_choices, parse_sizes
from xeflash.bench.linear.cases import DEFAULT_MODELS, DEFAULT_ROWS, GROUP, MODELS, WEIGHTS, Layer, expand, layers_of
from xeflash.cli.arguments import converter
from xeflash.cli.bench_shared import add_measuring, add_output, guarded, report

_ROUNDS = 9


def add_parsers(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "linear",
        help="xeflash.linear against torch's on the linear layers of models, for few rows",
        description="Check and time xeflash.linear on the layers of a model's decoder layer, or on given sizes, beside "
        "torch's F.linear and its own operators for weights of 8 and 4 bits. Weights come from memory: each call takes "
        "another copy of them. Lists are comma lists, and 4k means 4096.",
    )
    sizes = converter(parse_sizes)
    cases = parser.add_argument_group("cases")
    cases.add_argument(
        "--model",
        metavar="LIST",
        type=converter(lambda words: parse_choices(words, MODELS)),
        help=f"of {', '.join(MODELS)} (default: {','.join(DEFAULT_MODELS)})",
    )
    cases.add_argument("--outputs", metavar="LIST", type=sizes, help="sizes in the place of a model's, with --inputs")
    cases.add_argument("--inputs", metavar="LIST", type=sizes, help="as many as --outputs")
    cases.add_argument("--rows", metavar="LIST", type=sizes, default=DEFAULT_ROWS, help="default: 1,2,4,8,16,64")
    cases.add_argument(
        "--dtype",
        metavar="LIST",
        type=converter(lambda text: parse_choices(text, DTYPES)),
        default=("bf16",),
        help="of x: fp32, bf16, fp16 (default: bf16)",
    )
    cases.add_argument(
        "--weights",
        metavar="LIST",
        type=converter(lambda text: parse_choices(text, WEIGHTS)),
        default=WEIGHTS,
        help="same (the type of x), int8, int4 (default: all)",
    )
    cases.add_argument("--group", type=int, choices=(32, 64, 128), default=GROUP, help="inputs that share a scale")
    how = add_measuring(parser, rounds=_ROUNDS)
    how.add_argument("--compare", choices=("torch", "none"), default="torch")
    how.add_argument("--compile", action="store_true", help="time F.linear by torch.compile, too")
    add_output(parser)
    parser.set_defaults(run=run)


def layers_given(arguments: argparse.Namespace) -> list[Layer]:
    """Return the layers of the models, or those of the sizes that the command line gives."""
    outputs, inputs = arguments.outputs or (), arguments.inputs or ()
    if len(outputs) != len(inputs):
        raise ValueError(f"bench: --outputs and --inputs must be as many, got {len(outputs)} and {len(inputs)}")
    if outputs and arguments.model:
        raise ValueError(f"bench: --model must be left out with --outputs, got {','.join(arguments.model)}")
    if outputs:
        return [Layer("-", "-", *size) for size in zip(outputs, inputs, strict=True)]
    return [layer for model in arguments.model or DEFAULT_MODELS for layer in layers_of(model)]


def run(arguments: argparse.Namespace) -> int:
    """Measure and write; 0 if every case was right, 1 if not, 2 if nothing could be measured."""
    return guarded(arguments, lambda: _measure(arguments))


def _measure(arguments: argparse.Namespace) -> int:
    """Run the cases; the heavy imports happen here."""
    cases = expand(layers_given(arguments), arguments.dtype, arguments.weights, arguments.rows)
    import torch

    from xeflash.bench import peak
    from xeflash.bench.limits import Peaks
    from xeflash.bench.linear import plot, rows
    from xeflash.bench.linear import run as runner
    from xeflash.bench.run import choose_device

    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    options = runner.Options(
        choose_device(arguments.device), arguments.rounds, arguments.seed, arguments.group,
        arguments.compare == "torch", arguments.compile,
    )  # fmt: skip
    meter = None if arguments.no_peak else peak.Meter(runner.instructions(cases, options.device), options.device)
    return report(
        arguments,
        runner.run(cases, options, meter),
        [case.label for case in cases],
        rows.LAYOUT,
        header=lambda results: runner.header(options, meter.peaks if meter else Peaks(), results),
        figure=plot.figure,
        title="linear layers by xeflash and torch on {}: median and quartiles",
        finish=lambda results: rows.with_peaks(results, meter.beside() if meter else [Peaks()] * len(results)),
    )
