"""Runs cases in a process of their own, begins again behind the ones that end it, and reports."""

from __future__ import annotations

import collections
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parent.parent.parent
SECONDS = 900  # of one case: more is a hang. The first call of a kernel compiles it
TELL = 60  # seconds between lines that say how far it is
SHOWN = 3  # faults that look alike
TAIL = 3000  # characters of what a process that died had said


@dataclass(frozen=True)
class Run:
    """Which cases."""

    seed: int = 0
    first: int = 0
    cases: int = 1000
    device: str = "cpu"  # gpu: the one that is there; else a simulated one
    width: str = "usual"
    function: str | None = None
    unmasked: bool = False
    verbose: bool = False

    def words(self) -> list[str]:
        words = ["--seed", self.seed, "--first", self.first, "--cases", self.cases, "--width", self.width]
        words += self._device()
        words += ["--function", self.function] if self.function else []
        words += ["--unmasked"] if self.unmasked else []
        return [str(word) for word in words]

    def _device(self) -> list[str]:
        return {"cpu": [], "gpu": ["--gpu"]}.get(self.device, ["--sim", self.device])

    def replay(self, number: int) -> str:
        words = ["--seed", str(self.seed), "--case", str(number)]
        words += self._device()
        words += ["--width", self.width] if self.width != "usual" else []
        return " ".join(["python -m tests.fuzz", *words])


def outcomes(run: Run) -> Iterator[dict[str, Any]]:
    """What became of each case: what the worker says of it, or how the worker ended."""
    environment = {name: value for name, value in os.environ.items() if name != "XEFLASH_SIM"}  # it has one of its own
    while run.cases > 0:
        command = [sys.executable, "-m", "tests.fuzz", "--worker", *run.words()]
        with subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        ) as worker:
            begun: dict[str, Any] = {}
            done, ended = False, ""
            try:
                for line in _lines(worker, SECONDS):
                    message = json.loads(line)
                    if "begins" in message:
                        begun = message
                    elif "done" in message:
                        done = True
                    else:
                        yield message
            except TimeoutError as error:
                ended = str(error)
                worker.kill()
            except GeneratorExit:
                worker.kill()
                raise
            said = worker.stderr.read()[-TAIL:] if worker.stderr else ""
            code = worker.wait()
        if done:
            return
        if not begun:
            raise RuntimeError(f"the process of the calls ended before the first one: {said}")
        why = ended or (signal.Signals(-code).name if code < 0 else f"exit {code}")
        number = begun["begins"]
        yield {"number": number, "function": begun["function"], "outcome": "died", "text": f"{why}\n{said}"}
        run = replace(run, first=number + 1, cases=run.first + run.cases - number - 1)


def _lines(worker: subprocess.Popen[str], seconds: float) -> Iterator[str]:
    """What it writes; TimeoutError if nothing comes for so long."""
    assert worker.stdout is not None
    while True:
        if not select.select([worker.stdout], [], [], seconds)[0]:
            raise TimeoutError(f"nothing came back for {seconds} s")
        line = worker.stdout.readline()
        if not line:
            return
        yield line


def run(cases: Run, stop: bool = False) -> int:
    """Prints faults as they come, then counts; returns how many faults there were, at most 1."""
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    kinds: collections.Counter[str] = collections.Counter()
    start, faults, told = time.monotonic(), 0, time.monotonic()
    for message in outcomes(cases):
        counts[message["function"], message["outcome"]] += 1
        if time.monotonic() > told + TELL:
            told = time.monotonic()
            print(f"[{sum(counts.values())} of {cases.cases} cases, {faults} faults]", flush=True)
        if cases.verbose:
            print(message.get("case", ""))
        if message["outcome"] in ("wrong", "died"):
            faults += 1
            text = f"{message['function']}: {message['outcome']}: {message['text']}"
            kind = re.sub(r"\d+", "#", text)[:110]
            kinds[kind] += 1
            if kinds[kind] <= SHOWN:
                print(f"{text}\n    {cases.replay(message['number'])}", flush=True)
            if stop:
                break
    for kind, count in kinds.most_common():
        print(f"{count:6} times: {kind.partition(chr(10))[0]}")
    total = sum(counts.values())
    report(counts)
    print(f"{total} cases, {faults} faults, {total / max(time.monotonic() - start, 1e-9):.1f} cases/s")
    return min(faults, 1)


def report(counts: collections.Counter[tuple[str, str]]) -> None:
    columns = ["right", "refused", "known", "wrong", "died"]
    print("".join([f"{'':34}", *(f"{name:>9}" for name in columns)]))
    for function in sorted({function for function, _ in counts}):
        print("".join([f"{function:34}", *(f"{counts[function, name]:9}" for name in columns)]))
