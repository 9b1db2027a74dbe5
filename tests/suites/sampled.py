"""A plugin of pytest: runs a sample of a suite's tests in so many minutes, and says in a line each what failed and why.

The functions of a suite take turns, each with cases that `--seed` draws. Cases with a number above `--largest` among their
parameters are left out.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

FAILED = "XEFLASH_SUITE_FAILED"  # the file that gets their names
CASES = 100  # of a function

began = time.monotonic()
failures: dict[str, str] = {}  # why each failed
left = 0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", type=float, default=8.0, help="begin no test after so many minutes")
    parser.addoption("--seed", default="0", help="any word, from which the order follows")
    parser.addoption("--largest", type=int, default=1024, help="leave out cases with a larger number")
    parser.addoption("--keep", action="append", default=[], metavar="NAME=V,V", help="draw these values of a parameter")


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Some combinations of parameters take the place of all, of which a suite may have a million."""
    definition = metafunc.definition
    marks = [mark for mark in definition.own_markers if mark.name == "parametrize"]
    if not marks:
        return
    chosen = random.Random(f"{metafunc.config.getoption('--seed')} {definition.nodeid}")
    names = [name for mark in reversed(marks) for name in _names(mark.args[0])]
    largest, rows = metafunc.config.getoption("--largest"), {}
    kept_values = {
        name: said.split(",") for name, _, said in (x.partition("=") for x in metafunc.config.getoption("--keep"))
    }
    for _ in range(100 * CASES):
        row = [_values(chosen.choice(list(mark.args[1])), mark.args[0]) for mark in reversed(marks)]
        values = tuple(itertools.chain(*row))
        small = all(value <= largest for value in values if isinstance(value, int))
        wanted = all(
            str(value) in kept_values.get(name, [str(value)]) for name, value in zip(names, values, strict=True)
        )
        if len(rows) < CASES and small and wanted:
            rows[repr(values)] = values
    kept = [mark for mark in definition.own_markers if mark.name != "parametrize"]
    definition.own_markers[:] = [*kept, pytest.mark.parametrize(names, list(rows.values())).mark]


def _names(said: Any) -> list[str]:
    return [name.strip() for name in said.split(",")] if isinstance(said, str) else list(said)


def _values(value: Any, names: Any) -> tuple[Any, ...]:
    if hasattr(value, "marks"):
        return tuple(value.values)
    return (value,) if len(_names(names)) == 1 else tuple(value)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seed = config.getoption("--seed")

    def place(item: pytest.Item) -> bytes:
        return hashlib.sha256(f"{seed} {item.nodeid}".encode()).digest()

    turns: dict[str, list[pytest.Item]] = {}
    for item in sorted(items, key=place):
        turns.setdefault(item.nodeid.partition("[")[0], []).append(item)
    functions = [turns[name] for name in sorted(turns, key=lambda name: place(turns[name][0]))]
    items[:] = [item for turn in itertools.zip_longest(*functions) for item in turn if item is not None]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    global left
    if time.monotonic() - began < 60 * item.config.getoption("--minutes"):
        return None
    left += 1
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and report.nodeid not in failures:
        crash = getattr(report.longrepr, "reprcrash", None)
        failures[report.nodeid] = (crash.message if crash else report.longreprtext.strip()).partition("\n")[0]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for name, why in failures.items():
        terminalreporter.write_line(f"failed: {name}: {why}")
    passed, skipped = (len(terminalreporter.stats.get(kind, ())) for kind in ("passed", "skipped"))
    refused = sum(why.startswith("NotImplementedError") for why in failures.values())
    failed = f"{len(failures) - refused} failed, {refused} refused"
    terminalreporter.write_line(f"{passed} passed, {failed}, {skipped} skipped, {left} left")
    Path(os.environ[FAILED]).write_text("\n".join(failures))


def run(folder: Path, *words: str, path: tuple[Path, ...] = (), **variables: str) -> list[str]:
    """Runs pytest with this plugin in a folder of its own, and returns what failed."""
    paths = [str(Path(__file__).parent), *map(str, path), os.environ.get("PYTHONPATH", "")]
    failed = folder / "failed"
    environment = {**os.environ, **variables, FAILED: str(failed), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-m", "pytest", "-p", "sampled", "-p", "no:cacheprovider", "-q", "--tb=short"]
    command += ["--show-capture=no", "--no-summary", *words]
    code = subprocess.run(command, cwd=folder, env=environment).returncode
    if code not in (0, 1):
        raise SystemExit(f"pytest ended with {code}: {' '.join(command)}")
    return failed.read_text().splitlines()
