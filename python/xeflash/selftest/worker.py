"""A process that runs cases on a device: `-m xeflash.selftest.worker DEVICE`.

A request and its answer are a line of JSON each.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from xeflash.bench.timing import interleave
from xeflash.selftest.arrays import Arrays
from xeflash.selftest.cases import all_cases, large_cases
from xeflash.selftest.device import open_device, software
from xeflash.selftest.pool import Answer
from xeflash.selftest.prepared import Case, Prepared

_ROUNDS = 3


def attempt(
    case: Case,
    arrays: Arrays,
    measure: Callable[[Prepared], Answer] | None = None,
    prepared: Callable[[Prepared], None] = lambda _: None,
) -> Answer:
    """Checks a case, and measures it if it is right; `prepared` is called before its first launch."""
    start = time.perf_counter()
    try:
        ready = case.prepare(arrays)
        prepared(ready)
        findings = ready.judge(ready.call())
        worst = max(findings, key=lambda finding: finding.share)
        wrong = [str(finding) for finding in findings if not finding.ok]
        answer = {"status": "wrong" if wrong else "ok", "note": "; ".join(wrong[:3]), **dataclasses.asdict(worst)}
        if measure and not wrong:
            answer |= measure(ready)
    except Exception as error:
        answer = {"status": "error", "note": f"{type(error).__name__}: {error}"}
    return {**answer, "seconds": time.perf_counter() - start}


def times(prepared: Prepared, arrays: Arrays) -> Answer:
    """Returns the time of a call, and its rates."""
    seconds = min(interleave({"call": prepared.call}, _ROUNDS, arrays.synchronize)["call"])
    tflops = 1e-12 * prepared.flops / seconds if prepared.flops else None
    return {"ms": 1e3 * seconds, "gbytes_per_s": 1e-9 * prepared.bytes / seconds, "tflops": tflops}


def answer(
    request: Answer, arrays: Arrays, facts: Answer, prepared: Callable[[Prepared], None] = lambda _: None
) -> Answer:
    """Returns the answer to a request for the software that took part, or for a case."""
    if "software" in request:
        return software(str(facts.get("driver", "")))
    case = (all_cases() | large_cases(arrays.on_gpu))[request["name"]]
    return attempt(case, arrays, (lambda ready: times(ready, arrays)) if request["timed"] else None, prepared)


def serve(
    device: str, requests: TextIO, answers: TextIO, respond: Callable[[Answer, Arrays, Answer], Answer] = answer
) -> None:
    """Describes the device, then answers requests until they end."""

    def say(answer: Answer) -> None:
        print(json.dumps(answer, default=str), file=answers, flush=True)

    try:
        arrays, facts = open_device(device)
    except Exception as error:
        say({"refused": str(error)})
        return
    say({"on_gpu": arrays.on_gpu, **facts})
    for line in requests:
        say(respond(json.loads(line), arrays, facts))


def _end_with(parent: int) -> None:
    """Ends this process when its parent has been killed: a kernel that hangs keeps the device as long as it lives."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def main(respond: Callable[[Answer, Arrays, Answer], Answer] = answer) -> None:
    """Runs cases on the device that the command line names, for whoever started this process."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    own = os.fdopen(os.dup(1), "w")  # libraries write to stdout, too
    os.dup2(2, 1)
    serve(sys.argv[1], sys.stdin, own, respond)
    os._exit(0)  # without the destructors of a driver that may be broken


if __name__ == "__main__":
    main()
