"""The command line of all benchmarks: options, progress, output."""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xeflash.bench.cases import parse_choices, parse_size, parse_sizes
from xeflash.bench.files import cannot_write, grows, write_whole
from xeflash.cli.arguments import converter
from xeflash.cli.interrupt import one_interrupt

if TYPE_CHECKING:
    from xeflash.bench.rows import Result
    from xeflash.bench.tables import Layout

SIZES = "sizes"
LISTS = "Lists are comma lists, and 4k means 4096."
FORMATS = ("md", "csv", "json", "jsonl")
SECONDS = 1.0  # at least, between two states of a file that grows


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
    simulated: tuple[str, ...] = (),
) -> Any:
    """Adds the options of how to measure; returns their group.

    `peaks` of the machine are measured or not; `simulated` are devices beside torch's; `compare` is what the
    first of it, the default, is beside.
    """
    how = parser.add_argument_group("measuring")
    devices = ("auto", "cpu", "xpu", *simulated)
    how.add_argument("--device", choices=devices, default="auto", help="sim:* counts" if simulated else None)
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
        "--output",
        metavar="FILE",
        type=Path,
        help="write all there, as JSON for reports, which grows case by case; stdout still gets the table",
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
        if arguments.output is not None and (why := cannot_write(arguments.output)):
            raise ValueError(f"bench: --output must be a file that can be written, got {why}")
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
        if isinstance(error, OSError) and error.errno in (errno.EPIPE, errno.ENOSPC):
            raise
        print(f"xeflash {error}", file=sys.stderr)
    return 2


def collect(
    results: Iterable[Result], labels: Sequence[str], keep: Callable[[list[Result]], None]
) -> tuple[list[Result], bool]:
    """Returns the results and whether they were interrupted; says how far it is and keeps what there is meanwhile."""
    from xeflash.bench.progress import Progress

    collected: list[Result] = []
    kept = 0.0
    try:
        with one_interrupt(), Progress("xeflash bench") as progress:
            progress.begin(labels[0], len(labels))
            for result in results:
                collected.append(result)  # one by one: an interrupt keeps them
                if time.monotonic() >= kept + SECONDS:
                    keep(collected)
                    kept = time.monotonic()
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

    `figure` draws the results with the name of the device; `finish` fills in what needs all rows, which are in a file
    of JSON before.
    """
    file, grown = arguments.output, format_of(arguments) == "json"

    def keep(measured: list[Result]) -> None:
        if file is not None and grown and grows(file):
            with contextlib.suppress(OSError):  # a full disk stops no case: the end says so
                write_whole(file, text_of("json", header(measured), measured, layout, False))

    warn_of_load()
    measured, interrupted = collect(results, labels, keep)
    found = finish(measured)
    written = True
    if found or not interrupted:  # else an older file stays
        written = write(arguments, header(found), found, layout, lambda device: figure(found, device), not interrupted)
    if interrupted:
        where = f"; {file} has them" if file is not None and found and written else ""
        print(f"xeflash bench: interrupted; {len(found)} of {len(labels)} cases{where}", file=sys.stderr)
        return 130
    if not written:
        return 2
    return 1 if any(result.row.status == "failed" for result in found) else 0


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


def text_of(
    chosen: str, header: Mapping[str, object], results: Sequence[Result], layout: Layout, complete: bool
) -> str:
    """Returns the results in one of the formats; JSON says whether they are complete."""
    from xeflash.bench import formats

    return formats.WRITERS[chosen]({"complete": complete, **header} if chosen == "json" else header, results, layout)


def write(
    arguments: argparse.Namespace,
    header: Mapping[str, object],
    results: Sequence[Result],
    layout: Layout,
    figure: Callable[[str], Any],
    complete: bool = True,
) -> bool:
    """Writes the table, the file and the picture, which `figure` draws with the name of the device.

    Returns whether the file could be written, and says so if not: the table still is.
    """
    from rich.console import Console

    from xeflash.bench import formats, screen
    from xeflash.bench.plot import PlotError, save

    chosen, everything = format_of(arguments), "" if arguments.wide else "--wide, or for reports --output FILE.json"
    file, why = arguments.output, ""
    if file is not None:
        try:
            write_whole(file, text_of(chosen, header, results, layout, complete))
        except OSError as error:
            why = f"{file}: {error.strerror}"
            print(f"xeflash bench: --output could not be written: {why}", file=sys.stderr)
        chosen, everything = "md", "" if why else file
    if sys.stdout.isatty() and (file is not None or arguments.format is None):
        screen.print_results(header, results, layout, Console(highlight=False), arguments.wide)
    elif chosen == "md":
        sys.stdout.write(formats.to_md(header, results, layout, arguments.wide))
    else:
        sys.stdout.write(text_of(chosen, header, results, layout, complete))
    if chosen == "md" and everything:
        print(f"\nall columns, environment and method: {everything}")
    if arguments.plot is not None:
        try:
            save(figure(formats.device_of(header)), arguments.plot)
        except PlotError as error:
            print(f"xeflash {error}", file=sys.stderr)
    return not why
