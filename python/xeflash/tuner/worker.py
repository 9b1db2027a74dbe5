"""A process that checks and times calls with the sizes that XEFLASH_TUNED says: `-m xeflash.tuner.worker DEVICE`.

It is the self-test's worker, with other requests.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import itertools
import math
import time
from collections.abc import Callable
from typing import Any

from xeflash.bench.cases import Case
from xeflash.bench.environ import available_memory, last_level_cache, too_large
from xeflash.bench.timing import settle
from xeflash.selftest import worker
from xeflash.selftest.pool import Answer

_MOST_MEANS = 5  # of a sample
_SECONDS = 3e-3  # each is of at least so long
_SECONDS_OF_SAMPLE = 20e-3
_LONG_SECONDS = 20e-3  # before longer calls nothing has to be woken
_GPU_BYTES = 512 << 20  # more than the last-level cache of any of them
_ALIGNED = 64  # numbers
_LUCK = 2  # torch's own error bounds ours, and is small by luck in one of many cases
_MOST_CASES = 8  # that are ready, those of a row


class Numbers:
    """Random numbers on a device, which all cases take their inputs from, as several processes share its memory."""

    def __init__(self, device: str) -> None:
        """Keeps the device."""
        self._device = device
        self._kept: dict[Any, Any] = {}

    def inputs(self, case: Case, copies: int) -> list[Any]:
        """Returns inputs of a case, each with keys and values of its own."""
        forms: Any = importlib.import_module("xeflash.bench.forms")
        if case.gradients:  # whose bits are compared between processes
            return [forms.make_inputs(case, self._device, seed=0)]
        keys = (case.batch, case.kv_heads, case.seq_k, case.head_dim)
        shapes = [(case.batch, case.heads, case.seq_q, case.head_dim), keys, keys]
        places = [0, *itertools.accumulate(-(-math.prod(x) // _ALIGNED) * _ALIGNED for x in shapes * copies)]
        numbers = self._of(forms.TORCH_DTYPES[case.dtype], places[-1])
        views = [numbers[at : at + math.prod(x)].view(x) for at, x in zip(places, shapes * copies, strict=False)]
        return [forms.Inputs(*views[3 * copy : 3 * copy + 3]) for copy in range(copies)]

    def _of(self, dtype: Any, count: int) -> Any:
        """Returns at least so many numbers of a type, and forgets those of others."""
        torch: Any = importlib.import_module("torch")
        if dtype not in self._kept or self._kept[dtype].numel() < count:
            self._kept.clear()
            generator = torch.Generator(device=self._device).manual_seed(0)
            self._kept[dtype] = torch.randn(count, generator=generator, dtype=dtype, device=self._device)
        return self._kept[dtype]


class Prepared:
    """A case with inputs, which take turns where the call reads more than it computes: memory has them, no cache."""

    def __init__(self, case: Case, device: str, numbers: Numbers) -> None:
        """Takes the inputs; raises MemoryError if there is no room for them."""
        forms: Any = importlib.import_module("xeflash.bench.forms")
        self.case, self._forms = case, forms
        copies = 1
        if case.seq_q < case.seq_k and not case.gradients:
            cache = 2 * (last_level_cache() or 64 << 20) if device == "cpu" else _GPU_BYTES
            copies = math.ceil(cache / case.kv_bytes)
        if why := too_large(case.memory_bytes + copies * case.kv_bytes, available_memory(device)):
            raise MemoryError(why)
        self._inputs = numbers.inputs(case, copies)
        self._calls = [forms.timed_form(case, x, forms.our_form(case, x)) for x in self._inputs]
        self._synchronize: Callable[[], None] = forms.synchronizer(device)
        self._seconds = 0.0

    def run(self) -> dict[str, Any]:
        """Runs the call, for which its kernel is translated or compiled."""
        self._run(1)
        return {"status": "ok"}

    def check(self) -> dict[str, Any]:
        """Returns whether the result is right, and a digest of gradients, whose bits must not change."""
        check: Any = importlib.import_module("xeflash.bench.check").check
        inputs, call = self._inputs[0], self._calls[0]
        theirs = next(iter(self._forms.torch_forms(self.case, inputs).values()))
        errors = check(self.case, inputs, call, self._forms.timed_form(self.case, inputs, theirs))
        allowed = _LUCK * errors.allowed
        if not errors.ours <= allowed:  # NaN never is
            return {"status": "wrong", "note": f"wrong result: error {errors.ours:.2e}, allowed {allowed:.2e}"}
        return {"status": "ok", "bits": self._bits(call()) if self.case.gradients else ""}

    @staticmethod
    def _bits(gradients: Any) -> str:
        torch: Any = importlib.import_module("torch")
        hasher = hashlib.sha256()
        for one in gradients:
            hasher.update(one.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return hasher.hexdigest()

    def sample(self) -> float:
        """Returns the milliseconds of a call: the best of some means, as other programs make some of them longer."""
        if not self._seconds:
            self._run(len(self._calls))
            self._seconds = self._run(len(self._calls))
        calls = len(self._calls) * math.ceil(_SECONDS / (len(self._calls) * self._seconds))
        means = math.ceil(_SECONDS_OF_SAMPLE / (calls * self._seconds))
        settle()
        if self._seconds < _LONG_SECONDS:
            self._run(1)
        return 1e3 * min(self._run(calls) for _ in range(min(means, _MOST_MEANS)))

    def _run(self, count: int) -> float:
        """Returns the mean seconds of calls back to back."""
        start = time.perf_counter()
        for number in range(count):
            self._calls[number % len(self._calls)]()
        self._synchronize()
        return (time.perf_counter() - start) / count


@functools.cache
def _numbers(device: str) -> Numbers:
    return Numbers(device)


@functools.lru_cache(maxsize=_MOST_CASES)
def _prepared(case: Case, device: str) -> Prepared:
    return Prepared(case, device, _numbers(device))


def respond(request: Answer, arrays: object, facts: Answer) -> Answer:  # noqa: ARG001
    """Returns an answer: a tuning of the device that has no choices yet, or what a case gives."""
    named = str(facts["arrays"]).removeprefix("torch on ")  # else of arrays that are not timed
    device = "" if facts["simulated"] or named == facts["arrays"] else named
    try:
        if request["do"] == "describe":
            tuned: Any = importlib.import_module("xeflash.tune.tuned")
            tuning = tuned.new_tuning(facts["arch"], facts["name"], facts["driver"])
            return {"tuning": tuning.to_json(), "torch": device}
        prepared = _prepared(Case(**request["case"]), device)
        if request["do"] == "run":
            return prepared.run()
        return prepared.check() if request["do"] == "check" else {"status": "ok", "ms": prepared.sample()}
    except Exception as error:
        kind = type(error).__name__
        status = "no memory" if kind in ("MemoryError", "OutOfMemoryError") else "error"
        return {"status": status, "note": f"{kind}: {error}".splitlines()[0]}


if __name__ == "__main__":
    worker.main(respond)
