"""The record of a self-test: what is known so far, in memory and in a file, which is the report if the machine stops.

The file is whole at every moment: it is written aside and renamed.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from xeflash.bench.environ import environment
from xeflash.selftest.pool import Answer
from xeflash.selftest.report import NOT_BEGUN, Told, to_json


def cannot_write(file: Path) -> str:
    """Returns why a report cannot be written there, or "" if it can; leaves no file behind."""
    try:
        if file.exists():
            file.open("a").close()
        if file.is_file() or not file.exists():
            tempfile.TemporaryFile(dir=file.resolve().parent).close()
    except OSError as error:
        return f"{file}: {error.strerror}"
    return ""


class Record:
    """The facts about a device, and a row per case."""

    def __init__(self, device: Answer, names: Sequence[str], file: Path | None) -> None:
        self.device, self.software, self.complete = device, Answer(), False
        self.rows: dict[str, Answer] = {name: {"name": name, "status": NOT_BEGUN, "note": ""} for name in names}
        self._file = file.resolve() if file else None
        self._environment, self._start, self._guard = environment(), time.monotonic(), threading.Lock()

    def begin(self, request: Answer) -> None:
        """Notes in the file that a case runs, before the device has it: if the machine freezes, the file names it."""
        doing = "timed" if request["timed"] else "checked"
        self.keep(request, {"status": "running", "note": f"it was being {doing} when this was written"})

    def keep(self, request: Answer, answer: Answer) -> None:
        """Keeps the answer of a case."""
        with self._guard:
            self.rows[request["name"]] |= answer
            if self._file and (self._file.is_file() or not self._file.exists()):  # a pipe gets the end alone
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
        if self._file is None:
            return
        text = to_json(self.told())
        if self._file.exists() and not self._file.is_file():
            self._file.write_text(text, encoding="utf-8")
            return
        aside = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        try:
            with aside.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(self._file)
        finally:
            aside.unlink(missing_ok=True)
        folder = os.open(self._file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
