"""`xeflash tune`: finds the tile sizes, and the shares of calls, that are the fastest on this device."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import math
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xeflash.bench.cases import DTYPES, parse_choices, parse_size, parse_sizes
from xeflash.bench.environ import usable_cpus
from xeflash.bench.files import cannot_write, write_whole
from xeflash.cli.arguments import converter
from xeflash.cli.interrupt import one_interrupt
from xeflash.cli.selftest import add_device
from xeflash.tune.models import SHAPES
from xeflash.tune.tuned import save
from xeflash.tuner import HEAD_DIMS, PHASES

if TYPE_CHECKING:
    from xeflash.tune.tuned import Choice, Tuning
    from xeflash.tuner.cases import Row
    from xeflash.tuner.search import Found

_SECONDS_OF_MINUTE = 60.0
_SECONDS_OF_KERNEL = 5.0  # to compile one
_SECONDS_OF_ROW = 8.0  # to check and time its candidates


def add_parser(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "tune",
        help="find the fastest tile sizes on a device",
        description="Time candidates of tile sizes, and of how calls are shared out, against those of the tables, and "
        "keep what is faster beyond the noise in a file of this device, which later calls read. Each candidate is "
        "checked first, in a process of its own. The bits of gradients stay what they are.",
    )
    add_device(parser)
    some = parser.add_argument_group("calls", "comma lists, in the order of their use")
    some.add_argument(
        "--model-shapes",
        metavar="NAMES",
        type=converter(lambda text: parse_choices(text, tuple(SHAPES))),
        help="heads and head dims of models, in place of usual ones; without their softcap, sinks or ALiBi; known: "
        f"{', '.join(SHAPES)}",
    )
    some.add_argument(
        "--phase",
        metavar="LIST",
        type=converter(lambda text: parse_choices(text, PHASES)),
        default=PHASES,
        help=f"some of {', '.join(PHASES)}; verify: 2 to 16 queries a sequence; default: all",
    )
    some.add_argument(
        "--dtype",
        metavar="LIST",
        type=converter(lambda text: parse_choices(text, DTYPES)),
        help=f"some of {', '.join(DTYPES)}; default: bf16,fp16, of a CPU also fp32",
    )
    some.add_argument("--head-dim", metavar="LIST", type=converter(parse_sizes), help="default: 128,64,256")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--minutes",
        metavar="N",
        type=converter(parse_size),
        default=5,
        help="a bound; what is left is said; default: 5",
    )
    how.add_argument(
        "--by",
        choices=("times", "counts"),
        help="counts: instructions of the main loop for a score, of simulated devices, whose times mean nothing",
    )
    out = parser.add_argument_group("output")
    out.add_argument("--json", metavar="FILE", type=Path, help="write all trials there")
    out.add_argument(
        "--output", metavar="FILE", type=Path, help="keep the tuning there, for XEFLASH_TUNED=FILE; not for later calls"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the command; returns its exit code.

    1: the tables' choice of a row has no result; 2: it cannot begin, or not keep what it finds; 130: an interrupt.
    """
    from xeflash.selftest.pool import Refused

    try:
        return _run(arguments)
    except (Refused, ValueError) as error:
        print(f"xeflash tune: {error}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace) -> int:
    simulated = arguments.device.startswith("sim:")
    by = arguments.by or ("counts" if simulated else "times")
    _refuse(arguments, by, simulated)
    arguments.tuned_before = os.environ.get("XEFLASH_TUNED", "")
    os.environ["XEFLASH_TUNED"] = "off"  # rows are those of the tables, whatever was tuned before
    from xeflash.jit.cache import why_nothing_is_kept
    from xeflash.tune.tuned import Tuning
    from xeflash.tuner.cases import CPU, GPU, cases_of, cases_of_schedule, rows_of, shapes_of
    from xeflash.tuner.search import ordered, rows_of_schedule
    from xeflash.tuner.workers import command, described

    if by == "times" and arguments.output is None and (why := why_nothing_is_kept()):
        raise ValueError(f"{why}; give --output FILE, or set XEFLASH_CACHE_DIR to a writable folder of your own")
    shapes = shapes_of(arguments.model_shapes or (), arguments.head_dim or HEAD_DIMS)
    about = described(command(arguments.device))
    tuning = dataclasses.replace(Tuning.from_json(about["tuning"]), by=by)
    if by == "times" and not about["torch"]:
        raise ValueError(f"it times torch's arrays, and torch has not the device {tuning.name}")
    device, on_cpu = tuning.device, tuning.device.arch.startswith("cpu-")
    dtypes = arguments.dtype or (("bf16", "fp16", "fp32") if on_cpu else ("bf16", "fp16"))
    sizes = CPU if on_cpu else GPU
    cases = cases_of(shapes, arguments.phase, dtypes, sizes)
    kernels = rows_of(cases, device.arch, device.units, tuning.name, tuning.driver)
    scheduled = cases_of_schedule(shapes[0], arguments.phase, dtypes[0], sizes) if by == "times" else ()
    rows = ordered(kernels, list(rows_of_schedule(scheduled, device.arch)))
    if not rows:
        print(f"xeflash tune: no kernel of these calls has candidates on {tuning.name}", file=sys.stderr)
        return 0
    return _tune(arguments, tuning, rows)


def _refuse(arguments: argparse.Namespace, by: str, simulated: bool) -> None:
    """Raises a ValueError for options that do not go together."""
    if simulated != (by == "counts"):
        rule = "times for a device that is there, counts for sim:*, whose times mean nothing"
        raise ValueError(f"--by must be {rule}; got {by} for {arguments.device}")
    if simulated and arguments.json is None and arguments.output is None:
        raise ValueError(f"{arguments.device} needs --output or --json: counts are not kept as a device's tuning")
    if arguments.model_shapes and arguments.head_dim:
        raise ValueError("--head-dim must be left out with --model-shapes, which have their own")
    for name in ("json", "output"):
        file = getattr(arguments, name)
        if file is not None and (why := cannot_write(file)):
            raise ValueError(f"--{name} must be a file that can be written, got {why}")
    if arguments.output and arguments.json and arguments.output.resolve() == arguments.json.resolve():
        raise ValueError(f"--output must be another file than --json, got {arguments.output}")
    if importlib.util.find_spec("numpy") is None:
        raise ValueError("it needs numpy; try: pip install numpy")
    if not simulated and importlib.util.find_spec("torch") is None:
        raise ValueError("it needs torch, whose arrays it times; try: pip install torch")


def _tune(arguments: argparse.Namespace, tuning: Tuning, rows: list[Row]) -> int:
    """Runs the search to its end, to that of the time, or to an interrupt, and tells what there is then."""
    from xeflash.tuner.search import Found
    from xeflash.tuner.workers import Unending

    found = Found(tuning, [row.key for row in rows])
    keeper = _Keeper(arguments)
    jobs = usable_cpus()
    print(f"xeflash tune: {_plan(rows, tuning, jobs, arguments.minutes)}", file=sys.stderr, flush=True)
    ended = ""
    try:
        with one_interrupt():
            _search(arguments, rows, found, keeper, jobs)
    except KeyboardInterrupt:
        ended = "interrupted"
    except Unending as error:
        ended = f"a process of the device cannot be ended: {error}"
    keeper.keep(found, None)
    _print_table(rows, found)
    for key, why in found.failed.items():
        print(f"xeflash tune: {key}: the choice of the tables has no result: {why}", file=sys.stderr)
    if found.no_compiler:
        print(f"xeflash tune: only the schedule could be tuned: {found.no_compiler}", file=sys.stderr)
    if found.left:
        some = f"{', '.join(found.left[:3])}{', ...' if len(found.left) > 3 else ''}"
        more = ended or ("no compiler" if found.no_compiler else f"--minutes {arguments.minutes}")
        print(f"xeflash tune: {len(found.left)} of {len(rows)} rows are left ({more}): {some}", file=sys.stderr)
    print(keeper.said())
    return 130 if ended == "interrupted" else 2 if ended or keeper.why else 1 if found.failed else 0


def _plan(rows: list[Row], tuning: Tuning, jobs: int, minutes: int) -> str:
    """Returns how much there is to do, and about how long it takes."""
    from xeflash.tuner.measure import uncompiled

    candidates, kernels = sum(len(row.candidates) for row in rows), uncompiled(rows)
    seconds = kernels * _SECONDS_OF_KERNEL / jobs + len(rows) * (_SECONDS_OF_ROW if tuning.by == "times" else 0)
    return (
        f"{len(rows)} rows with {candidates} candidates on {tuning.name}; {kernels} kernels are to be compiled; all "
        f"would take about {math.ceil(seconds / 60)} min, of which --minutes allows {minutes}"
    )


def _search(arguments: argparse.Namespace, rows: list[Row], found: Found, keeper: _Keeper, jobs: int) -> None:
    from xeflash.bench.progress import Progress
    from xeflash.tuner.counts import Counted
    from xeflash.tuner.measure import Compiling, Measured
    from xeflash.tuner.search import Chooser, OutOfTime, search
    from xeflash.tuner.workers import Lanes, command

    deadline = time.monotonic() + _SECONDS_OF_MINUTE * arguments.minutes

    def on_time() -> None:
        if time.monotonic() > deadline:
            raise OutOfTime

    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(Progress("xeflash tune", "rows"))
        progress.begin(rows[0].key, len(rows))
        chooser: Chooser = Counted(jobs, on_time)
        if found.tuning.by == "times":
            compiling = Compiling(jobs)
            stack.callback(compiling.end)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xeflash-tune-")))
            lanes = Lanes(command(arguments.device), folder)
            stack.callback(lanes.end)
            chooser = Measured(lanes, compiling, jobs, on_time)
            if not found.tuning.device.arch.startswith("cpu-"):  # where compilers do not disturb what is timed
                for row in rows:
                    compiling.begin(row)

        def keep(row: Row) -> None:
            keeper.keep(found, row)
            progress.advance(_faults(row, found))

        search(rows, chooser, found, keep, lambda row: progress.describe(row.key))


def _chosen(row: Row, found: Found) -> Choice[Any] | None:
    return (found.tuning.choices if row.kernels else found.tuning.schedule).get(row.key)


def _faults(row: Row, found: Found) -> str:
    """Returns what is wrong with a row's candidates."""
    choice = _chosen(row, found)
    trials = [f"{x.value}: {x.note}" for x in (choice.trials if choice else ()) if x.ms is None]
    return f"{row.key}: {'; '.join(trials)}" if trials else ""


class _Keeper:
    """The files of what was found, which are written anew with each row."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._json, self._output, self._instead = arguments.json, arguments.output, arguments.tuned_before
        self._path: Path | None = None
        self.why = ""  # the first thing that could not be written

    def keep(self, found: Found, row: Row | None) -> None:
        """Writes what there is; of the user's file the row alone, or with no row nothing."""
        from xeflash.tuner.search import with_choice

        tuning, choice = found.tuning, _chosen(row, found) if row else None
        try:
            if self._output is not None:
                write_whole(self._output, tuning.to_json())
            elif tuning.by == "times" and row and choice:
                none = dataclasses.replace(tuning, choices={}, schedule={})
                self._path = save(with_choice(none, row, choice))
            if self._json is not None:
                told = {"complete": not found.left, "left": found.left, "no_result": found.failed}
                write_whole(self._json, json.dumps({**told, "tuning": json.loads(tuning.to_json())}, indent=1) + "\n")
        except OSError as error:
            self.why = self.why or str(error)

    def said(self) -> str:
        """Returns where the tuning is."""
        if self.why:
            return f"xeflash tune: what was found could not be kept: {self.why}"
        file = self._output or self._path
        if file is None:
            return "nothing was kept"
        if self._output:
            return f"{file}: calls read it with XEFLASH_TUNED={file}"
        return f"{file}: calls of new processes read it{', but for XEFLASH_TUNED' * bool(self._instead)}"


def _print_table(rows: list[Row], found: Found) -> None:
    """Prints a line for each row that is done, with the trial of the winner, or of the best that did not win."""
    from rich.console import Console
    from rich.table import Table

    from xeflash.tuner.rounds import STOPPED

    table = Table(box=None)
    unit = "ms" if found.tuning.by == "times" else "instructions / 1000 scores"
    for name in ("key", "tables", unit, "chosen", unit, "ratio", "note"):
        table.add_column(name, justify="left" if name in ("key", "note") else "right")
    for row in rows:
        if (choice := _chosen(row, found)) is None:
            continue
        first, *others = choice.trials
        won = next((x for x in others if x.value == choice.value), None)
        told = won or max(others, key=lambda x: (not x.note.startswith(STOPPED), x.ratio or 0))
        ratio = "" if told.ratio is None else f"{told.ratio:.3f} ({told.low:.3f} to {told.high:.3f})"
        note = "" if won else f"best other: {_said(told.value)}" + (f", {told.note}" if told.note else "")
        figures = [f"{x.ms:.3f}" if x and x.ms else "" for x in (first, won)]
        table.add_row(row.key, _said(first.value), figures[0], _said(choice.value), figures[1], ratio, note)
    if table.rows:
        Console(highlight=False, width=None if sys.stdout.isatty() else 200).print(table)


def _said(value: object) -> str:
    return " x ".join(map(str, value)) if isinstance(value, tuple) else str(value)
