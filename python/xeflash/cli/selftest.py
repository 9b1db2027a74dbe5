"""`xeflash selftest`: checks and times every algorithm on this device, and writes one file for a report."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xeflash.bench.cases import parse_size
from xeflash.bench.environ import environment, usable_cpus
from xeflash.cli import selftest_distributed
from xeflash.cli.arguments import converter
from xeflash.tune import xe

if TYPE_CHECKING:
    from xeflash.selftest.pool import Answer, Pool


def add_parser(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "selftest",
        help="check and time every algorithm on a device",
        description="Run about a hundred small cases of all algorithms against a reference in float64, time them and a "
        "few large ones, and say what the device and its software are. Exits with 0 if all are right, with 1 if not, "
        "with 2 if the device cannot be used.",
    )
    simulated = tuple(f"sim:{name}" for name in xe.DEVICES)
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "xpu", *simulated),
        metavar="NAME",
        default="auto",
        help=f"auto: the GPU of this machine if it has one, else its CPU; or one of cpu, xpu, {', '.join(simulated)}",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write everything there, to attach it to a report")
    parser.add_argument("--jobs", metavar="N", type=converter(parse_size), help="processes (default: up to 4)")
    parser.add_argument("--no-times", action="store_true", help="only check")
    selftest_distributed.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Checks the device, times it unless told otherwise, and prints the report."""
    if refused := selftest_distributed.refusal(arguments):
        print(f"xeflash selftest: {refused}", file=sys.stderr)
        return 2
    if arguments.json is not None and (why := _cannot_write(arguments.json)):
        print(f"xeflash selftest: --json must be a file that can be written, got {why}", file=sys.stderr)
        return 2
    if arguments.distributed:
        return selftest_distributed.run(arguments)
    if importlib.util.find_spec("numpy") is None:
        print("xeflash selftest: it needs numpy; try: pip install numpy", file=sys.stderr)
        return 2
    from xeflash.selftest import report
    from xeflash.selftest.pool import Pool, Refused, command

    start = time.monotonic()
    try:
        pool = Pool(command(arguments.device), arguments.jobs or min(4, usable_cpus()))
    except Refused as error:
        print(f"xeflash selftest: {error}; see: xeflash doctor", file=sys.stderr)
        return 2
    try:
        rows = _run_all(pool, timed=not arguments.no_times and not pool.device.get("simulated"))
        told = (environment(), pool.device, pool.ask({"software": True}), rows, time.monotonic() - start)
    except KeyboardInterrupt:
        print("xeflash selftest: interrupted", file=sys.stderr)
        return 130
    finally:
        pool.end()
    report.print_report(*told)
    if arguments.json is not None:
        arguments.json.write_text(report.to_json(*told), encoding="utf-8")
    return 1 if any(row["status"] != "ok" for row in rows) else 0


def _cannot_write(file: Path) -> str:
    """Returns why a report cannot be written there, or "" if it can; leaves no file behind."""
    try:
        there = file.exists()
        file.open("a").close()
        if not there:
            file.unlink()
    except OSError as error:
        return str(error)
    return ""


def _run_all(pool: Pool, timed: bool) -> list[dict[str, Any]]:
    """Runs all cases in several processes, then times them in one process that is alone."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    from xeflash.selftest.cases import all_cases, large_cases

    small, large = list(all_cases()), list(large_cases(bool(pool.device["on_gpu"]))) if timed else []
    rows: dict[str, dict[str, Any]] = {name: {"name": name} for name in (*small, *large)}
    screen = Console(stderr=True)
    if not screen.is_terminal:  # without a progress bar
        print(f"xeflash selftest: {len(rows)} cases on {pool.device.get('name')}", file=sys.stderr, flush=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal, transient=True) as progress:

        def ask(title: str, names: Sequence[str], jobs: int, timed: bool) -> None:
            task = progress.add_task(title, total=len(names))

            def keep(request: Answer, answer: Answer) -> None:
                rows[request["name"]] |= answer
                progress.advance(task)
                if answer["status"] != "ok":
                    text = f"{request['name']}: {answer['status']}: {answer['note']}"
                    progress.console.print(text, style="red", highlight=False, markup=False)

            pool.run([{"name": name, "timed": timed} for name in names], jobs, keep)

        ask("checking", small, pool.jobs, False)
        if timed:
            right = [name for name in small if rows[name]["status"] == "ok"]
            ask("timing", [*right, *large], 1, True)
    return list(rows.values())
