"""Runs cases in a process of their own, begins again behind the ones that end it, and reports."""

from __future__ import annotations

import collections
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xeflash.selftest.pool import Died, Worker

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
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz", "--worker", *run.words()]
    worker = None
    try:
        for number in range(run.first, run.first + run.cases):
            if worker is None:
                worker = Worker(command, SECONDS, cwd=REPOSITORY, env=environment)
                worker.greet()
            begun = {"number": number, "function": "?"}
            try:
                begun |= worker.ask({"draw": number})
                if run.function in (None, begun["function"]) or "outcome" in begun:
                    yield begun | ({} if "outcome" in begun else worker.ask({}))
            except Died as death:
                worker.end()
                worker = None
                yield begun | {"outcome": "died", "text": f"{death}\n{death.said[-TAIL:]}"}
    finally:
        if worker:
            worker.end()


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
