"""`xeflash bench lm-head`: what is made of a language model's logits, against torch."""

from __future__ import annotations

import argparse
from typing import Any

from xeflash.bench.cases import DTYPES, HEAD_OPERATIONS, parse_choices, parse_sizes
from xeflash.bench.linear.cases import WEIGHTS
from xeflash.bench.llm.presets import PRESETS
from xeflash.cli.arguments import converter
from xeflash.cli.bench_shared import add_measuring, add_output, guarded, report

_ROUNDS = 5


def add_parsers(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "lm-head",
        help="losses, log-probabilities, the largest logits and drawn tokens of a language model's head, against torch",
        description="Check and time xeflash.linear_cross_entropy, linear_log_prob, linear_argmax, linear_top_k and "
        "linear_sample against eager torch and torch's chunked F.linear_cross_entropy, and measure the peak memory of "
        "torch's allocator. Lists are comma lists, and 4k means 4096.",
    )
    cases = parser.add_argument_group("cases")
    cases.add_argument(
        "--operation",
        metavar="LIST",
        default=HEAD_OPERATIONS,
        type=converter(lambda text: parse_choices(text, HEAD_OPERATIONS)),
        help=f"of {', '.join(HEAD_OPERATIONS)}; default: all",
    )
    cases.add_argument(
        "--model",
        metavar="LIST",
        default=("small",),
        type=converter(lambda text: parse_choices(text, tuple(PRESETS))),
        help=f"whose heads: of {', '.join(PRESETS)}; default: small",
    )
    for name in ("vocabulary", "hidden"):
        cases.add_argument(f"--{name}", metavar="LIST", type=converter(parse_sizes), help="in the place of a model's")
    cases.add_argument(
        "--dtype",
        metavar="LIST",
        default=("fp32", "bf16"),
        type=converter(lambda text: parse_choices(text, DTYPES)),
        help="of fp32, bf16, fp16; default: fp32,bf16",
    )
    cases.add_argument(
        "--weights",
        metavar="LIST",
        default=("same",),
        type=converter(lambda text: parse_choices(text, WEIGHTS)),
        help="of the head that tokens are drawn from: same (the dtype, the default), int8, int4",
    )
    cases.add_argument("--rows", metavar="LIST", type=converter(parse_sizes), help="default: 1,8 and 512 for losses")
    add_measuring(parser, peaks=False, rounds=_ROUNDS)
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure and write; 0 if every case was right, 1 if not, 2 if nothing could be measured."""
    return guarded(arguments, lambda: _measure(arguments))


def _measure(arguments: argparse.Namespace) -> int:
    """Run the cases; the heavy imports happen here."""
    import torch

    from xeflash.bench import lm_head as bench
    from xeflash.bench.measure import Options
    from xeflash.bench.run import choose_device

    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    options = Options(choose_device(arguments.device), arguments.rounds, arguments.seed)
    heads = bench.heads_of(arguments.model)
    if arguments.vocabulary or arguments.hidden:
        vocabularies = arguments.vocabulary or [v for _, v, _ in heads]
        heads = [("-", v, h) for v in vocabularies for h in arguments.hidden or [h for _, _, h in heads]]
    cases = []
    for operation in arguments.operation:
        rows = arguments.rows or ((512,) if operation in bench.OF_TRAINING else (1, 8))
        cases += bench.expand((operation,), heads, arguments.dtype, arguments.weights, rows)
    return report(
        arguments,
        bench.run(cases, options),
        [case.label for case in cases],
        bench.LAYOUT,
        header=lambda _: bench.header(options),
        figure=bench.figure,
        title="the head of a language model on {}: median and quartiles",
    )
