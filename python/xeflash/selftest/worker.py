"""A process that runs cases on a device: `-m xeflash.selftest.worker DEVICE`.

A request and its answer are a line of JSON each.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from typing import Any, TextIO

from xeflash.bench.timing import interleave
from xeflash.selftest.arrays import Arrays
from xeflash.selftest.cases import all_cases, large_cases
from xeflash.selftest.device import open_device, software

_ROUNDS = 3


def _try(case: Any, arrays: Arrays, timed: bool) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        prepared = case.prepare(arrays)
        findings = prepared.judge(prepared.call())
        worst = max(findings, key=lambda finding: finding.share)
        wrong = [str(finding) for finding in findings if not finding.ok]
        answer = {"status": "wrong" if wrong else "ok", "note": "; ".join(wrong[:3]), **dataclasses.asdict(worst)}
        if timed and not wrong:
            seconds = min(interleave({"call": prepared.call}, _ROUNDS, arrays.synchronize)["call"])
            answer |= {"ms": 1e3 * seconds, "gbytes_per_s": 1e-9 * prepared.bytes / seconds}
            answer["tflops"] = 1e-12 * prepared.flops / seconds if prepared.flops else None
    except Exception as error:
        answer = {"status": "error", "note": f"{type(error).__name__}: {error}"}
    return {**answer, "seconds": time.perf_counter() - start}


def serve(device: str, requests: TextIO, answers: TextIO) -> None:
    """Describes the device, then answers requests until they end."""

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer, default=str), file=answers, flush=True)

    try:
        arrays, facts = open_device(device)
    except Exception as error:
        say({"refused": str(error)})
        return
    say({"on_gpu": arrays.on_gpu, **facts})
    cases = all_cases() | large_cases(arrays.on_gpu)
    for line in requests:
        request = json.loads(line)
        if "software" in request:
            say(software(str(facts.get("driver", ""))))
        else:
            say(_try(cases[request["name"]], arrays, request["timed"]))


if __name__ == "__main__":
    own = os.fdopen(os.dup(1), "w")  # libraries write to stdout, too
    os.dup2(2, 1)
    serve(sys.argv[1], sys.stdin, own)
    os._exit(0)  # without the destructors of a driver that may be broken
