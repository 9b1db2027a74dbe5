"""The result of every case is checked once, before it is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from xeflash.bench.cases import Case
from xeflash.bench.forms import Inputs

METHOD = (
    "max |error| against SDPA in fp32 (in fp64 for fp32 inputs) must be at most 2 x the error of "
    "torch SDPA in the same dtype + the rounding of the largest result"
)


class Errors(NamedTuple):
    """Largest absolute error of ours and the bound it must keep."""

    ours: float
    allowed: float

    @property
    def ok(self) -> bool:
        """Whether the bound is kept; NaN never is."""
        return self.ours <= self.allowed


def largest_error(got: Tensor, want: Tensor) -> float:
    """Return max |got - want|, NaN if any element is not finite."""
    if got.shape != want.shape:
        raise ValueError(f"check: result must have shape {list(want.shape)}, got {list(got.shape)}")
    if not bool(torch.isfinite(got).all()):
        return float("nan")
    return float((got.to(want.dtype) - want).abs().max())


def _reference(case: Case, inputs: Inputs) -> Iterable[Tensor]:
    """Yield the exact result of one batch entry after the other, which bounds the memory."""
    wide = torch.float64 if case.dtype == "fp32" else torch.float32
    for entry in range(case.batch):
        q, k, v = (x[entry : entry + 1].to(wide) for x in inputs)
        yield scaled_dot_product_attention(q, k, v, is_causal=case.causal, enable_gqa=case.group > 1)


def check(case: Case, inputs: Inputs, ours: Callable[[], Tensor], theirs: Callable[[], Tensor]) -> Errors:
    """Return our error and the allowed one (METHOD)."""
    our_out, torch_out = ours(), theirs()
    if our_out.shape != torch_out.shape:
        raise ValueError(f"check: result must have shape {list(torch_out.shape)}, got {list(our_out.shape)}")
    unit_roundoff = torch.finfo(our_out.dtype).eps / 2
    our_error = torch_error = largest = 0.0
    for entry, want in enumerate(_reference(case, inputs)):
        error = largest_error(our_out[entry : entry + 1], want)
        our_error = error if error != error else max(our_error, error)
        torch_error = max(torch_error, largest_error(torch_out[entry : entry + 1], want))
        largest = max(largest, float(want.abs().max()))
        if our_error != our_error:
            break
    return Errors(our_error, 2 * torch_error + unit_roundoff * largest)
