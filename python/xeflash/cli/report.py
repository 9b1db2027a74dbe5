"""`xeflash report`: doctor, selftest, the tuner and a benchmark of a device in one file, and a row to paste."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from xeflash.bench.cases import parse_size
from xeflash.bench.environ import environment, usable_cpus
from xeflash.bench.files import cannot_write, grows, write_whole
from xeflash.cli import checks, doctor, facts, selftest
from xeflash.cli.arguments import converter
from xeflash.cli.bench_shared import prepare_threads, warn_of_load
from xeflash.cli.interrupt import one_interrupt
from xeflash.report import journal, judged
from xeflash.report.cases import CASES
from xeflash.report.private import without_names
from xeflash.runtime.cache_folder import cache_folder
from xeflash.selftest.pool import Answer, Pool, Refused
from xeflash.selftest.record import Record
from xeflash.selftest.report import limits_of_device, to_data

SECONDS = 180.0  # the limit of a case, which may be compiled first
_SECONDS_TO_END = 10.0  # of the tuner, which ends its processes
_FORMAT = 1


def add_parser(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "report",
        help="check, time and describe a device, in one file to send",
        description="Run doctor, selftest, the tuner (with --tune) and 12 calls whose times on cards others have "
        "published, and write all in one file without names of users, hosts or paths. A kernel that hangs is named; "
        "one that stops the machine is named by the next report, and by doctor. Exits with 0 if all is right and can "
        "be believed, with 1 if not, with 2 if the device cannot be used.",
    )
    selftest.add_device(parser)
    parser.add_argument(
        "--minutes", metavar="N", type=converter(parse_size), default=10,
        help="for the tuner and the calls, after the self-test; what is left then is named (default: 10)",
    )  # fmt: skip
    parser.add_argument("--tune", action="store_true", help="run `xeflash tune` before the calls, for half the minutes")
    parser.add_argument("--no-times", action="store_true", help="only check; the calls have smaller sizes then")
    parser.add_argument(
        "--json", metavar="FILE", type=Path, help="the file (default: xeflash-report-DEVICE.json in this folder)"
    )
    parser.set_defaults(run=run)


def command(device: str, journal_path: str) -> list[str]:
    """Returns the command that starts a process for cases."""
    return [sys.executable, "-X", "faulthandler", "-m", "xeflash.report.worker", device, journal_path]


class Report:
    """The parts of a report, in memory and in a file, which is whole after each step."""

    def __init__(self, file: Path, **parts: Any) -> None:
        """Takes the first parts."""
        self.file, self.full = file, ""
        self.parts: dict[str, Any] = {"report": _FORMAT, "complete": False, "environment": environment(), **parts}

    def keep(self, **parts: Any) -> None:
        """Adds parts, and writes the file, which has no names; a full disk is told at the end."""
        self.parts |= parts
        if grows(self.file) or self.parts["complete"]:
            # The name of a card is no host's, though a host may have it.
            shown = without_names(self.parts) | {x: self.parts[x] for x in ("device",) if x in self.parts}
            try:
                write_whole(self.file, json.dumps(shown, indent=1, default=str) + "\n")
                self.full = ""
            except OSError as error:
                self.full = f"{self.file}: {error.strerror}"


class _Part(Record):
    """The record of the cases of a part, which the report writes."""

    def __init__(self, name: str, report: Report, kept: journal.Journal, device: Answer, names: Sequence[str]) -> None:
        super().__init__(device, names, report.file)
        self._name, self._report, self._journal = name, report, kept

    def keep(self, request: Answer, answer: Answer) -> None:
        """Keeps the answer of a case; one that died is told with its kernels."""
        name = request["name"]
        if answer["status"] == "died":
            kernels = self._journal.kernels(name)
            note = f"{answer['note']}; kernels {', '.join(kernels)}" if kernels else answer["note"]
            answer = {**answer, "note": note, "kernels": kernels}
            self._journal.end(name)
        super().keep(request, judged.without_impossible(answer | {"name": name}, limits_of_device(self.device)))

    def _write(self) -> None:
        found = to_data(self.told())
        self._report.keep(**{self._name: {name: found[name] for name in ("complete", "seconds", "cases")}})


def run(arguments: argparse.Namespace) -> int:
    """Makes the report of a device; keeps a journal meanwhile."""
    file = arguments.json or Path(f"xeflash-report-{arguments.device.replace(':', '-')}.json")
    refused = ""
    if why := cannot_write(file):
        refused = f"--json must be a file that can be written, got {why}"
    elif importlib.util.find_spec("numpy") is None:
        refused = "it needs numpy; try: pip install numpy"
    elif arguments.tune and arguments.minutes < 2:
        refused = f"--minutes must be at least 2 with --tune, which has half of them, got {arguments.minutes}"
    elif arguments.tune and arguments.no_times:
        refused = "--tune must be left out with --no-times, as a tuner measures times"
    elif arguments.tune and os.environ.get("XEFLASH_TUNED"):
        refused = "--tune must be left out where XEFLASH_TUNED is set, as no call reads what the tuner finds there"
    if refused:
        return _refuse(refused)
    with contextlib.ExitStack() as until_the_end:
        try:
            kept, last = until_the_end.enter_context(journal.kept(arguments.device))
        except BlockingIOError:
            return _refuse("another report of this user runs; wait for its end")
        except OSError as error:
            why = f"{cache_folder()}: {error.strerror}" if error.strerror else str(error)
            return _refuse(f"its journal cannot be kept: {why}; try: export XEFLASH_CACHE_DIR=/some/folder/of/yours")
        if last:
            print(f"xeflash report: {last}", file=sys.stderr)
        report = Report(file, last_report=str(last) if last else None)
        prepare_threads(None)
        with one_interrupt():
            try:
                code = _run(report, kept, arguments)
            except KeyboardInterrupt:
                print(f"xeflash report: interrupted; {file} has what is known", file=sys.stderr)
                code = 130
    if report.full:
        return _refuse(f"--json could not be written: {report.full}")
    return code


def _refuse(why: str) -> int:
    print(f"xeflash report: {why}", file=sys.stderr)
    return 2


def _run(report: Report, kept: journal.Journal, arguments: argparse.Namespace) -> int:
    """Makes all parts, and tells them; returns the exit code."""

    kept.begin("doctor")
    found = facts.gather()
    report.keep(doctor=json.loads(doctor.report_json(found, checks.all_checks(found))))
    kept.end("doctor")
    words = command(arguments.device, kept.path)
    with contextlib.ExitStack() as pools:

        def started(jobs: int) -> Pool:
            pool = Pool(words, jobs, SECONDS)
            pools.callback(pool.end)
            return pool

        try:
            pool = started(min(4, usable_cpus()))
            timed = not (arguments.no_times or pool.device.get("simulated"))
            report.keep(timed=timed, device=pool.device)
            if why := _selftest(pool, report, kept, timed):
                raise Refused(f"no kernel runs on {pool.device.get('name')}: {why}")
            end = time.monotonic() + 60 * arguments.minutes
            if arguments.tune and pool.usable:
                pool.end()
                _tune(report, kept, arguments)
                pool = started(1)  # whose look-ups find what the tuner has found
        except Refused as error:
            report.keep(refused=str(error))
            return _refuse(selftest.with_remedy(str(error)))
        _card(pool, report, kept, timed, end)
    return _tell(report)


def _selftest(pool: Pool, report: Report, kept: journal.Journal, timed: bool) -> str:
    """Runs the self-test; returns why no kernel runs, or ""."""
    from xeflash.selftest.cases import all_cases, large_cases

    small, large = list(all_cases()), list(large_cases(bool(pool.device["on_gpu"]))) if timed else []
    part = _Part("selftest", report, kept, pool.device, [*small, *large])
    why = selftest.run_all(pool, part, small, large, timed)
    part.complete = not why
    part.finish()
    limits = limits_of_device(pool.device)
    report.keep(software=part.software, limits=asdict(limits) if limits else None)
    return why


def _tune(report: Report, kept: journal.Journal, arguments: argparse.Namespace) -> None:
    """Runs the tuner in a process of its own, which has processes of its own."""
    kept.begin(journal.TUNER)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "tuning.json")
        words = [
            sys.executable,
            "-m",
            "xeflash",
            "tune",
            "--device",
            arguments.device,
            "--minutes",
            str(arguments.minutes // 2),
        ]
        environ = {"XEFLASH_KERNEL_LOG": kept.path, **os.environ}
        tuner = subprocess.Popen([*words, "--json", str(file)], stdout=subprocess.DEVNULL, env=environ)
        try:
            tuner.wait()
        finally:  # an interrupt has it keep what it found
            tuner.terminate()
            failed = {"failed": f"xeflash tune ended with {code}"} if (code := _ended(tuner)) else {}
            report.keep(tuning=(json.loads(file.read_text()) if file.exists() else {}) | failed)
    kept.end(journal.TUNER)


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Returns the exit code of a process that ends now, or has to."""
    try:
        return process.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _card(pool: Pool, report: Report, kept: journal.Journal, timed: bool, end: float) -> None:
    """Checks the calls, and times them in one process that is alone, until the time is over."""
    from xeflash.bench.progress import Progress

    if timed:
        warn_of_load()
    part = _Part("card", report, kept, pool.device, list(CASES))
    with Progress("xeflash report") as progress:
        progress.begin("calls", len(CASES))
        for name in CASES:
            progress.describe(name)
            if time.monotonic() < end:
                pool.run([{"name": name, "timed": timed}], 1, part.keep, part.begin)
            else:
                part.keep({"name": name}, {"status": "left out", "note": "the time of --minutes was over"})
            row = part.rows[name]
            if peaks := row.pop("peaks", None):
                report.keep(peaks=peaks)  # the best so far
            progress.advance("" if row["status"] in ("ok", "left out") else f"{name}: {row['status']}: {row['note']}")
    part.complete = True
    part.finish()


def _tell(report: Report) -> int:
    """Judges the report, writes it for the last time and prints it; returns the exit code."""
    from rich.console import Console

    parts = report.parts
    doubts = judged.doubts(parts)
    parts["valid"] = not doubts
    row = judged.markdown(judged.cells(parts))
    report.keep(complete=True, doubts=doubts, row=row)
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, judged.WIDTH)
    if not parts["timed"]:
        console.print("not timed: calls are checked with one sequence, few heads and at most 128 queries", markup=False)
    console.print(judged.table_of_cases(parts["card"]["cases"], parts["timed"]))
    peaks = ", ".join(f"{name} {value:g}" for name, value in parts.get("peaks", {}).items())
    for line in (
        *doubts,
        *[f"peaks as measured: {peaks}"] * bool(peaks),
        *judged.ENDING,
        *map(judged.markdown, (judged.HEAD, ["---"] * len(judged.HEAD))),
        row,
    ):
        console.print(line, markup=False)
    return 1 if doubts else 0
