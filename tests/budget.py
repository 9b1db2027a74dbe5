"""A run of so many minutes: `pytest --minutes 20` begins no test after them, and its last lines say how many are left.

`--seed 5` chooses the order of the files, in each of which tests keep theirs: another seed leaves others.
"""

from __future__ import annotations

import hashlib
import os
import time
from typing import Any

import pytest
import run_report

MINUTES = "XEFLASH_TEST_MINUTES"  # in the environment, where a command cannot be changed
END = "XEFLASH_TESTS_END_AT"  # by the monotonic clock, which all processes share
left = 0  # by this process


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--minutes",
        type=float,
        metavar="M",
        default=os.environ.get(MINUTES),
        help="begin no test after so many minutes",
    )
    parser.addoption("--seed", default="", metavar="S", help="with --minutes: any word, from which the order follows")


def pytest_configure(config: pytest.Config) -> None:
    minutes = config.getoption("--minutes")
    if minutes is None and config.getoption("--seed"):
        raise pytest.UsageError("--seed needs --minutes, whose order it chooses")
    if minutes is not None and not hasattr(config, "workerinput"):
        if not minutes > 0:
            raise pytest.UsageError(f"--minutes must be positive, got {minutes:g}")
        ends = time.monotonic() + 60 * minutes
        os.environ[END] = str(min(ends, float(os.environ.get(END, ends))))


def of_a_part(config: pytest.Config, parts: int) -> list[str]:
    """Options of a run within this one, of which there are so many."""
    minutes = config.getoption("--minutes")
    return [] if minutes is None else ["--minutes", str(minutes / parts), f"--seed={config.getoption('--seed')}"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if seed := config.getoption("--seed"):
        items.sort(key=lambda item: hashlib.sha256(f"{seed} {item.nodeid.partition('::')[0]}".encode()).digest())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Takes the test's turn when time is up."""
    global left
    if item.config.getoption("--minutes") is None or time.monotonic() < float(os.environ[END]):
        return None
    run_report.leave(item.nodeid)
    left += 1
    return True


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Says so to the run that this one is a part of."""
    if left and not config.pluginmanager.has_plugin(run_report.SUMMARY):
        terminalreporter.write_line(f"{left} tests left")
