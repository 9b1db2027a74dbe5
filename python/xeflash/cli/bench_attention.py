"""`xeflash bench attention` and `decode-attention`: our attention against torch's over a grid of shapes."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

from xeflash.bench import cases as grids
from xeflash.bench.cases import Case, parse_choices, parse_size, parse_sizes
from xeflash.cli.arguments import converter
from xeflash.cli.bench_shared import add_device, add_measuring, add_output, guarded, report

T = TypeVar("T")


def add_parsers(commands: Any) -> None:
    """Add the subcommands."""
    for name, phases, text in (
        ("attention", grids.PHASES, "xeflash.attention against torch SDPA over a grid of shapes"),
        ("decode-attention", ("decode",), "the same for one query token against a KV cache"),
    ):
        parser = commands.add_parser(
            name,
            help=text,
            description="Check and time xeflash.attention against torch SDPA; lists are comma lists, "
            "and 4k means 4096. What is not given comes from the preset."
            + (" The phase train measures the peak memory of torch's allocator, too." if len(phases) > 1 else ""),
        )
        _add_grid(parser, phases)
        how = add_measuring(parser)
        add_device(how)
        how.add_argument("--compare", choices=("torch", "none"), default="torch")
        how.add_argument("--rounds", metavar="N", type=converter(parse_size), help="9 (quick) or 21 (full)")
        add_output(parser)
        parser.set_defaults(run=run)


def _add_grid(parser: argparse.ArgumentParser, phases: tuple[str, ...]) -> None:
    sizes = converter(parse_sizes)
    grid = parser.add_argument_group("cases")
    grid.add_argument("--preset", choices=tuple(grids.PRESETS), default="quick")
    if len(phases) > 1:
        grid.add_argument(
            "--phase",
            metavar="LIST",
            default=grids.DEFAULT_PHASES,
            type=converter(lambda text: parse_choices(text, phases)),
            help="of prefill, decode, backward (gradients alone), train (forward and gradients); "
            "default: prefill,decode",
        )
    else:
        parser.set_defaults(phase=phases, seq=None, causal=None)
    grid.add_argument(
        "--dtype",
        metavar="LIST",
        type=converter(lambda text: parse_choices(text, grids.DTYPES)),
        help="fp32,bf16,fp16",
    )
    grid.add_argument("--batch", metavar="LIST", type=sizes)
    grid.add_argument("--heads", metavar="LIST", type=sizes, help="query heads")
    grid.add_argument("--kv-heads", metavar="LIST", type=sizes, help="must divide the query heads")
    grid.add_argument("--head-dim", metavar="LIST", type=sizes)
    grid.add_argument("--kv-len", metavar="LIST", type=sizes, help="decode key lengths")
    if "prefill" in phases:
        grid.add_argument("--seq", metavar="LIST", type=sizes, help="lengths of all phases but decode")
        grid.add_argument(
            "--causal", action=argparse.BooleanOptionalAction, help="mask of all phases but decode (default: causal)"
        )


def _refuse_unused(arguments: argparse.Namespace) -> None:
    """Raise if an option is given that none of the phases has."""
    phases = set(arguments.phase)
    unused = {"kv_len": "decode" not in phases, "seq": phases == {"decode"}, "causal": phases == {"decode"}}
    for name, refused in unused.items():
        value = getattr(arguments, name)
        if refused and value is not None:
            words = f"--{'' if value else 'no-'}causal" if name == "causal" else f"--{name.replace('_', '-')}"
            got = "" if name == "causal" else f", got {','.join(map(str, value))}"
            raise ValueError(f"bench: {words} must be left out with --phase {','.join(arguments.phase)}{got}")


def _chosen(given: T | None, preset: T) -> T:
    return preset if given is None else given


def cases_of(arguments: argparse.Namespace) -> list[Case]:
    """Return the preset's cases with what the command line gives put in its place."""
    _refuse_unused(arguments)
    cases: list[Case] = []
    for phase in arguments.phase:
        preset = grids.PRESETS[arguments.preset][phase]
        lengths = arguments.kv_len if phase == "decode" else arguments.seq
        kv_heads = preset.kv_heads if arguments.heads is None else ()
        grid = dataclasses.replace(
            preset,
            dtypes=_chosen(arguments.dtype, preset.dtypes),
            batches=_chosen(arguments.batch, preset.batches),
            heads=_chosen(arguments.heads, preset.heads),
            kv_heads=_chosen(arguments.kv_heads, kv_heads),
            head_dims=_chosen(arguments.head_dim, preset.head_dims),
            lengths=_chosen(lengths, preset.lengths),
            causal=_chosen(arguments.causal, preset.causal),
        )
        cases += grids.expand(phase, grid)
    return list(dict.fromkeys(cases))


def run(arguments: argparse.Namespace) -> int:
    """Measure and write; 0 if every case was right, 1 if not, 2 if nothing could be measured."""
    return guarded(arguments, lambda: _measure(arguments, cases_of(arguments)))


def _measure(arguments: argparse.Namespace, cases: Sequence[Case]) -> int:
    """Run the cases; the heavy imports happen here."""
    import torch

    from xeflash.bench import formats, peak, plot
    from xeflash.bench import run as runner
    from xeflash.bench.limits import Peaks

    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    options = runner.Options(
        device=runner.choose_device(arguments.device),
        rounds=_chosen(arguments.rounds, grids.PRESET_ROUNDS[arguments.preset]),
        seed=arguments.seed,
        compare_torch=arguments.compare == "torch",
    )
    meter = None if arguments.no_peak else peak.Meter(runner.instructions(cases, options.device), options.device)
    return report(
        arguments,
        runner.run(cases, options, meter),
        [case.label for case in cases],
        formats.ATTENTION,
        header=lambda results: runner.header(options, meter.peaks if meter else Peaks(), results),
        figure=plot.figure,
        title="xeflash and torch SDPA on {}: median and quartiles",
        finish=lambda results: runner.with_peaks(results, meter.beside() if meter else [Peaks()] * len(results)),
    )
