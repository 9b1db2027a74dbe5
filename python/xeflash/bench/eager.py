"""An operation beside eager torch and one more form, which torch may refuse: what `lm_head` and `matmul_softmax` share.

Their rows have the fields of `Timed`; `eager_` times, ratio and peak memory; the median and ratio of the third form.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from xeflash.bench import measure, memory
from xeflash.bench.check import Errors, largest_error
from xeflash.bench.numbers import errors, number, ratio, size, timings
from xeflash.bench.rows import Result, times_of
from xeflash.bench.stats import median_of_ratios

Call = Callable[[], Any]
Cells = dict[str, Callable[[Any], str]]


@dataclass(frozen=True)
class Problem:
    """The ways to compute a case: "xeflash", "eager" and perhaps a third; and what is right in fp64."""

    calls: dict[str, Call]
    right: Callable[[], Tensor] | None  # None: nothing can be compared
    rounding: float  # of the largest number, that is allowed

    def errors(self) -> Errors | None:
        """Ours, and what is allowed: 2 x eager torch's, and the rounding."""
        if self.right is None:
            return None
        want = self.right().double()
        ours, eager = (largest_error(first(self.calls[name]()), want) for name in ("xeflash", "eager"))
        return Errors(ours, 2 * eager + self.rounding * float(want.abs().max()))


def first(found: Any) -> Tensor:
    """Return what is compared of a result."""
    tensor: Tensor = found[0] if isinstance(found, tuple) else found
    return tensor


def measured(row: Any, problem: Problem, options: measure.Options, third: tuple[str, str], repeats: int = 1) -> Result:
    """Return the row with its check, times and peaks of memory; `third` is the form's name, and torch's."""
    name, torchs = third
    result = measure.timed(row, problem.calls, problem.errors, options, {name: torchs}, repeats)
    if not result.samples_ms:
        return result
    ours, eager, other = (result.samples_ms.get(form) for form in ("xeflash", "eager", name))
    assert ours and eager
    fields: dict[str, Any] = {"rounds": len(ours), **times_of(ours), **times_of(eager, "eager_")}
    fields["eager_ratio"] = median_of_ratios(eager, ours)
    if other:
        fields[f"{name}_median_ms"] = times_of(other)["median_ms"]
        fields[f"{name}_ratio"] = median_of_ratios(other, ours)
    fields["peak_bytes"], fields["eager_peak_bytes"] = (
        memory.peak_of(problem.calls[form], options.device) for form in ("xeflash", "eager")
    )
    return Result(dataclasses.replace(result.row, **fields), result.samples_ms)


def cells(case: Cells, third: str, ours: Cells | None = None) -> Cells:
    """Return the columns of a table: those of the case, then times, ratios, errors and memory."""
    return {
        **case,
        "xeflash ms": timings,
        **(ours or {}),
        "eager ms": lambda r: timings(r, "eager_"),
        "of eager": lambda r: ratio(r.eager_ratio),
        f"{third} ms": lambda r: number(getattr(r, f"{third}_median_ms")),
        f"of {third}": lambda r: ratio(getattr(r, f"{third}_ratio")),
        "error / allowed": errors,
        "peak memory": lambda r: size(r.peak_bytes),
        "of eager's": lambda r: size(r.eager_peak_bytes),
    }
