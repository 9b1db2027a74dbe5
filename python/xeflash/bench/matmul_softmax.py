"""The benchmark of `matmul_softmax`: a product and its softmax, beside eager torch and torch.compile."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from xeflash.bench import memory, plot
from xeflash.bench.check import ERRORS, Errors, largest_error, said
from xeflash.bench.environ import available_memory, described, environment, too_large
from xeflash.bench.formats import Layout
from xeflash.bench.forms import TORCH_DTYPES, synchronizer
from xeflash.bench.numbers import number, ratio, size, times
from xeflash.bench.rows import Result
from xeflash.bench.stats import median_of_ratios, summarize
from xeflash.bench.timing import first_call, interleave

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
_NAMES = ("xeflash", "eager", "compiled")


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
class SoftmaxRow:
    """A case, our time, torch's, and the check. Times are milliseconds of all calls of the case."""

    dtype: str
    rows: int
    columns: int
    inputs: int
    calls: int
    status: str
    note: str = ""
    rounds: int | None = None
    first_call_ms: float | None = None
    median_ms: float | None = None
    min_ms: float | None = None
    iqr_ms: float | None = None
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

    @property
    def case(self) -> SoftmaxCase:
        """The problem of this row."""
        return SoftmaxCase(self.dtype, self.rows, self.columns, self.inputs, self.calls)


@dataclass(frozen=True)
class Options:
    """How to measure."""

    device: str = "cpu"
    rounds: int = 9
    seed: int = 0


def _errors(row: SoftmaxRow) -> str:
    if row.max_error is None or row.allowed_error is None:
        return "-"
    return f"{row.max_error:.1e} / {row.allowed_error:.1e}"


_CELLS: dict[str, Callable[[Any], str]] = {
    "dtype": lambda r: r.dtype,
    "M": lambda r: str(r.rows),
    "N": lambda r: str(r.columns),
    "K": lambda r: str(r.inputs),
    "calls": lambda r: str(r.calls),
    "xeflash ms": lambda r: times(r.median_ms, r.min_ms, r.iqr_ms) if r.status == "ok" else f"{r.status}: {r.note}",
    "GFLOP/s": lambda r: number(r.gflops),
    "eager ms": lambda r: times(r.eager_median_ms, r.eager_min_ms, r.eager_iqr_ms),
    "of eager": lambda r: ratio(r.eager_ratio),
    "compiled ms": lambda r: number(r.compiled_median_ms),
    "of compiled": lambda r: ratio(r.compiled_ratio),
    "error / allowed": _errors,
    "peak memory": lambda r: size(r.peak_bytes),
    "of eager's": lambda r: size(r.eager_peak_bytes),
}
LAYOUT = Layout(
    SoftmaxRow,
    {"matmul-softmax": _CELLS},
    ("dtype", "M", "N", "K", "calls"),
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


def forms(case: SoftmaxCase, options: Options) -> tuple[Tensor, Tensor, dict[str, Callable[[], Tensor]]]:
    """Return a, b, and the ways to compute the result, by name."""
    from xeflash import matmul_softmax

    generator = torch.Generator(device=options.device).manual_seed(options.seed)
    normal = functools.partial(torch.randn, generator=generator, device=options.device)
    dtype = TORCH_DTYPES[case.dtype]
    a = (normal(case.rows, case.inputs) * case.inputs**-0.5).to(dtype)
    b = normal(case.columns, case.inputs).to(dtype)

    def eager(a: Tensor, b: Tensor) -> Tensor:
        return torch.softmax(a @ b.mT, -1)

    compiled: Any = torch.compile(eager)
    return (
        a,
        b,
        {"xeflash": lambda: matmul_softmax(a, b), "eager": lambda: eager(a, b), "compiled": lambda: compiled(a, b)},
    )


def _often(call: Callable[[], Tensor], calls: int) -> Callable[[], object]:
    def repeated() -> None:
        for _ in range(calls):
            call()

    return repeated if calls > 1 else call


def _check(a: Tensor, b: Tensor, ours: Tensor, theirs: Tensor) -> Errors:
    want = torch.softmax(a.double() @ b.double().mT, -1)
    unit_roundoff = torch.finfo(ours.dtype).eps / 2
    allowed = 2 * largest_error(theirs, want) + unit_roundoff * float(want.abs().max())
    return Errors(largest_error(ours, want), allowed)


def _run_case(case: SoftmaxCase, options: Options) -> Result:
    a, b, calls = forms(case, options)
    synchronize = synchronizer(options.device)
    row = SoftmaxRow(
        **dataclasses.asdict(case), status="ok", first_call_ms=1e3 * first_call(calls["xeflash"], synchronize)
    )
    errors = _check(a, b, calls["xeflash"](), calls["eager"]())
    row = dataclasses.replace(row, max_error=errors.ours, allowed_error=errors.allowed)
    if not errors.ok:
        note = f"wrong result: error {errors.ours:.2e}, allowed {errors.allowed:.2e}"
        return Result(dataclasses.replace(row, status="failed", note=note))
    try:
        calls["compiled"]()
    except Exception as error:  # torch.compile needs a compiler, and raises what it likes
        del calls["compiled"]
        row = dataclasses.replace(row, note=f"torch.compile: {type(error).__name__}")
    timed = {name: _often(call, case.calls) for name, call in calls.items()}
    samples = {
        name: tuple(1e3 * seconds for seconds in series)
        for name, series in interleave(timed, options.rounds, synchronize).items()
    }
    return Result(_with_times(row, samples, calls, options), samples)


def _with_times(
    row: SoftmaxRow, samples: Mapping[str, Sequence[float]], calls: Mapping[str, Callable[[], object]], options: Options
) -> SoftmaxRow:
    ours, eager = summarize(samples["xeflash"]), summarize(samples["eager"])
    compiled = samples.get("compiled")
    flops = 2.0 * row.rows * row.columns * row.inputs * row.calls
    return dataclasses.replace(
        row,
        rounds=len(samples["xeflash"]),
        median_ms=ours.median,
        min_ms=ours.minimum,
        iqr_ms=ours.iqr,
        gflops=1e-6 * flops / ours.median,
        eager_median_ms=eager.median,
        eager_min_ms=eager.minimum,
        eager_iqr_ms=eager.iqr,
        eager_ratio=median_of_ratios(samples["eager"], samples["xeflash"]),
        compiled_median_ms=summarize(compiled).median if compiled else None,
        compiled_ratio=median_of_ratios(compiled, samples["xeflash"]) if compiled else None,
        peak_bytes=memory.peak_of(calls["xeflash"], options.device),
        eager_peak_bytes=memory.peak_of(calls["eager"], options.device),
    )


def run(cases: Sequence[SoftmaxCase], options: Options) -> Iterator[Result]:
    """Yield the results one by one, so that an interrupted run keeps what it has."""
    for case in cases:
        needed = 8 * (4 * case.rows * case.columns + 2 * (case.rows + case.columns) * case.inputs)
        if note := too_large(needed, available_memory(options.device)):
            yield Result(SoftmaxRow(**dataclasses.asdict(case), status="skipped", note=note))
            continue
        try:
            with torch.inference_mode():
                yield _run_case(case, options)
        except ERRORS as error:
            yield Result(SoftmaxRow(**dataclasses.asdict(case), status="failed", note=said(error)))


def header(options: Options) -> dict[str, object]:
    """Return the block above the rows: environment, method."""
    return {
        "environment": {**environment(), "device": described(options.device), "torch_threads": torch.get_num_threads()},
        "method": METHOD,
    }


def figure(results: Sequence[Result], title: str) -> Any:
    """Return the picture as matplotlib's Figure: a panel per dtype, how many times as fast as eager torch a form is."""
    figure = plot.of_forms(
        results,
        title,
        panel=lambda row: row.dtype,
        forms=_NAMES,
        height=lambda result, ms: summarize(result.samples_ms["eager"]).median / ms,
        unit="speed, eager torch = 1",
        tick=lambda row: f"{row.rows} x {row.columns}\nK {row.inputs}",
    )
    for axis in figure.axes:
        axis.axhline(1, color="gray", linewidth=0.8)
    return figure
