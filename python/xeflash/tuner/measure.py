"""Choices by times: candidates are compiled, checked, and timed in turns, each in a process of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any

from xeflash.bench.cases import Case
from xeflash.jit import provide
from xeflash.jit.headers import NoCompiler
from xeflash.jit.kernel import KernelSource, render
from xeflash.jit.offline import Compilers
from xeflash.selftest.pool import Answer
from xeflash.tune.desc import Desc
from xeflash.tune.table import pick
from xeflash.tune.tuned import Choice, Tuning
from xeflash.tuner import rounds
from xeflash.tuner.cases import Row
from xeflash.tuner.workers import Lanes


class Compiling:
    """Device code of candidates, made in the background and kept in the disk cache, where the processes find it."""

    def __init__(self, jobs: int) -> None:
        """Starts no compiler yet."""
        self._compilers, self._pool = Compilers(), ThreadPoolExecutor(jobs)
        self._made: dict[KernelSource, Future[None]] = {}

    def begin(self, row: Row) -> None:
        """Starts with a row's kernels."""
        for sources in sources_of(row):
            for kernel, desc in zip(sources, row.kernels, strict=False):
                if kernel not in self._made:
                    self._made[kernel] = self._pool.submit(self._make, kernel, desc)

    def _make(self, kernel: KernelSource, desc: Desc) -> None:
        if is_to_be_compiled(kernel, desc):
            provide.kept_device_code(kernel, lambda: self._compilers.compile(kernel))

    def faults(self, row: Row, on_time: Callable[[], None]) -> dict[int, str]:
        """Returns why candidates have no kernel; raises NoCompiler, and what `on_time` does while it waits."""
        self.begin(row)
        faults = {}
        for number, sources in enumerate(sources_of(row)):
            for kernel in sources:
                while not self._made[kernel].done():
                    on_time()
                    wait([self._made[kernel]], timeout=0.2)
                try:
                    self._made[kernel].result()
                except NoCompiler:
                    raise
                except RuntimeError as error:
                    lines = str(error).splitlines()
                    faults[number] = next((line for line in lines if "error" in line), lines[0])
        return faults

    def end(self) -> None:
        """Ends the compilers."""
        self._compilers.end()
        self._pool.shutdown(cancel_futures=True)


def sources_of(row: Row) -> list[list[KernelSource]]:
    """Returns the kernels of each candidate."""
    return [[render(desc, pick(desc, blocks)) for desc in row.kernels] for blocks in row.candidates]


def is_to_be_compiled(kernel: KernelSource, desc: Desc) -> bool:
    """Returns whether a kernel is neither in the package nor in the cache."""
    return not provide.has_native(kernel, desc) and provide.device_code(kernel) is None


def uncompiled(rows: Sequence[Row]) -> int:
    """Returns how many kernels of these rows are to be compiled."""
    kernels = {x: desc for row in rows for some in sources_of(row) for x, desc in zip(some, row.kernels, strict=False)}
    return sum(is_to_be_compiled(kernel, desc) for kernel, desc in kernels.items())


class Measured:
    """Chooses by times on a device."""

    def __init__(self, lanes: Lanes, compiling: Compiling, jobs: int, on_time: Callable[[], None]) -> None:
        """Keeps processes and compilers; `on_time` raises an error when there is no time for another sample."""
        self._lanes, self._compiling, self._jobs, self._on_time = lanes, compiling, jobs, on_time

    def choose(self, row: Row, texts: Sequence[str]) -> Choice[Any]:
        """Returns the choice for a row: see search.Chooser."""
        faults = self._compiling.faults(row, self._on_time)
        if 0 in faults:
            raise rounds.Failed(faults[0])
        self._lanes.use(dict(enumerate(texts)))
        self._check(row, faults)
        self._on_time()
        return rounds.choose(row.candidates, faults, row.cases, self._sample, partial(self._renew, row))

    def _check(self, row: Row, faults: dict[int, str]) -> None:
        """Runs candidates, several at a time, then checks one after the other; adds why they are out."""
        ran = self._run([number for number in range(len(row.candidates)) if number not in faults], row)
        bits: list[str] = []
        for number, answers in ran.items():
            if answers[-1]["status"] == "ok":
                self._on_time()
                answers = self._answers("check", number, row)
            if answers[-1]["status"] != "ok":
                faults[number] = str(answers[-1]["note"])
                if number == 0:
                    raise rounds.Failed(faults[0])
                continue
            made = [str(answer["bits"]) for answer in answers]
            bits = bits or made
            if made != bits:
                faults[number] = "changes the order of sums: gradients have other bits"

    def _run(self, numbers: Sequence[int], row: Row) -> dict[int, list[Answer]]:
        """Starts processes and runs the cases in them, several at a time; returns their answers."""
        with ThreadPoolExecutor(self._jobs) as pool:
            try:
                return dict(zip(numbers, pool.map(lambda x: self._answers("run", x, row), numbers), strict=True))
            except BaseException:
                self._lanes.end()  # which ends what the threads wait for
                raise

    def _renew(self, row: Row, numbers: Sequence[int]) -> None:
        self._on_time()
        self._lanes.renew(numbers)
        self._run(numbers, row)

    def _answers(self, do: str, number: int, row: Row) -> list[Answer]:
        """Asks a candidate for each case of a row, until it fails."""
        answers = []
        for case in row.cases:
            answers.append(self._lanes.ask(number, _request(do, case)))
            if answers[-1]["status"] == "no memory":  # which is no candidate's fault
                raise rounds.Failed(str(answers[-1]["note"]))
            if answers[-1]["status"] != "ok":
                break
        return answers

    def _sample(self, number: int, case: Case) -> float:
        self._on_time()
        answer = self._lanes.ask(number, _request("time", case))
        if answer["status"] != "ok":
            raise rounds.Failed(str(answer["note"]))
        return float(answer["ms"])


def _request(do: str, case: Case) -> Answer:
    return {"do": do, "case": dataclasses.asdict(case)}


def texts_of(row: Row, rows: Sequence[Row], found: Tuning) -> list[str]:
    """Returns the tunings of a row's candidates.

    Those of a kernel have the candidates of this place of all kernels that are tried with it, so that a process serves
    many rows; those of a number of the schedule have what was chosen so far.
    """
    plain = dataclasses.replace(found, choices={}, schedule={})
    texts = []
    for place, value in enumerate(row.candidates):
        if row.kernels:
            alike = [x for x in rows if x.kernels and x.trained == row.trained and len(x.candidates) > place]
            tuning = dataclasses.replace(plain, choices={x.key: Choice(x.candidates[place]) for x in alike})
        else:
            chosen = {key: Choice(choice.value) for key, choice in found.choices.items()}
            numbers = {key: Choice(choice.value) for key, choice in found.schedule.items()}
            tuning = dataclasses.replace(plain, choices=chosen, schedule={**numbers, row.key: Choice(value)})
        texts.append(tuning.to_json())
    return texts
