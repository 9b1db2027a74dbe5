"""`xeflash bench decode` and `generate`: language models with our attention against torch's and the eager one."""

from __future__ import annotations

import argparse
from typing import Any

from xeflash.bench.cases import parse_choices, parse_size, parse_sizes
from xeflash.bench.linear.cases import WEIGHTS
from xeflash.bench.llm import cells as grid
from xeflash.bench.llm.presets import PRESETS
from xeflash.cli.arguments import converter
from xeflash.cli.bench_shared import add_measuring, add_output, guarded, report
from xeflash.sim import DEVICES

_SIMULATED = tuple(f"sim:{device}" for device in DEVICES)
_ROUNDS, _NEW_TOKENS = 3, 32


def add_parsers(commands: Any) -> None:
    """Add the subcommands."""
    for name, text in (
        ("decode", "a model's time to the first token and per token, and attention's part in it"),
        ("generate", "the time of a model's whole generate()"),
    ):
        parser = commands.add_parser(
            name,
            help=text,
            description="Build models of Transformers with random weights and run generate() with several attentions "
            "and caches, in turns; they are checked to agree first. Lists are comma lists, and 4k means 4096.",
        )
        sizes, size = converter(parse_sizes), converter(parse_size)
        cases = parser.add_argument_group("cases")
        add_models(cases, ("bf16", "fp16", "fp32"))
        cases.add_argument("--beams", metavar="LIST", type=sizes, default=(1,), help="default 1, greedy; 4 is a search")
        cases.add_argument(
            "--context",
            metavar="LIST",
            type=sizes,
            default=grid.DEFAULT_CONTEXTS,
            help="tokens of the prompt (default: 512,2k,4k,8k)",
        )
        cases.add_argument("--new-tokens", metavar="N", type=size, help=f"default {_NEW_TOKENS}")
        cases.add_argument(
            "--compare",
            metavar="LIST",
            type=converter(grid.parse_implementations),
            help="attention/cache: xeflash/xe, .../dynamic, .../static with xeflash, sdpa, eager; "
            "default: xeflash/xe,sdpa/dynamic,eager/dynamic",
        )
        cases.add_argument(
            "--linear",
            metavar="LIST",
            type=converter(lambda words: parse_choices(words, grid.LINEARS)),
            help="who computes linear layers: torch (the default), xeflash",
        )
        cases.add_argument(
            "--weights",
            metavar="LIST",
            type=converter(lambda words: parse_choices(words, WEIGHTS)),
            help="of linear layers but the head: same (the dtype, the default), int8, int4, rounded on load",
        )
        cases.add_argument(
            "--lm-head",
            metavar="LIST",
            type=converter(lambda words: parse_choices(words, grid.HEADS)),
            help="the head: same (the dtype, the default), fused: quantised as --weights says",
        )
        how = add_measuring(parser)
        how.add_argument(
            "--device",
            choices=("auto", "cpu", "xpu", *_SIMULATED),
            default="auto",
            help="sim:... counts what the attention does on a simulated GPU, and times nothing",
        )
        how.add_argument("--rounds", metavar="N", type=size, help=f"default {_ROUNDS}")
        add_output(parser)
        parser.set_defaults(run=run, what=name)


def add_models(cases: Any, dtypes: tuple[str, ...]) -> None:
    """Add the options that say which model, in which of these types, by default the first, on how many sequences."""
    cases.add_argument(
        "--model",
        metavar="LIST",
        type=converter(lambda words: parse_choices(words, tuple(PRESETS))),
        default=("small",),
        help=f"of {', '.join(PRESETS)} (default: small, which two CPU cores can run)",
    )
    cases.add_argument("--layers", metavar="N", type=converter(parse_size), help="of the model (default: all)")
    cases.add_argument(
        "--dtype",
        metavar="LIST",
        type=converter(lambda words: parse_choices(words, dtypes)),
        default=dtypes[:1],
        help=f"of {', '.join(dtypes)} (default: {dtypes[0]})",
    )
    cases.add_argument("--batch", metavar="LIST", type=converter(parse_sizes), default=(1,))


def run(arguments: argparse.Namespace) -> int:
    """Measure and write; 0 if every case was right, 1 if not, 2 if nothing could be measured."""
    return guarded(arguments, lambda: _measure(arguments))


def _measure(arguments: argparse.Namespace) -> int:
    """Run the cells; the heavy imports happen here."""
    simulated = arguments.device.startswith("sim:")
    for option in ("compare", "rounds", "new_tokens", "linear", "weights", "lm_head") if simulated else ():
        if getattr(arguments, option) is not None:
            raise ValueError(
                f"bench: --{option.replace('_', '-')} must be left out with --device {arguments.device}, "
                "which counts one token of xeflash/xe"
            )
    if simulated:
        from xeflash import sim

        sim.enable(arguments.device.removeprefix("sim:"), check="none")
    import torch

    from xeflash.bench import peak
    from xeflash.bench.formats import Layout
    from xeflash.bench.limits import Peaks
    from xeflash.bench.llm import columns, plot, rows
    from xeflash.bench.llm import run as runner
    from xeflash.bench.llm.models import check_models
    from xeflash.bench.run import choose_device

    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    options = runner.Options(
        device=arguments.device if simulated else choose_device(arguments.device),
        rounds=arguments.rounds or _ROUNDS,
        seed=arguments.seed,
        implementations=grid.with_linears(
            arguments.compare or grid.parse_implementations("xeflash,sdpa,eager"), arguments.linear or ("torch",)
        ),
    )
    cells = grid.expand(
        arguments.model, arguments.layers, arguments.dtype, arguments.batch, arguments.beams, arguments.context,
        arguments.new_tokens or _NEW_TOKENS,
        grid.with_heads(arguments.weights or ("same",), arguments.lm_head or ("same",)),
    )  # fmt: skip
    check_models(arguments.model, arguments.layers)
    meter = None if arguments.no_peak or simulated else peak.Meter((), options.device)
    names = [implementation.name for implementation in options.implementations]
    tables = columns.TABLES if arguments.what == "decode" else columns.GENERATE_TABLES

    def peaks() -> Peaks:
        return meter.peaks if meter else Peaks()

    return report(
        arguments,
        runner.run(cells, options, meter),
        [f"{cell.label} {name}" for cell in cells for name in (names[:1] if simulated else names)],
        Layout(rows.LlmRow, tables, columns.CASE, columns.DETAILS),
        header=lambda _: runner.header(options, peaks()),
        figure=plot.figure,
        finish=lambda results: rows.with_ratios(results, peaks()),
    )
