"""The benchmark of `matmul_softmax`: a product and its softmax, beside eager torch and torch.compile."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import xeflash
from xeflash.bench.cases import product
from xeflash.bench.check import beside_fp64
from xeflash.bench.forms import TORCH_DTYPES
from xeflash.bench.numbers import number
from xeflash.bench.plot import Picture
from xeflash.bench.rows import OURS, Compared
from xeflash.bench.runner import Benchmark, Call, Options, Problem
from xeflash.bench.tables import comparison

INPUTS = (64, 128, 1024)
SMALL = (16, 16, 40)  # a call that costs more than its work, so many times
SMALL_CALLS = 10_000
METHOD = [
    "softmax(a b^T) by rows for a (M, K) and b (N, K), normal numbers, a times K^-1/2; wall time of all calls of a "
    "case; ours keeps the scores of 32 rows per core",
    "max |error| against fp64 must be at most 2 x that of eager torch in the same dtype + the rounding of the largest "
    "result",
]


@dataclass(frozen=True)
class SoftmaxCase:
    """A product of (rows, inputs) and (columns, inputs), so many times."""

    dtype: str
    rows: int
    columns: int
    inputs: int
    calls: int = 1

    @property
    def label(self) -> str:
        """Returns a short name for the progress bar and for messages."""
        often = f", {self.calls} calls" if self.calls > 1 else ""
        return f"matmul-softmax {self.dtype} {self.rows}x{self.columns}, K {self.inputs}{often}"


@dataclass(frozen=True)
class SoftmaxRow(Compared, SoftmaxCase):
    """A case and what was measured of it. Times are milliseconds of all calls of the case."""

    section = "matmul-softmax"


def expand(
    dtypes: Sequence[str],
    rows: tuple[int, ...] | None = None,
    columns: tuple[int, ...] | None = None,
    inputs: tuple[int, ...] | None = None,
) -> list[SoftmaxCase]:
    """Returns every case of the choices; of what is not given, the usual ones, and the small one if nothing is."""
    usual = rows is None and columns is None and inputs is None
    cases: list[SoftmaxCase] = []
    for dtype in dtypes:
        cases += product(SoftmaxCase, dtype=dtype, rows=rows or 1024, columns=columns or 4096, inputs=inputs or INPUTS)
        cases += [SoftmaxCase(dtype, *SMALL, SMALL_CALLS)] if usual else []
    return cases


def _problem(case: SoftmaxCase, options: Options) -> Problem:
    generator = torch.Generator(device=options.device).manual_seed(options.seed)
    normal = functools.partial(torch.randn, generator=generator, device=options.device)
    dtype = TORCH_DTYPES[case.dtype]
    a = (normal(case.rows, case.inputs) * case.inputs**-0.5).to(dtype)
    b = normal(case.columns, case.inputs).to(dtype)

    def by_torch(a: Tensor, b: Tensor) -> Tensor:
        return torch.softmax(a @ b.mT, -1)

    calls: dict[str, Call] = {
        OURS: lambda: xeflash.matmul_softmax(a, b),
        "eager": lambda: by_torch(a, b),
        "compiled": functools.partial(torch.compile(by_torch), a, b),
    }
    return Problem(
        calls=calls,
        check=lambda: beside_fp64(
            calls[OURS](), calls["eager"](), by_torch(a.double(), b.double()), torch.finfo(dtype).eps / 2
        ),
        flops=2.0 * case.rows * case.columns * case.inputs * case.calls,
        optional={"compiled": "torch.compile"},
        repeats=case.calls,
        memory=True,
        eager=calls["eager"],
    )


BENCHMARK = Benchmark(
    layout=comparison(
        SoftmaxRow,
        (SoftmaxRow.section,),
        {
            "dtype": lambda r: r.dtype,
            "M": lambda r: str(r.rows),
            "N": lambda r: str(r.columns),
            "K": lambda r: str(r.inputs),
            "calls": lambda r: str(r.calls),
        },
        {"GFLOP/s": lambda r: number(r.gflops)},
    ),
    title="xeflash.matmul_softmax on {}: median and quartiles",
    method=METHOD,
    algorithm=lambda _: "matmul_softmax",
    memory_needed=lambda case: 8 * (4 * case.rows * case.columns + 2 * (case.rows + case.columns) * case.inputs),
    problem=_problem,
    notes={"eager": "torch.softmax(a @ b.mT, -1)", "compiled": "eager by torch.compile"},
    picture=Picture(
        panel=lambda row: row.dtype,
        ticks={
            "rows": lambda row: str(row.rows),
            "columns": lambda row: str(row.columns),
            "K": lambda row: str(row.inputs),
        },
    ),
)
