"""A process that runs the cases of a report: `-m xeflash.report.worker DEVICE JOURNAL`.

It is the self-test's worker, which notes in the journal what it is about to launch.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from xeflash.bench.shares import levels_of
from xeflash.jit.calls import shares_of
from xeflash.jit.provide import source_of
from xeflash.report import card
from xeflash.report.cases import CASES
from xeflash.report.journal import Journal
from xeflash.selftest import worker
from xeflash.selftest.arrays import Arrays
from xeflash.selftest.pool import Answer
from xeflash.selftest.prepared import Prepared


def respond(journal: Journal, request: Answer, arrays: Arrays, facts: Answer) -> Answer:
    """Returns an answer; the journal has a case before its arrays are made, and its kernels before their launch."""
    if "name" not in request:
        return worker.answer(request, arrays, facts)
    name, told = request["name"], dict[str, Any]()

    def prepared(ready: Prepared) -> None:
        kernels = shares_of(ready.call, *(facts[x] for x in card.DEVICE)).kernels if facts.get("arch") else ()
        told["kernels"] = [source_of(kernel).name for kernel in kernels]
        told["tiles_from"] = levels_of(kernels) if kernels else None
        journal.begin(name, told["kernels"])

    journal.begin(name)
    case = CASES.get(name)
    if case is None:
        answer = worker.answer(request, arrays, facts, prepared)
    else:
        measure = (lambda ready: card.measured(case, arrays, ready)) if request["timed"] else None
        answer = worker.attempt(card.Call(case, small=measure is None), arrays, measure, prepared)
        told |= card.described(case, facts)
    journal.end(name)
    return {**answer, **told}


if __name__ == "__main__":
    worker.main(functools.partial(respond, Journal(sys.argv[2])))
