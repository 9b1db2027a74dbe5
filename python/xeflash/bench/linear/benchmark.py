"""The benchmark of linear layers: rows, the check, and the problem of a case."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from xeflash.bench.check import Errors, largest_error
from xeflash.bench.forms import TORCH_DTYPES
from xeflash.bench.linear import forms
from xeflash.bench.linear.cases import WEIGHTS, Case
from xeflash.bench.numbers import number, size, whole
from xeflash.bench.plot import Picture
from xeflash.bench.rows import OURS, Compared
from xeflash.bench.runner import Benchmark, Options, Problem
from xeflash.bench.tables import comparison

METHOD = [
    "each call takes the next one of several copies of the weight, which together are four times the last-level cache "
    "at least: weights come from memory, as in a model",
    "GB/s: bytes of the weight, and of scales where it is quantised, / our time",
    "before timing: max |error| against fp64 must be at most 2 x that of a product in fp32, rounded to the type of x, "
    "or 2 x the rounding of the largest sum, + the rounding of the largest result",
]
_BLOCK = 2048  # outputs that are checked at a time


@dataclass(frozen=True)
class LinearRow(Compared, Case):
    """A case and what was measured of it; `bytes` are those of the weight, its scales and zeros."""

    bytes: int | None = None
    copies: int | None = None

    @property
    def section(self) -> str:
        """Returns the table that this row is in."""
        return self.weights


def check(inputs: forms.Inputs, got: Tensor) -> Errors:
    """Returns our error and the allowed one."""
    x, ours, theirs, size, largest = inputs.x, 0.0, 0.0, 0.0, 0.0
    if got.shape != (shape := (len(x), len(inputs.weight))):
        raise ValueError(f"check: result must have shape {list(shape)}, got {list(got.shape)}")
    for first in range(0, len(inputs.weight), _BLOCK):
        part = slice(first, first + _BLOCK)
        weight = inputs.weight[part]
        want = x.double() @ weight.double().mT
        other = (x.float() @ weight.float().mT).to(x.dtype)
        error = largest_error(got[:, part], want)
        ours = error if not error <= ours else ours  # keeps NaN
        theirs = max(theirs, largest_error(other, want))
        largest = max(largest, float(want.abs().max()))
        size = max(size, float((x.float().abs() @ weight.float().abs().mT).max()))
    eps = torch.finfo(torch.float32).eps
    return Errors(ours, 2 * max(theirs, eps * size) + torch.finfo(x.dtype).eps / 2 * largest)


def memory_needed(case: Case) -> int:
    """Returns an estimate of the bytes of all copies, torch's included, and of what makes and checks the weight."""
    elements = case.outputs * case.inputs
    size = elements * int(TORCH_DTYPES[case.dtype].itemsize)
    return 20 * elements + 3 * (forms.copies_of(size) + 1) * size


def _problem(case: Case, options: Options) -> Problem:
    inputs = forms.make_inputs(case, options.device, options.seed)
    ours = forms.our_form(inputs)
    torchs = forms.torch_forms(case, inputs, options.compiled) if options.compare_torch else {}
    size = forms.bytes_of(inputs.arguments())
    copies = forms.copies_of(size)
    return Problem(
        calls={OURS: ours, **torchs},
        check=lambda: check(inputs, ours()),
        flops=2.0 * case.rows * case.outputs * case.inputs,
        bytes_read=size,
        touched=size * copies,
        same=None if case.weights == "same" else [name for name in torchs if name != forms.PLAIN],
        fields={"bytes": size, "copies": copies},
    )


BENCHMARK = Benchmark(
    layout=comparison(
        LinearRow,
        WEIGHTS,
        {
            "model": lambda r: r.model,
            "dtype": lambda r: r.dtype,
            "layer": lambda r: r.layer,
            "N x K": lambda r: f"{r.outputs} x {r.inputs}",
            "group": lambda r: whole(r.group if r.weights != "same" else None),
            "rows": lambda r: str(r.rows),
        },
        {"GB/s": lambda r: number(r.gbytes_per_s)},
        {"weight": lambda r: size(r.bytes)},
        {
            "GB/s": "of the weight and its scales",
            "torch ms": "its fastest form with such weights",
            "plain torch": "the ratio of F.linear, with weights of the type of x",
        },
    ),
    title="linear layers by xeflash and torch on {}: median and quartiles",
    method=METHOD,
    algorithm=lambda _: "linear",
    memory_needed=memory_needed,
    problem=_problem,
    notes=forms.FORM_NOTES,
    picture=Picture(
        panel=lambda row: f"{row.dtype}, weights {row.weights}",
        ticks={
            "model": lambda row: row.model,
            "layer": lambda row: row.layer if row.layer != "-" else f"{row.outputs}x{row.inputs}",
            "rows": lambda row: str(row.rows),
        },
        reads=lambda _: "the weight",
    ),
)
