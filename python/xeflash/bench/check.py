"""The result of every case is checked once, before it is timed."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from xeflash.bench.cases import Case
from xeflash.bench.forms import Form, Inputs, timed_form

METHOD = (
    "max |error| against SDPA in fp32 (in fp64 for fp32 inputs) must be at most 2 x the error of "
    "torch SDPA in the same dtype + the rounding of the largest result; of gradients, for each of dq, dk and dv"
)


ERRORS = (RuntimeError, ValueError, TypeError, NotImplementedError, MemoryError)  # they fail a case, and not the run


def said(error: BaseException) -> str:
    """Returns the note of a row that an error has failed."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


class Errors(NamedTuple):
    """Largest absolute error of ours and the bound it must keep."""

    ours: float
    allowed: float

    @property
    def ok(self) -> bool:
        """Returns whether our error is within the bound, which NaN never is."""
        return self.ours <= self.allowed


def largest_error(got: Tensor, want: Tensor) -> float:
    """Returns max |got - want|, NaN if any element is not finite."""
    if got.shape != want.shape:
        raise ValueError(f"check: result must have shape {list(want.shape)}, got {list(got.shape)}")
    if not bool(torch.isfinite(got).all()):
        return float("nan")
    return float((got.to(want.dtype) - want).abs().max())


def beside_fp64(ours: Any, eager: Any, want: Any, rounding: float) -> Errors:
    """Returns our error against a result in fp64, and the allowed one: 2 x eager torch's + `rounding` x the largest.

    Of several results the first one is compared.
    """
    our, torchs, exact = (x[0] if isinstance(x, tuple) else x for x in (ours, eager, want))
    exact = exact.double()
    return Errors(largest_error(our, exact), 2 * largest_error(torchs, exact) + rounding * float(exact.abs().max()))


def _results(form: Form) -> tuple[Tensor, ...]:
    results = form()
    return (results,) if isinstance(results, Tensor) else results


def _reference(case: Case, inputs: Inputs) -> Iterable[tuple[Tensor, ...]]:
    """Yields the exact results of one batch entry after the other, which bounds the memory."""
    wide = torch.float64 if case.dtype == "fp32" else torch.float32

    def exact(x: Tensor, entry: int) -> Tensor:
        return x.detach()[entry : entry + 1].to(wide).requires_grad_(x.requires_grad)

    q, k, v, dout = inputs[:4]
    k, v = inputs.exact or (k, v)
    for entry in range(case.batch):
        some = Inputs(*(None if x is None else exact(x, entry) for x in (q, k, v, dout)))
        forward = functools.partial(
            scaled_dot_product_attention, *some[:3], inputs.mask, is_causal=case.causal, enable_gqa=case.group > 1
        )
        yield _results(timed_form(case, some, forward))


def check(case: Case, inputs: Inputs, ours: Form, theirs: Form) -> Errors:
    """Returns our error and the allowed one (METHOD); of gradients, those of the one that is nearest to its bound."""
    both = list(zip(_results(ours), _results(theirs), strict=True))
    for our, torchs in both:
        if our.shape != torchs.shape:
            raise ValueError(f"check: result must have shape {list(torchs.shape)}, got {list(our.shape)}")
    worst = torch.zeros(len(both), 3, dtype=torch.float64)  # our error, torch's, the largest result
    for entry, exact in enumerate(_reference(case, inputs)):
        part = slice(entry, entry + 1)
        rows = [
            (largest_error(our[part], want), largest_error(torchs[part], want), float(want.abs().max()))
            for (our, torchs), want in zip(both, exact, strict=True)
        ]
        worst = torch.maximum(worst, torch.tensor(rows, dtype=torch.float64))  # keeps NaN
    unit_roundoff = torch.finfo(both[0][0].dtype).eps / 2
    errors = [Errors(our, 2 * torchs + unit_roundoff * largest) for our, torchs, largest in worst.tolist()]
    return max(errors, key=lambda e: (not e.ok, e.ours / (e.allowed or 1.0)))
