"""Processes that have one candidate of each key: a file that XEFLASH_TUNED names tells it, so one serves all rows."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from xeflash.selftest.pool import Answer, Died, Refused, Worker

SECONDS = 60.0  # the limit of an answer; the first of a case has its kernel translated
_SECONDS_TO_START = 60.0


class Unending(RuntimeError):
    """A process that does not answer cannot be ended: what it runs has the device, whose times mean nothing then."""


def command(device: str) -> list[str]:
    """Returns the command that starts a worker."""
    return [sys.executable, "-X", "faulthandler", "-m", "xeflash.tuner.worker", device]


def _start(words: Sequence[str], tuned: str) -> Worker:
    # Threads of torch that wait must not take the CPU from the process whose turn it is.
    environment = {"OMP_WAIT_POLICY": "passive", **os.environ, "XEFLASH_TUNED": tuned}
    return Worker(words, _SECONDS_TO_START, env=environment)


def described(words: Sequence[str]) -> Answer:
    """Returns what a worker says of its device; raises Refused if it cannot be used."""
    worker = _start(words, "off")
    try:
        worker.greet()
        about = worker.ask({"do": "describe"})
    except Died as death:
        raise Refused(str(death)) from death
    finally:
        worker.end()
    if "tuning" not in about:
        raise Refused(str(about["note"]))
    return about


class Lanes:
    """A process for each place in lists of candidates; it starts when it is first asked."""

    def __init__(self, words: Sequence[str], folder: Path, seconds: float = SECONDS) -> None:
        """Keeps the command, and a folder for the files that tell the processes their candidates."""
        self._words, self._folder, self._seconds = words, folder, seconds
        self._texts: dict[int, str] = {}
        self._workers: dict[int, Worker] = {}
        self._guard = threading.Lock()
        self._ended = False

    def use(self, texts: Mapping[int, str]) -> None:
        """Gives lanes the text of a tuning; their processes that have another one end."""
        for lane in texts:
            if self._texts.get(lane) != texts[lane]:
                self._end(lane)
        self._texts |= texts

    def renew(self, lanes: Sequence[int]) -> None:
        """Ends the processes of lanes: those that are asked next are new."""
        for lane in lanes:
            self._end(lane)

    def ask(self, lane: int, request: Answer) -> Answer:
        """Sends a request to the process of a lane; one that dies, or is late, is an answer, too."""
        try:
            return self._worker(lane).ask(request, self._seconds)
        except (Died, Refused, OSError, ValueError) as death:
            if not self._end(lane):
                raise Unending(f"lane {lane}: {death}") from death
            return {"status": "died", "note": str(death)}

    def _worker(self, lane: int) -> Worker:
        with self._guard:
            if self._ended:
                raise Died("ended")
            if lane in self._workers:
                return self._workers[lane]
            file = self._folder / f"{lane}.json"
            file.write_text(self._texts[lane], encoding="utf-8")
            worker = self._workers[lane] = _start(self._words, str(file))
        worker.greet()
        return worker

    def _end(self, lane: int) -> bool:
        with self._guard:
            worker = self._workers.pop(lane, None)
        return worker is None or worker.end()

    def end(self) -> None:
        """Ends all processes."""
        with self._guard:
            self._ended = True
        self.renew(list(self._workers))
