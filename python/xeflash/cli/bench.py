"""`xeflash bench attention`: our attention against torch's over a grid of shapes."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from xeflash.bench import cases as grids
from xeflash.bench.cases import Case, parse_choices, parse_size, parse_sizes
from xeflash.cli.arguments import converter

if TYPE_CHECKING:
    from xeflash.bench.rows import Result

T = TypeVar("T")
FORMATS = ("md", "csv", "json", "jsonl")


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "bench",
        help="measure attention against torch",
        description="Check and time xeflash.attention against torch SDPA; lists are comma lists, "
        "and 4k means 4096. What is not given comes from the preset.",
    )
    parser.add_argument("what", nargs="?", choices=("attention",), default="attention")
    sizes = converter(parse_sizes)
    grid = parser.add_argument_group("cases")
    grid.add_argument("--preset", choices=tuple(grids.PRESETS), default="quick")
    grid.add_argument(
        "--phase",
        metavar="LIST",
        default=grids.PHASES,
        type=converter(lambda text: parse_choices(text, grids.PHASES)),
        help="prefill,decode (default: both)",
    )
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
    grid.add_argument("--seq", metavar="LIST", type=sizes, help="prefill lengths")
    grid.add_argument("--kv-len", metavar="LIST", type=sizes, help="decode key lengths")
    grid.add_argument("--causal", action=argparse.BooleanOptionalAction, help="mask of prefill (default: causal)")
    how = parser.add_argument_group("measuring")
    how.add_argument("--device", choices=("auto", "cpu", "xpu"), default="auto")
    how.add_argument("--compare", choices=("torch", "none"), default="torch")
    how.add_argument("--rounds", metavar="N", type=converter(parse_size), help="9 (quick) or 21 (full)")
    how.add_argument("--threads", metavar="N", type=converter(parse_size), help="for torch and for SYCL")
    how.add_argument("--no-peak", action="store_true", help="do not measure the machine's peaks")
    how.add_argument("--seed", metavar="N", type=int, default=0)
    out = parser.add_argument_group("output")
    out.add_argument("--format", choices=FORMATS, help="default: the suffix of --output, else md")
    out.add_argument("--output", metavar="FILE", type=Path, help="write there; stdout still gets the table")
    out.add_argument("--plot", metavar="FILE", type=Path, help="bars as a picture (matplotlib)")
    parser.set_defaults(run=run)


def _chosen(given: T | None, preset: T) -> T:
    return preset if given is None else given


def cases_of(arguments: argparse.Namespace) -> list[Case]:
    """Return the preset's cases with what the command line gives put in its place."""
    cases: list[Case] = []
    for phase in arguments.phase:
        preset = grids.PRESETS[arguments.preset][phase]
        lengths = arguments.seq if phase == "prefill" else arguments.kv_len
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


def format_of(arguments: argparse.Namespace) -> str:
    """Return the format of the output."""
    if arguments.format is not None:
        return str(arguments.format)
    suffix = arguments.output.suffix[1:] if arguments.output is not None else ""
    return suffix if suffix in FORMATS else "md"


def prepare_threads(threads: int | None) -> None:
    """Set what both thread pools read when they start: before torch and SYCL are loaded.

    See bench/timing.py for the reason of passive; a variable that is set already is kept.
    """
    settings = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive")}
    if threads is not None:
        settings |= {"OMP_NUM_THREADS": str(threads), "DPCPP_CPU_NUM_CUS": str(threads)}
    changed = sorted(name for name, value in settings.items() if os.environ.get(name) != value)
    os.environ.update(settings)
    if changed and "torch" in sys.modules:
        print(f"xeflash bench: torch runs already; too late for {changed}", file=sys.stderr)


def _with_progress(results: Iterable[Result], cases: Sequence[Case]) -> Iterator[Result]:
    """Pass the results on and show how far it is, on a terminal only."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(cases[0].label, total=len(cases))
        for done, result in enumerate(results, start=1):
            label = cases[done].label if done < len(cases) else "peaks"
            progress.update(task, completed=done, description=label)
            if result.row.status != "ok":
                message = f"{result.row.case.label}: {result.row.status}: {result.row.note}"
                progress.console.print(message, style="red", highlight=False, markup=False)
            yield result


def run(arguments: argparse.Namespace) -> int:
    """Measure and write; 0 if every case was right, 1 if not, 2 if nothing could be measured."""
    try:
        cases = cases_of(arguments)
        prepare_threads(arguments.threads)
        return _measure(arguments, cases)
    except ModuleNotFoundError as error:
        name = error.name or ""
        hint = "pip install torch" if name == "torch" else "xeflash doctor"
        print(f"xeflash bench: {error}; try: {hint}", file=sys.stderr)
    except ImportError as error:
        print(f"xeflash bench: {error}; see: xeflash doctor", file=sys.stderr)
    except (ValueError, OSError) as error:
        print(f"xeflash {error}", file=sys.stderr)
    return 2


def _measure(arguments: argparse.Namespace, cases: Sequence[Case]) -> int:
    """Run the cases; the heavy imports happen here."""
    from xeflash.bench import plot

    if arguments.plot is not None:
        try:
            plot.require_matplotlib()
        except plot.PlotError as error:
            print(f"xeflash {error}", file=sys.stderr)
            return 2
    import torch

    from xeflash.bench import peak
    from xeflash.bench import run as runner

    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    options = runner.Options(
        device=runner.choose_device(arguments.device),
        rounds=_chosen(arguments.rounds, grids.PRESET_ROUNDS[arguments.preset]),
        seed=arguments.seed,
        compare_torch=arguments.compare == "torch",
    )
    _warn_of_load()
    results: list[Result] = []
    interrupted = False
    meter = None if arguments.no_peak else peak.Meter({case.dtype for case in cases}, options.device)
    try:
        for result in _with_progress(runner.run(cases, options, meter), cases):
            results.append(result)  # one by one: an interrupt keeps them
    except KeyboardInterrupt:  # what was measured so far is still written
        interrupted = True
    peaks = peak.Peaks() if meter is None else meter.peaks
    results = runner.with_peaks(results, peaks)
    _write(arguments, runner.header(options, peaks, results), results)
    if interrupted:
        return 130
    return 1 if any(result.row.status == "failed" for result in results) else 0


def _warn_of_load() -> None:
    """Say so if other programs use the CPUs: both sides get slower, torch's OpenMP most of all."""
    from xeflash.bench.environ import load_average, usable_cpus

    load = load_average()
    if load is not None and load > 0.5 * usable_cpus():
        print(
            f"xeflash bench: the load average is {load:.1f} on {usable_cpus()} CPUs: trust the "
            "ratios per round, not the times",
            file=sys.stderr,
        )


def _write(arguments: argparse.Namespace, header: dict[str, object], results: Sequence[Result]) -> None:
    """Write the table, the file and the picture."""
    from xeflash.bench import formats, plot

    chosen = format_of(arguments)
    if arguments.output is not None:
        arguments.output.write_text(formats.WRITERS[chosen](header, results), encoding="utf-8")
        chosen = "md"
    sys.stdout.write(formats.WRITERS[chosen](header, results))
    if arguments.plot is not None:
        try:
            plot.plot(results, arguments.plot, "xeflash and torch SDPA")
        except plot.PlotError as error:
            print(f"xeflash {error}", file=sys.stderr)
