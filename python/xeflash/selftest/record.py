"""The record of a self-test: what is known so far, in memory and in a file, the report if the machine stops."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from xeflash.bench.environ import environment
from xeflash.bench.files import grows, write_whole
from xeflash.selftest.pool import Answer
from xeflash.selftest.report import NOT_BEGUN, Told, to_json


class Record:
    """The facts about a device, and a row per case."""

    def __init__(self, device: Answer, names: Sequence[str], file: Path | None) -> None:
        self.device, self.software, self.complete = device, Answer(), False
        self.rows: dict[str, Answer] = {name: {"name": name, "status": NOT_BEGUN, "note": ""} for name in names}
        self._file = file
        self._environment, self._start, self._guard = environment(), time.monotonic(), threading.Lock()

    def begin(self, request: Answer) -> None:
        """Notes in the file that a case runs, before the device has it: if the machine freezes, the file names it."""
        doing = "timed" if request["timed"] else "checked"
        self.keep(request, {"status": "running", "note": f"it was being {doing} when this was written"})

    def keep(self, request: Answer, answer: Answer) -> None:
        """Keeps the answer of a case."""
        with self._guard:
            self.rows[request["name"]] |= answer
            if self._file and grows(self._file):
                with contextlib.suppress(OSError):  # a full disk stops no case: `finish` says so
                    self._write()

    def finish(self) -> bool:
        """Writes the file for the last time; returns whether that went well."""
        with self._guard, contextlib.suppress(OSError):
            self._write()
            return True
        return False

    def told(self) -> Told:
        """Returns what a report says."""
        seconds = time.monotonic() - self._start
        return Told(self._environment, self.device, self.software, list(self.rows.values()), seconds, self.complete)

    def _write(self) -> None:
        if self._file is not None:
            write_whole(self._file, to_json(self.told()))
