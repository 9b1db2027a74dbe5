"""A process that measures cases of attention, and takes each sample when it is told: `-m xeflash.bench.worker OPTIONS`.

A request and its answer are a line of JSON each. The first request of a case is the case, the others are its turns. An
answer is empty before a turn; the last one is the result.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from xeflash.bench.attention import BENCHMARK, LAYOUT
from xeflash.bench.cases import Case
from xeflash.bench.rows import Result, Work
from xeflash.bench.runner import Options


def serve(options: dict[str, Any], requests: TextIO, answers: TextIO) -> None:
    """Sends an answer when it is ready, then measures the cases of the requests until they end."""

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    def gate(samples: Iterator[str]) -> Iterator[str]:
        for name in samples:
            say({})
            if not requests.readline():
                sys.exit("the process that measures has ended")
            yield name

    say({})
    while line := requests.readline():
        result = BENCHMARK.run_case(Case(**json.loads(line)), Options(gate=gate, **options))
        say({"result": (dataclasses.asdict(result.row), result.samples_ms, result.work)})


def result_of(answer: dict[str, Any]) -> Result:
    """Returns the result that the last answer of a case has."""
    row, samples, work = answer["result"]
    return Result(LAYOUT.row(**row), samples, work and Work(tuple(work[0]), *work[1:]))


if __name__ == "__main__":
    own = os.fdopen(os.dup(1), "w")  # libraries write to stdout, too
    os.dup2(2, 1)
    serve(json.loads(sys.argv[1]), sys.stdin, own)
