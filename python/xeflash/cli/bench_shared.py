"""The command line of all benchmarks: options, progress, output."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xeflash.bench.cases import parse_choices, parse_size, parse_sizes
from xeflash.cli.arguments import converter

if TYPE_CHECKING:
    from xeflash.bench.rows import Result
    from xeflash.bench.tables import Layout

SIZES = "sizes"
LISTS = "Lists are comma lists, and 4k means 4096."
FORMATS = ("md", "csv", "json", "jsonl")


def add_lists(group: Any, **options: tuple[Any, Any, str]) -> None:
    """Adds options that take comma lists.

    Each is (what items may be, the default, a text): items are words of a tuple, or sizes. A default that is no tuple
    is None, and its text tells what that means.
    """
    for name, (allowed, default, text) in options.items():
        parse = parse_sizes if allowed is SIZES else functools.partial(parse_choices, allowed=allowed)
        words = "" if allowed is SIZES else f"some of {', '.join(allowed)}"
        usual = "" if default is None else f"default: {','.join(map(str, default))}"
        told = "; ".join(part for part in (text, words, usual) if part)
        group.add_argument(
            f"--{name.replace('_', '-')}", metavar="LIST", type=converter(parse), default=default, help=told
        )


def add_size(group: Any, name: str, text: str, default: int | None = None) -> None:
    """Adds an option that takes one size."""
    usual = "" if default is None else f"; default: {default}"
    group.add_argument(f"--{name}", metavar="N", type=converter(parse_size), default=default, help=f"{text}{usual}")


def add_measuring(
    parser: argparse.ArgumentParser,
    rounds: int | None,
    *,
    peaks: bool = True,
    compare: tuple[str, ...] = (),
    text: str = "times that each call is sampled",
) -> Any:
    """Adds the options of how to measure; returns their group.

    `peaks` of the machine are measured or not; `compare` is what the first of it, the default, is beside.
    """
    how = parser.add_argument_group("measuring")
    how.add_argument("--device", choices=("auto", "cpu", "xpu"), default="auto")
    add_size(how, "threads", "for torch and for SYCL")
    add_size(how, "rounds", text, rounds)
    how.add_argument("--seed", metavar="N", type=int, default=0)
    if peaks:
        how.add_argument("--no-peak", action="store_true", help="do not measure the machine's peaks")
    if compare:
        how.add_argument("--compare", choices=compare, default=compare[0])
    return how


def add_output(parser: argparse.ArgumentParser) -> None:
    """Adds the options of where the result goes."""
    out = parser.add_argument_group("output")
    out.add_argument(
        "--wide", action="store_true", help="the table has all columns, environment and method, as files always have"
    )
    out.add_argument(
        "--format", choices=FORMATS, help="default: the suffix of --output, else md; on a terminal a table that fits it"
    )
    out.add_argument(
        "--output", metavar="FILE", type=Path, help="write all there, as JSON for reports; stdout still gets the table"
    )
    out.add_argument("--plot", metavar="FILE", type=Path, help="the result as a picture (matplotlib)")


def format_of(arguments: argparse.Namespace) -> str:
    """Returns the format of the output."""
    if arguments.format is not None:
        return str(arguments.format)
    suffix = arguments.output.suffix[1:] if arguments.output is not None else ""
    return suffix if suffix in FORMATS else "md"


def prepare_threads(threads: int | None) -> None:
    """Sets what both thread pools read when they start: before torch and SYCL are loaded.

    See bench/timing.py for the reason of passive; a variable that is set already is kept.
    """
    settings = {"OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive")}
    if threads is not None:
        settings |= {"OMP_NUM_THREADS": str(threads), "DPCPP_CPU_NUM_CUS": str(threads)}
    changed = sorted(name for name, value in settings.items() if os.environ.get(name) != value)
    os.environ.update(settings)
    if changed and "torch" in sys.modules:
        print(f"xeflash bench: torch runs already; too late for {changed}", file=sys.stderr)


def guarded(arguments: argparse.Namespace, measure: Callable[[argparse.Namespace], int]) -> int:
    """Returns what `measure` does, or 2 and why it could not begin."""
    try:
        if arguments.plot is not None:
            from xeflash.bench import plot

            plot.require_matplotlib()
        if arguments.output is not None:
            arguments.output.open("a").close()  # what cannot be written is found before minutes of measuring
        prepare_threads(arguments.threads)
        import torch

        if arguments.threads is not None:
            torch.set_num_threads(arguments.threads)
        return measure(arguments)
    except ModuleNotFoundError as error:
        name = error.name or ""
        hint = f"pip install {name}" if name in ("torch", "transformers", "dpctl") else "xeflash doctor"
        print(f"xeflash bench: {error}; try: {hint}", file=sys.stderr)
    except ImportError as error:
        print(f"xeflash bench: {error}; see: xeflash doctor", file=sys.stderr)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"xeflash {error}", file=sys.stderr)
    return 2


def collect(results: Iterable[Result], labels: Sequence[str]) -> tuple[list[Result], bool]:
    """Returns the results and whether they were interrupted; says how far it is meanwhile."""
    from xeflash.bench.progress import Progress

    collected: list[Result] = []
    try:
        with Progress("xeflash bench") as progress:
            progress.begin(labels[0], len(labels))
            for result in results:
                collected.append(result)  # one by one: an interrupt keeps them
                row, done = result.row, len(collected)
                progress.advance("" if row.status == "ok" else f"{row.label}: {row.status}: {row.note}")
                progress.describe(labels[done] if done < len(labels) else "peaks")
    except KeyboardInterrupt:  # what was measured so far is still written
        return collected, True
    return collected, False


def report(
    arguments: argparse.Namespace,
    results: Iterable[Result],
    labels: Sequence[str],
    layout: Layout,
    *,
    header: Callable[[list[Result]], Mapping[str, object]],
    figure: Callable[[list[Result], str], Any],
    finish: Callable[[list[Result]], list[Result]] = list,
) -> int:
    """Measures and writes; returns the exit code.

    `figure` draws the results with the name of the device; `finish` fills in what needs all rows.
    """
    warn_of_load()
    measured, interrupted = collect(results, labels)
    found = finish(measured)
    write(arguments, header(found), found, layout, lambda device: figure(found, device))
    return exit_code(found, interrupted)


def exit_code(results: Sequence[Result], interrupted: bool) -> int:
    """Returns 0 if every result was right."""
    if interrupted:
        return 130
    return 1 if any(result.row.status == "failed" for result in results) else 0


def warn_of_load() -> None:
    """Says so if other programs use the CPUs: both sides get slower, torch's OpenMP most of all."""
    from xeflash.bench.environ import load_average, usable_cpus

    load = load_average()
    if load is not None and load > 0.5 * usable_cpus():
        print(
            f"xeflash bench: the load average is {load:.1f} on {usable_cpus()} CPUs: other programs disturb what is "
            "measured; ratios per round suffer less than times",
            file=sys.stderr,
        )


def write(
    arguments: argparse.Namespace,
    header: Mapping[str, object],
    results: Sequence[Result],
    layout: Layout,
    figure: Callable[[str], Any],
) -> None:
    """Writes the table, the file and the picture, which `figure` draws with the name of the device."""
    from rich.console import Console

    from xeflash.bench import formats, screen
    from xeflash.bench.plot import PlotError, save

    chosen, everything = format_of(arguments), "" if arguments.wide else "--wide, or for reports --output FILE.json"
    if arguments.output is not None:
        arguments.output.write_text(formats.WRITERS[chosen](header, results, layout), encoding="utf-8")
        chosen, everything = "md", arguments.output
    if sys.stdout.isatty() and (arguments.output is not None or arguments.format is None):
        screen.print_results(header, results, layout, Console(highlight=False), arguments.wide)
    elif chosen == "md":
        sys.stdout.write(formats.to_md(header, results, layout, arguments.wide))
    else:
        sys.stdout.write(formats.WRITERS[chosen](header, results, layout))
    if chosen == "md" and everything:
        print(f"\nall columns, environment and method: {everything}")
    if arguments.plot is not None:
        try:
            save(figure(formats.device_of(header)), arguments.plot)
        except PlotError as error:
            print(f"xeflash {error}", file=sys.stderr)
