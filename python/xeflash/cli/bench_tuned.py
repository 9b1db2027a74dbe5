"""`--tuned off,on`: attention with the tables' choices beside a tuning's, which each take a process of their own.

A process chooses its kernels once.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from xeflash.bench import peak
from xeflash.bench.attention import BENCHMARK, LAYOUT, TILES_FROM
from xeflash.bench.cases import Case
from xeflash.bench.rows import OURS, Result
from xeflash.bench.runner import Benchmark, Options
from xeflash.bench.stats import ratio_of_medians, ratios_of_rounds, summarize
from xeflash.bench.timing import in_turns
from xeflash.bench.worker import result_of
from xeflash.selftest.pool import Died, Worker

_OFF, _ON = "off", "on"
_SECONDS = 900  # for a case to be compiled and checked, which a long one takes minutes for
_WORDS = {
    "untuned ms": "with the tables' choices",
    "ratio per round": "median (lowest to highest) of the untuned time / ours",
}
_METHOD = (
    "untuned = the tables' choices (XEFLASH_TUNED=off) in a process of their own, whose samples take turns with ours "
    "in rotating order; the ratios are of its time / ours"
)


def environment(name: str) -> dict[str, str]:
    """Returns the variables of the process "off" or "on"."""
    kept = {key: value for key, value in os.environ.items() if (key, value) != ("XEFLASH_TUNED", "off")}
    return {**kept, "XEFLASH_TUNED": "off"} if name == _OFF else kept


class _Workers:
    """Both processes, which are started when they are first asked, and anew after one has died."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._words = [sys.executable, "-m", "xeflash.bench.worker", json.dumps(options)]
        self._started: dict[str, Worker] = {}

    def ask(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        if name not in self._started:
            self._started[name] = Worker(self._words, _SECONDS, env=environment(name))
            self._started[name].greet()
        return self._started[name].ask(request)

    def end(self) -> None:
        while self._started:
            self._started.popitem()[1].end()


class BesideTables(Benchmark):
    """The benchmark of attention with and without a tuning."""

    def run(self, cases: Sequence[Case], options: Options, meter: peak.Meter | None = None) -> Iterator[Result]:
        """Yields the results one by one, so that an interrupted run keeps what it has."""
        own = {"device": options.device, "rounds": options.rounds, "seed": options.seed, "compare_torch": False}
        workers = _Workers(own)
        try:
            for case in peak.between(cases, meter):
                yield self._beside(case, options.rounds, workers)
        finally:
            workers.end()

    def _beside(self, case: Case, rounds: int, workers: _Workers) -> Result:
        request, answers = dataclasses.asdict(case), {}
        try:
            for name in (_OFF, _ON):
                answers[name] = workers.ask(name, request)
            for name in in_turns((_OFF, _ON), rounds):
                answers[name] = answers[name] or workers.ask(name, {})  # what failed has its result already
        except Died as death:
            workers.end()
            return Result(self.layout.row(**request, status="failed", note=f"--tuned {name}: {death}"))
        return with_untuned(*(result_of(answers[name]) for name in (_ON, _OFF)))


def with_untuned(on: Result, off: Result) -> Result:
    """Returns the result of a case with its times of the tables' choices; what failed with these fails the row."""
    if off.row.status != "ok" or on.row.status != "ok":
        bad, name = (off, _OFF) if off.row.status != "ok" else (on, _ON)
        return Result(dataclasses.replace(on.row, status=bad.row.status, note=f"--tuned {name}: {bad.row.note}"))
    ours, untuned = on.samples_ms[OURS], off.samples_ms[OURS]
    per_round, low, high = ratios_of_rounds(untuned, ours)
    return dataclasses.replace(on, samples_ms={OURS: ours, "untuned": untuned}).with_row(
        untuned_median_ms=summarize(untuned).median,
        ratio=ratio_of_medians(untuned, ours),
        ratio_per_round=per_round,
        ratio_low=low,
        ratio_high=high,
    )


def benchmark() -> BesideTables:
    """Returns it with the words of its tables."""
    details = [name for name in LAYOUT.details if name != TILES_FROM]
    layout = dataclasses.replace(LAYOUT, details=details, words={**LAYOUT.words, **_WORDS})
    return BesideTables(**{**vars(BENCHMARK), "layout": layout, "method": [*BENCHMARK.method, _METHOD]})
