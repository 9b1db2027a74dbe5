"""`xeflash selftest`: checks and times every algorithm on this device, and writes one file for a report."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xeflash.bench.cases import parse_size
from xeflash.bench.environ import usable_cpus
from xeflash.bench.files import cannot_write
from xeflash.cli import selftest_distributed
from xeflash.cli.arguments import converter
from xeflash.cli.interrupt import one_interrupt
from xeflash.tune import xe

if TYPE_CHECKING:
    from xeflash.selftest.pool import Answer, Pool
    from xeflash.selftest.record import Record


def add_parser(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "selftest",
        help="check and time every algorithm on a device",
        description="Run small cases of all algorithms against a reference in float64, time them and a few large ones, "
        "and say what the device and its software are. Exits with 0 if all are right, with 1 if not, with 2 if the "
        "device cannot be used: if no kernel can be compiled or launched.",
    )
    add_device(parser)
    parser.add_argument(
        "--json",
        metavar="FILE",
        type=Path,
        help="write everything there, to attach it to a report; the file grows case by case",
    )
    parser.add_argument("--jobs", metavar="N", type=converter(parse_size), help="processes (default: up to 4)")
    parser.add_argument("--no-times", action="store_true", help="only check")
    selftest_distributed.add_arguments(parser)
    parser.set_defaults(run=run)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Adds the option that names a device, which may be simulated."""
    simulated = tuple(f"sim:{name}" for name in xe.DEVICES)
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "xpu", *simulated),
        metavar="NAME",
        default="auto",
        help=f"auto: the GPU of this machine if it has one, else its CPU; or one of cpu, xpu, {', '.join(simulated)}",
    )


def run(arguments: argparse.Namespace) -> int:
    """Checks the device, times it unless told otherwise, and prints the report."""
    if refused := selftest_distributed.refusal(arguments):
        print(f"xeflash selftest: {refused}", file=sys.stderr)
        return 2
    if arguments.json is not None and (why := cannot_write(arguments.json)):
        print(f"xeflash selftest: --json must be a file that can be written, got {why}", file=sys.stderr)
        return 2
    if arguments.distributed:
        return selftest_distributed.run(arguments)
    if importlib.util.find_spec("numpy") is None:
        print("xeflash selftest: it needs numpy; try: pip install numpy", file=sys.stderr)
        return 2
    from xeflash.selftest.pool import Pool, Refused, command

    try:
        pool = Pool(command(arguments.device), arguments.jobs or min(4, usable_cpus()))
    except Refused as error:
        print(f"xeflash selftest: {with_remedy(str(error))}", file=sys.stderr)
        return 2
    try:
        with one_interrupt():
            return _report(pool, arguments)
    finally:
        pool.end()


def _report(pool: Pool, arguments: argparse.Namespace) -> int:
    """Runs all cases and tells what is known, also if it is interrupted."""
    from xeflash.selftest import report
    from xeflash.selftest.cases import all_cases, large_cases
    from xeflash.selftest.record import Record

    timed = not arguments.no_times and not pool.device.get("simulated")
    small, large = list(all_cases()), list(large_cases(bool(pool.device["on_gpu"]))) if timed else []
    record = Record(pool.device, [*small, *large], arguments.json)
    code = 2
    try:
        if why := run_all(pool, record, small, large, timed):
            name = pool.device.get("name")
            print(f"xeflash selftest: no kernel runs on {name}: {with_remedy(why)}", file=sys.stderr)
        else:
            record.complete = True
            code = 1 if any(row["status"] != "ok" for row in record.rows.values()) else 0
    except KeyboardInterrupt:
        pool.end()
        where = f"; {arguments.json} has what is known" if arguments.json else ""
        print(f"xeflash selftest: interrupted{where}", file=sys.stderr)
        code = 130
    written = record.finish()
    if code != 2:
        report.print_report(record.told())
    if not written:
        print(f"xeflash selftest: --json could not be written: {arguments.json}", file=sys.stderr)
        return 2
    return code


def with_remedy(why: str) -> str:
    """Returns why a device cannot be used, with what to do next."""
    return why if why.endswith(("xeflash.sim.get_ocloc", "unset XEFLASH_OCLOC")) else f"{why}; see: xeflash doctor"


def run_all(pool: Pool, record: Record, small: Sequence[str], large: Sequence[str], timed: bool) -> str:
    """Runs all cases in several processes, then times them in one process that is alone.

    It tries two cases first, of kernels that have little in common, and returns why none of both runs, or "".
    """
    from xeflash.bench.progress import Progress

    print(f"xeflash selftest: {len(record.rows)} cases on {pool.device.get('name')}", file=sys.stderr, flush=True)
    with Progress("xeflash selftest") as progress:

        def ask(title: str, names: Sequence[str], jobs: int, timed: bool, tell: bool = True) -> None:
            progress.begin(title, len(names))

            def keep(request: Answer, answer: Answer) -> None:
                record.keep(request, answer)
                right = answer["status"] == "ok" or not tell
                progress.advance("" if right else f"{request['name']}: {answer['status']}: {answer['note']}")

            pool.run([{"name": name, "timed": timed} for name in names], jobs, keep, record.begin)

        for name in (small[0], small[-1]):
            ask("trying", [name], 1, False, tell=False)
            if record.rows[name]["status"] in ("ok", "wrong"):
                break
        else:
            return str(record.rows[small[0]]["note"])
        record.software = pool.ask({"software": True})
        ask("checking", small, pool.jobs, False)
        if timed:
            right = [name for name in small if record.rows[name]["status"] == "ok"]
            ask("timing", [*right, *large], 1, True)
    return ""
