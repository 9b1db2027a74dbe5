"""Processes that run cases: one that dies or hangs is a result, and the next cases run in a new process."""

from __future__ import annotations

import contextlib
import json
import queue
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any

Answer = dict[str, Any]
SECONDS = 180  # the limit of a case, which may be compiled first
_MOST_DEATHS = 5
_SECONDS_TO_END = 10


class Refused(RuntimeError):
    """A worker cannot use its device at all; the text says why."""


class Died(RuntimeError):
    """A worker ended without an answer; the error says how, and what the worker had said last."""

    def __init__(self, how: str, said: str = "") -> None:
        super().__init__(how)
        self.said = said


def command(device: str) -> list[str]:
    """Returns the command that starts a worker."""
    return [sys.executable, "-X", "faulthandler", "-m", "xeflash.selftest.worker", device]


class Worker:
    """A process that answers requests."""

    def __init__(self, words: Sequence[str], seconds: float = SECONDS, **how: Any) -> None:
        """Starts the worker, with `how` as Popen takes it; `greet` waits for it."""
        self._seconds = seconds
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        pipe = subprocess.PIPE
        # A session of its own: an interrupt is for us, who then end it.
        self._process = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=self._said, text=True, start_new_session=True, **how
        )
        self.device: Answer = {}

    def greet(self) -> None:
        """Waits until the worker has opened its device, and keeps its description of the device."""
        self.device = self._answer(self._seconds)
        if "refused" in self.device:
            raise Refused(str(self.device["refused"]))

    def ask(self, request: Answer, seconds: float | None = None) -> Answer:
        """Sends a request and returns the answer, for which there may be another limit; raises Died."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):  # the worker has died: _answer says how
            print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._answer(seconds or self._seconds)

    def _answer(self, seconds: float) -> Answer:
        assert self._process.stdout
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        line = self._process.stdout.readline() if ready else ""
        if line:
            answer: Answer = json.loads(line)
            return answer
        code = self._process.wait() if ready else None
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip()
        if code is None:
            held = "" if self.end() else ", and the process cannot be ended"
            raise Died(f"no answer within {seconds:g} s{held}", said)
        lines = said.splitlines() or ["no message"]
        where = next((line.strip() for line in lines if line.startswith("  File ")), lines[-1])
        raise Died(f"{f'signal {-code}' if code < 0 else f'exit {code}'}: {where}", said)

    def end(self) -> bool:
        """Ends the process in any state; returns whether it has ended: the driver of a GPU that hangs may hold it."""
        self._process.kill()
        try:
            self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            return False
        for stream in (self._process.stdin, self._process.stdout, self._said):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()
        return True


class Pool:
    """Workers on one device, which share out requests."""

    def __init__(self, words: Sequence[str], jobs: int, seconds: float = SECONDS) -> None:
        """Starts the first worker; raises Refused."""
        self._words, self._seconds, self.jobs = words, seconds, jobs
        self._workers: set[Worker] = set()
        self._idle: list[Worker] = []
        self._guard = threading.Lock()
        self._deaths, self._ended = 0, False
        try:
            first = self._start()
        except Died as death:
            raise Refused(str(death)) from death
        self.device = first.device
        self._idle.append(first)

    def _start(self) -> Worker:
        with self._guard:  # `end` must not miss one
            if self._ended:
                raise Died("ended")
            worker = Worker(self._words, self._seconds)
            self._workers.add(worker)
        worker.greet()
        return worker

    def run(
        self,
        requests: Sequence[Answer],
        jobs: int,
        on_answer: Callable[[Answer, Answer], None],
        on_begin: Callable[[Answer], None] = lambda _: None,
    ) -> None:
        """Sends all requests to `jobs` workers, and hands over each request with its answer as it comes.

        Both functions are called in other threads: `on_begin` before a worker has the request, `on_answer` one at a
        time, and not once `end` is called.
        """
        left: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        done: queue.SimpleQueue[None] = queue.SimpleQueue()

        def finish(request: Answer, answer: Answer) -> None:
            with finishing:
                try:
                    if not self._ended:
                        on_answer(request, answer)
                finally:
                    done.put(None)

        finishing = threading.Lock()
        for request in requests:
            left.put(request)
        threads = [threading.Thread(target=self._work, args=(left, finish, on_begin), daemon=True) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for _ in requests:
            done.get()
        for thread in threads:
            thread.join()

    def _work(
        self,
        left: queue.SimpleQueue[Answer],
        finish: Callable[[Answer, Answer], None],
        on_begin: Callable[[Answer], None],
    ) -> None:
        worker: Worker | None = None
        while not self._ended:
            try:
                request = left.get_nowait()
            except queue.Empty:
                break
            if not self.usable:
                finish(request, {"status": "not run", "note": "processes died before"})
                continue
            try:
                if worker is None:
                    with self._guard:
                        worker = self._idle.pop() if self._idle else None
                    worker = worker or self._start()
                on_begin(request)
                answer = worker.ask(request)
            except (Died, Refused, OSError, ValueError) as death:
                with self._guard:
                    self._deaths += 1
                    if worker:
                        self._workers.discard(worker)
                if worker and not worker.end():  # its case runs on the device, which no other case should have
                    self._deaths = max(self._deaths, _MOST_DEATHS)
                worker, answer = None, {"status": "died", "note": str(death)}
            finish(request, answer)
        if worker:
            with self._guard:
                self._idle.append(worker)

    def ask(self, request: Answer) -> Answer:
        """Sends one request to a worker that has worked; returns an empty answer if none is left."""
        answers: list[Answer] = []
        self.run([request], 1, lambda _, answer: answers.append(answer))
        return {} if "status" in answers[0] else answers[0]

    @property
    def usable(self) -> bool:
        """Returns whether the device still gets cases: not if too many died there, or one that cannot be ended."""
        return self._deaths < _MOST_DEATHS

    def end(self) -> None:
        """Ends all processes."""
        with self._guard:
            self._ended = True
            for worker in self._workers:
                worker.end()
            self._workers.clear()
