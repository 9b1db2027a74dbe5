"""The benchmark of `matmul_softmax`: a product and its softmax, beside eager torch and torch.compile."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import xeflash
from xeflash.bench import eager, measure, plot
from xeflash.bench.formats import Layout
from xeflash.bench.forms import TORCH_DTYPES
from xeflash.bench.measure import Options, run_case
from xeflash.bench.numbers import number
from xeflash.bench.rows import Result, Timed
from xeflash.bench.stats import summarize

SHAPES = ((1024, 4096, 64), (1024, 4096, 128), (1024, 4096, 1024))
SMALL = (16, 16, 40)  # a call that costs more than its work, so many times
SMALL_CALLS = 10_000
METHOD = [
    "softmax(a b^T) by rows for a (M, K) and b (N, K), normal numbers, a times K^-1/2; wall time of all calls of a "
    "case on ready inputs, allocation of the result included; medians (minimum, interquartile range) in ms",
    "rounds are interleaved in rotating order; each sample waits until the worker threads of all libraries sleep, then "
    "one untimed call, then calls back to back for at least 2 ms",
    "OMP_WAIT_POLICY is passive unless the variable was set",
    "eager = torch.softmax(a @ b.mT, -1); compiled = the same by torch.compile; ratios: the median over rounds of "
    "torch's time / ours",
    "max |error| against fp64 must be at most 2 x that of eager torch in the same dtype + the rounding of the largest "
    "result",
    "peak memory: the most bytes that torch's allocator has given out during a call, above what it had given before; "
    "on CPUs without the scratch of libraries (ours keeps the scores of 32 rows per core)",
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
        """Short name for the progress bar and for messages."""
        often = f", {self.calls} calls" if self.calls > 1 else ""
        return f"matmul-softmax {self.dtype} {self.rows}x{self.columns}, K {self.inputs}{often}"


@dataclass(frozen=True)
class SoftmaxRow(Timed, SoftmaxCase):
    """A case, our time, torch's, and the check. Times are milliseconds of all calls of the case."""

    gflops: float | None = None
    eager_median_ms: float | None = None
    eager_min_ms: float | None = None
    eager_iqr_ms: float | None = None
    eager_ratio: float | None = None
    compiled_median_ms: float | None = None
    compiled_ratio: float | None = None
    max_error: float | None = None
    allowed_error: float | None = None
    peak_bytes: int | None = None
    eager_peak_bytes: int | None = None

    @property
    def section(self) -> str:
        """There is one table."""
        return "matmul-softmax"


_CASE: eager.Cells = {
    "dtype": lambda r: r.dtype,
    "M": lambda r: str(r.rows),
    "N": lambda r: str(r.columns),
    "K": lambda r: str(r.inputs),
    "calls": lambda r: str(r.calls),
}
LAYOUT = Layout(
    SoftmaxRow,
    {"matmul-softmax": eager.cells(_CASE, "compiled", {"GFLOP/s": lambda r: number(r.gflops)})},
    tuple(_CASE),
    ("error / allowed", "compiled ms", "GFLOP/s"),
    "times: median (minimum, interquartile range) of all calls; ratios: torch's time / ours, the median over rounds",
)


def expand(
    dtypes: Sequence[str], rows: Sequence[int] | None, columns: Sequence[int] | None, inputs: Sequence[int] | None
) -> list[SoftmaxCase]:
    """Return every case of the choices; of what is not given, the usual ones, and the small one if nothing is."""
    usual = rows is None and columns is None and inputs is None
    cases = []
    for dtype in dtypes:
        shapes = itertools.product(rows or (1024,), columns or (4096,), inputs or [k for _, _, k in SHAPES])
        cases += [SoftmaxCase(dtype, *shape) for shape in shapes]
        cases += [SoftmaxCase(dtype, *SMALL, SMALL_CALLS)] if usual else []
    return cases


def problem(case: SoftmaxCase, options: Options) -> eager.Problem:
    """Return the ways to compute a case."""
    generator = torch.Generator(device=options.device).manual_seed(options.seed)
    normal = functools.partial(torch.randn, generator=generator, device=options.device)
    dtype = TORCH_DTYPES[case.dtype]
    a = (normal(case.rows, case.inputs) * case.inputs**-0.5).to(dtype)
    b = normal(case.columns, case.inputs).to(dtype)

    def by_torch(a: Tensor, b: Tensor) -> Tensor:
        return torch.softmax(a @ b.mT, -1)

    calls: dict[str, eager.Call] = {
        "xeflash": lambda: xeflash.matmul_softmax(a, b),
        "eager": lambda: by_torch(a, b),
        "compiled": functools.partial(torch.compile(by_torch), a, b),
    }
    return eager.Problem(calls, lambda: by_torch(a.double(), b.double()), torch.finfo(dtype).eps / 2)


def _run_case(row: SoftmaxRow, options: Options) -> Result:
    result = eager.measured(row, problem(row, options), options, ("compiled", "torch.compile"), row.calls)
    if not result.samples_ms:
        return result
    flops = 2.0 * row.rows * row.columns * row.inputs * row.calls
    return dataclasses.replace(result, row=dataclasses.replace(result.row, gflops=1e-6 * flops / result.row.median_ms))


def run(cases: Sequence[SoftmaxCase], options: Options) -> Iterator[Result]:
    """Yield the results one by one, so that an interrupted run keeps what it has."""
    for case in cases:
        row = SoftmaxRow(**dataclasses.asdict(case))
        needed = 8 * (4 * case.rows * case.columns + 2 * (case.rows + case.columns) * case.inputs)
        with torch.inference_mode():
            result = run_case(row, needed, options.device, functools.partial(_run_case, row, options))
        yield result


def header(options: Options) -> dict[str, object]:
    """Return the block above the rows: environment, method."""
    return measure.header(options.device, METHOD)


def figure(results: Sequence[Result], title: str) -> Any:
    """Return the picture as matplotlib's Figure: a panel per dtype, how many times as fast as eager torch a form is."""
    figure = plot.of_forms(
        results,
        title,
        panel=lambda row: row.dtype,
        forms=("xeflash", "eager", "compiled"),
        height=lambda result, ms: summarize(result.samples_ms["eager"]).median / ms,
        unit="speed, eager torch = 1",
        tick=lambda row: f"{row.rows} x {row.columns}\nK {row.inputs}",
    )
    for axis in figure.axes:
        axis.axhline(1, color="gray", linewidth=0.8)
    return figure
