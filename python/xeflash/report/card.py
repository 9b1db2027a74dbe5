"""The calls whose times on cards others have published, checked on this device, and timed beside torch's attention."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from xeflash.bench.cases import Case
from xeflash.bench.limits import Limit, instruction
from xeflash.bench.rows import OURS, compared
from xeflash.bench.shares import call_of, fields_of
from xeflash.bench.timing import first_call, interleave
from xeflash.jit.calls import shares_of
from xeflash.report.cases import CASES
from xeflash.selftest.arrays import Arrays, TorchArrays
from xeflash.selftest.attention import drawn
from xeflash.selftest.attention.spec import Spec
from xeflash.selftest.pool import Answer
from xeflash.selftest.prepared import Prepared

DEVICE = ("arch", "compute_units", "name", "driver")  # of the facts, as shares_of takes them
_ROUNDS, _LEAST_ROUNDS = 9, 3
_SECONDS = 30.0  # of all rounds, about
_SMALL_ROWS = 128
_CHECKED = 32  # rows of a large case


class Call:
    """A case to check; a small one has one sequence, the heads that share a head of K, and few queries."""

    def __init__(self, case: Case, small: bool) -> None:
        """Describes the call in the words of a self-test."""
        batch, heads, rows, keys = case.batch, (case.heads, case.kv_heads), case.seq_q, case.seq_k
        if small:
            batch, heads, rows = 1, (case.group, 1), min(rows, _SMALL_ROWS)
            keys = keys if rows == 1 else min(keys, _SMALL_ROWS)
        self.name = case.label
        self.spec = Spec(
            case.dtype, case.head_dim, heads=heads, rows=rows, keys=keys, batch=batch, entry="attention",
            window="causal" if case.causal else "full", checked=min(rows, _CHECKED), lse=False,
        )  # fmt: skip

    def prepare(self, arrays: Arrays) -> Prepared:
        """Draws the arrays."""
        return drawn.prepare(self.spec, arrays)


def described(case: Case, facts: Mapping[str, Any]) -> Answer:
    """Returns how a case is shared out over the device, without running it."""
    return fields_of(shares_of(call_of(case), *(facts[x] for x in DEVICE))) if facts.get("arch") else {}


def measured(case: Case, arrays: Arrays, prepared: Prepared) -> Answer:
    """Returns a case's times, its rates, and where torch has the device the ratios to its attention, and the peak."""
    calls, device = {OURS: prepared.call}, ""
    if isinstance(arrays, TorchArrays):
        from xeflash.bench import forms

        device = "xpu" if arrays.on_gpu else "cpu"
        inputs = forms.make_inputs(case, device, seed=0)
        calls = {OURS: forms.our_form(case, inputs), **forms.torch_forms(case, inputs)}
        _meter(device).sample()
    once, refused = 0.0, []
    for name, call in [*calls.items()]:
        try:
            once += first_call(call, arrays.synchronize)
        except Exception as error:
            if name == OURS:
                raise
            del calls[name]
            refused.append(f"torch's {name}: {type(error).__name__}")
    rounds = max(_LEAST_ROUNDS, min(_ROUNDS, int(_SECONDS / once)))
    samples = interleave(calls, rounds, arrays.synchronize)
    found = compared({name: [1e3 * seconds for seconds in series] for name, series in samples.items()})
    ms = found["ms"] = found.pop("median_ms")
    found |= {"tflops": 1e-9 * case.flops / ms, "gbytes_per_s": 1e-6 * case.kv_bytes / ms, "note": "; ".join(refused)}
    return found | (
        _limit(case, device, 1e-3 * ms)._asdict() | {"peaks": _meter(device).peaks.named()} if device else {}
    )


@functools.cache
def _meter(device: str) -> Any:
    """Returns what measures the peaks that may hold the cases, with the best of this process."""
    from xeflash.bench.attention import BENCHMARK

    return BENCHMARK.meter([*CASES.values()], device)


def _limit(case: Case, device: str, seconds: float) -> Limit:
    """Returns the peak that holds a case; as programs disturb each other, it is measured again if it seems too low."""
    from xeflash.bench.peak import arch_of

    meter, by = _meter(device), instruction(arch_of(case.algorithm, case.dtype, device), case.dtype)
    for _ in range(3):
        meter.sample()
        found = meter.peaks.limit(by, case.flops, case.kv_bytes, seconds)
        if found is None or not found.percent_of_peak or found.percent_of_peak <= 100:
            break
    return found or Limit("-", None, None)
