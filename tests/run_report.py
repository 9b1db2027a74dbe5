"""What a run of the tests took: one line at its end, and with --slowest its dearest kernels and tests.

Each process that runs tests keeps a journal, a file of JSON lines: its tests as they begin and end, and between them the
kernels that the library asked for (XEFLASH_KERNEL_LOG), in programs that the test starts, too. The process that a person
starts makes the folder of the journals, and adds them up.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FOLDER = "XEFLASH_TEST_JOURNALS"
SUMMARY = "xeflash-summary"  # the plugin of the process that adds up
SHOWN = 10
simulated = 0.0  # seconds of the test that runs; conftest's fixture `gpu` adds to them
_used: set[str] = set()  # kernels that calls of this process have looked up in this test
_told_before = 0  # bytes of the journal when it began


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slowest", action="store_true", help=f"name the {SHOWN} dearest kernels and tests")


@pytest.hookimpl(tryfirst=True)  # before workers start
def pytest_sessionstart(session: pytest.Session) -> None:
    if FOLDER not in os.environ:
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="xeflash-tests-")
        session.config.pluginmanager.register(Summary(Path(os.environ[FOLDER])), SUMMARY)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global simulated, _told_before
    path = _journal()
    start, simulated = time.monotonic(), 0.0
    note(path, {"test": item.nodeid})
    _told_before = path.stat().st_size
    os.environ["XEFLASH_KERNEL_LOG"] = str(path)
    _look_up()  # what ran between two tests is nobody's
    _used.clear()
    try:
        return (yield)
    finally:
        del os.environ["XEFLASH_KERNEL_LOG"]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        took = {"took": time.monotonic() - start, "simulated": simulated, "peak": peak}
        _look_up()
        note(path, {"ended": item.nodeid, **took, "used": sorted(_used)})


def _journal() -> Path:
    return Path(os.environ[FOLDER], f"{os.getpid()}.jsonl")


def _look_up() -> None:
    if core := sys.modules.get("xeflash._core"):
        _used.update(core.used_kernels())


def kernels_of_this_test() -> set[str]:
    """Those that it has asked for until now, in programs that it started, too."""
    _look_up()
    with _journal().open() as file:
        file.seek(_told_before)
        lines = map(json.loads, file.readlines())
    return _used | {line["kernel"] for line in lines if line.get("device")}


def note(path: Path, line: dict[str, object]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


@dataclass
class Spent:
    """What all processes did."""

    kernels: list[dict[str, Any]] = field(default_factory=list)  # with the test that asked for them
    tests: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> Spent:
        spent = cls()
        for path in sorted(folder.glob("*.jsonl")):
            test = ""
            for text in path.read_text().splitlines():
                line = json.loads(text)
                test = line.get("test", test)
                if "kernel" in line:
                    spent.kernels.append(line | {"test": test})
                elif "ended" in line:
                    spent.tests.append(line)
        return spent

    def counts(self, on_cpu: bool) -> str:
        """How many different kernels were compiled, and how many others were found."""
        mine = [k for k in self.kernels if k["device"] and k["kernel"].startswith("cpu-") == on_cpu]
        compiled = {(k["kernel"], k["device"]) for k in mine if k["compiled"]}
        found = {(k["kernel"], k["device"]) for k in mine} - compiled
        return f"{len(compiled)} compiled, {len(found)} found"

    def line(self, wall: float, processes: int) -> str:
        compiling = sum(k["seconds"] for k in self.kernels)
        simulating = sum(test["simulated"] for test in self.tests)
        peak = max((test["peak"] for test in self.tests), default=0)
        return (
            f"{wall / 60:.1f} minutes; kernels of the CPU: {self.counts(True)}; of GPUs: {self.counts(False)}; "
            f"seconds of {processes} processes: {compiling:.0f} compiling, {simulating:.0f} simulating, "
            f"{wall * processes - compiling - simulating:.0f} elsewhere; the largest held {peak / 1e9:.2f} GB"
        )

    def slowest(self) -> Iterator[str]:
        for kernel in sorted(self.kernels, key=lambda kernel: -kernel["seconds"])[:SHOWN]:
            yield f"{kernel['seconds']:7.1f} s  {kernel['kernel']}  {kernel['test']}"
        for test in sorted(self.tests, key=lambda test: -test["took"])[:SHOWN]:
            yield f"{test['took']:7.1f} s  {test['ended']}"


class Summary:
    """Of the process that a person starts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.start = folder, time.monotonic()

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        spent = Spent.read(self.folder)
        if spent.tests:
            if config.option.slowest:
                terminalreporter.section("dearest kernels and tests")
                for line in spent.slowest():
                    terminalreporter.write_line(line)
            terminalreporter.write_line(
                spent.line(time.monotonic() - self.start, getattr(config.option, "numprocesses", None) or 1)
            )

    def pytest_unconfigure(self) -> None:
        os.environ.pop(FOLDER, None)
        if kept := os.environ.get("XEFLASH_KEEP_JOURNALS"):
            shutil.copytree(self.folder, kept, dirs_exist_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
