"""Progress of a long command, on stderr: a bar on a terminal, else a line every half a minute."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from rich import progress
from rich.console import Console

SECONDS = 30.0  # between two lines


class Progress:
    """The number of cases that are done, and of those that are not right."""

    def __init__(self, command: str, unit: str = "cases", seconds: float = SECONDS) -> None:
        self._command, self._unit, self._seconds = command, unit, seconds
        self._title, self._done, self._total, self._bad = "", 0, 0, 0
        self._start = time.monotonic()
        console = Console(stderr=True, soft_wrap=True)
        columns = (*progress.Progress.get_default_columns(), progress.MofNCompleteColumn())
        columns += (progress.TimeElapsedColumn(),)
        self._bar = progress.Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._task = self._bar.add_task("", total=None)
        self._ended = threading.Event()
        self._lines = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> Progress:
        self._bar.start()
        if self._bar.disable:
            self._lines.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._ended.set()
        self._bar.stop()

    def _tell(self) -> None:
        while not self._ended.wait(self._seconds):
            bad = f", {self._bad} not ok" if self._bad else ""
            seconds = time.monotonic() - self._start
            line = f"{self._done} of {self._total} {self._unit} ({self._title}){bad}, {seconds:.0f} s"
            self._bar.console.print(f"{self._command}: {line}", highlight=False, markup=False)

    def begin(self, title: str, total: int) -> None:
        """Starts a stage of so many cases."""
        self._title, self._done, self._total = title, 0, total
        self._bar.reset(self._task, description=title, total=total)

    def describe(self, title: str) -> None:
        """Says what is under way now."""
        self._title = title
        self._bar.update(self._task, description=title)

    def advance(self, fault: str = "") -> None:
        """Counts one more; tells its fault at once if it has one."""
        self._done += 1
        self._bar.advance(self._task)
        if fault:
            self._bad += 1
            self._bar.console.print(fault, style="red", highlight=False, markup=False)
