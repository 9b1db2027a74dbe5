"""The journal of a report: the cases that are under way, with their kernels, on the disk before the device has them.

A report that ends removes it. So what is there when no report runs is of one that was killed, or whose machine froze.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from xeflash.runtime.cache_folder import Folder, cache_folder, open_folder

_NAME, _LOCK = "report.journal", ".report.lock"
_MOST_BYTES = 1 << 24
_LAST_LOADED = 3
TUNER = "xeflash tune"  # a case of its own, whose kernels are told by the log of kernels


@dataclass(frozen=True)
class Unfinished:
    """A report that did not end; the kernels of a case are known once its arrays are there."""

    date: str
    device: str
    cases: Mapping[str, list[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        """Returns a sentence that names the cases and kernels."""
        cases = [f"{name}: kernels {', '.join(kernels)}" if kernels else name for name, kernels in self.cases.items()]
        during = "; ".join(cases) or "no case"
        return f"the last report, of {self.date} with --device {self.device}, ended during {during}"


class Journal:
    """A file of lines, to which all processes of a report append."""

    def __init__(self, path: str) -> None:
        """Opens the file, which stays the same if another report makes a new one."""
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)

    def append(self, **entry: object) -> None:
        """Appends a line, and returns when the disk has it."""
        os.write(self._descriptor, json.dumps(entry).encode() + b"\n")
        os.fsync(self._descriptor)

    def begin(self, case: str, kernels: Iterable[str] = ()) -> None:
        """Notes that a case begins, before the device has it; a full disk stops no case."""
        with contextlib.suppress(OSError):
            self.append(case=case, kernels=list(kernels))

    def end(self, case: str) -> None:
        """Notes that a case has ended."""
        with contextlib.suppress(OSError):
            self.append(case=case)

    def kernels(self, case: str) -> list[str]:
        """Returns the kernels of a case that is under way."""
        return list(_parsed(Path(self.path).read_bytes()).cases.get(case, []))


@contextlib.contextmanager
def kept(device: str) -> Iterator[tuple[Journal, Unfinished | None]]:
    """Keeps a journal until the report ends; gives it with what the last report left.

    Raises BlockingIOError if another report runs, and other OSErrors if there is no folder for it.
    """
    with open_folder(cache_folder(), make=True) as folder, folder.lock(_LOCK, wait=False):
        last = _read(folder)
        folder.write(_NAME, b"")
        journal = Journal(str(folder.path / _NAME))
        journal.append(date=time.strftime("%Y-%m-%d %H:%M"), device=device)
        folder.flush()
        yield journal, last
        folder.remove(_NAME)


def left() -> Unfinished | None:
    """Returns what a report left that did not end, or None if there is none, or if it still runs."""
    try:
        with open_folder(cache_folder()) as folder:
            folder.check(_NAME)
            with folder.lock(_LOCK, wait=False):
                return _read(folder)
    except OSError:
        return None


def _read(folder: Folder) -> Unfinished | None:
    try:
        return _parsed(folder.read(_NAME, _MOST_BYTES))
    except OSError:
        return None


def _parsed(lines: bytes) -> Unfinished:
    """Reads the lines of a journal; the last one may be torn."""
    head, cases = {"date": "an unknown date", "device": "?"}, dict[str, list[str]]()
    for line in lines.decode(errors="replace").splitlines():
        with contextlib.suppress(ValueError, TypeError):
            entry = json.loads(line)
            if "kernel" in entry:  # of a log of kernels: the tuner compiles them first, and then loads what it launches
                if TUNER in cases and not entry["compiled"]:
                    cases[TUNER] = [*cases[TUNER], entry["kernel"]][-_LAST_LOADED:]
            elif "case" not in entry:
                head |= entry
            elif "kernels" in entry:
                cases[entry["case"]] = entry["kernels"]
            else:
                cases.pop(entry["case"], None)
    return Unfinished(head["date"], head["device"], cases)
