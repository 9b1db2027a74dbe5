"""The result of one cell computed one way as a flat row, and the tables of rows."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xeflash.bench.limits import Peaks
from xeflash.bench.llm.cells import Cell, TrainCell
from xeflash.bench.llm.generation import Generation
from xeflash.bench.numbers import number, per_round, percent, size, times
from xeflash.bench.rows import Result, Timed, case_of, times_of, with_ratios
from xeflash.bench.stats import quantile
from xeflash.bench.tables import NONE, Cells, Layout


@dataclass(frozen=True)
class LlmRow(Timed, Cell):
    """A cell computed one way. Times are milliseconds from one token to the next, over all rounds.

    `rest_differs_percent` is how much longer the longest time without attention and cache is than the shortest, of ways
    that have it in common; `busy` says that this is much, and more than their attention differs.
    """

    way: str = ""
    ttft_ms: float | None = None
    mean_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    total_ms: float | None = None
    tokens_per_s: float | None = None
    attention_percent: float | None = None
    attention_ms: float | None = None
    rest_differs_percent: float | None = None
    busy: bool = False
    kv_bytes: int | None = None
    kv_gbytes_per_s: float | None = None
    copied_bytes: int | None = None

    @property
    def label(self) -> str:
        """Returns a short name for messages."""
        return f"{super().label} {self.way}"


@dataclass(frozen=True)
class TrainRow(Timed, TrainCell):
    """A cell with one attention. Times are milliseconds of a step."""

    way: str = ""
    tokens_per_s: float | None = None
    loss: float | None = None

    @property
    def label(self) -> str:
        """Returns a short name for messages."""
        return f"{super().label} {self.way}"


def row_of(cell: Cell | TrainCell, way: str) -> Any:
    """Returns the row of a cell computed one way, without any number."""
    return (LlmRow if isinstance(cell, Cell) else TrainRow)(**dataclasses.asdict(cell), way=way)


@dataclass(frozen=True)
class Shares:
    """The time and the copies of one token, as the instruments found them."""

    attention_seconds: float
    total_seconds: float
    copied_bytes: int


def generated(row: LlmRow, rounds: Sequence[Generation], shares: Shares, kv_bytes: int) -> Result:
    """Returns the result of generations that were timed."""
    samples = [1e3 * step for generation in rounds for step in generation.steps]
    steps, times = sorted(samples), times_of(samples)
    share = shares.attention_seconds / shares.total_seconds
    attention_ms = share * times["median_ms"]
    peaks = [generation.peak_bytes for generation in rounds if generation.peak_bytes is not None]
    return Result(row, {row.way: tuple(samples)}).with_row(
        rounds=len(rounds),
        **times,
        ttft_ms=1e3 * statistics.median(generation.first for generation in rounds),
        mean_ms=statistics.fmean(steps),
        p90_ms=quantile(steps, 0.9),
        p99_ms=quantile(steps, 0.99),
        total_ms=1e3 * statistics.median(generation.total for generation in rounds),
        tokens_per_s=1e3 * row.batch / times["median_ms"],
        attention_percent=100 * share,
        attention_ms=attention_ms,
        kv_bytes=kv_bytes,
        kv_gbytes_per_s=1e-6 * kv_bytes / attention_ms if attention_ms else None,
        copied_bytes=shares.copied_bytes,
        peak_bytes=max(peaks, default=None),
    )


def trained(row: TrainRow, steps_ms: Sequence[float], peak_bytes: int, loss: float) -> Result:
    """Returns the result of training steps that were timed."""
    times = times_of(steps_ms)
    return Result(row, {row.way: tuple(steps_ms)}).with_row(
        rounds=len(steps_ms),
        **times,
        tokens_per_s=1e3 * row.batch * row.seq / times["median_ms"],
        peak_bytes=peak_bytes,
        loss=loss,
    )


def beside_sdpa(results: Sequence[Result], peaks: Peaks) -> list[Result]:
    """Returns the results beside sdpa and each other, and with the peak that holds reading K and V."""
    if any(isinstance(result.row, TrainCell) for result in results):
        return with_ratios(results, TrainCell, "sdpa")
    filled = _with_rests(with_ratios(results, Cell, "sdpa/dynamic"))

    def held(result: Result) -> Result:
        row, no_arithmetic, weights_too = result.row, ("", ""), math.inf  # weights drive K and V out of a cache
        if not row.attention_ms or not row.kv_bytes:
            return result
        limit = peaks.limit(no_arithmetic, 0, row.kv_bytes, 1e-3 * row.attention_ms, weights_too)
        return result.with_row(percent_of_peak=limit.percent_of_peak, bound_by=limit.bound_by) if limit else result

    return [held(result) for result in filled]


def _with_rests(results: Sequence[Result]) -> list[Result]:
    """Returns the results with the difference of what torch computes in the same way beside several attentions."""

    def shared(row: LlmRow) -> tuple[Cell, bool]:
        return case_of(Cell, row), row.way.endswith("+linear")

    found: dict[tuple[Cell, bool], list[tuple[float, float]]] = {}
    for row in (result.row for result in results):
        if row.attention_ms is not None:
            found.setdefault(shared(row), []).append((row.median_ms - row.attention_ms, row.attention_ms))

    def filled(result: Result) -> Result:
        rests, attentions = zip(*found.get(shared(result.row), [(1.0, 1.0)]), strict=True)
        if len(rests) == 1:
            return result
        differs, more = 100 * (max(rests) / min(rests) - 1), max(rests) - min(rests) > max(attentions) - min(attentions)
        return result.with_row(rest_differs_percent=differs, busy=more and differs > _MOST_REST_DIFFERS)

    return [filled(result) for result in results]


def _remark(rows: Sequence[Any]) -> str:
    """Returns what is wrong with the rows that have a sign."""
    if not (found := [row.rest_differs_percent for row in rows if row.busy]):
        return ""
    return (
        f"{_SIGN} the rest of a step, which these ways share, differs by {max(found):.0f} %, more than attention does: "
        "the machine was busy; measure again"
    )


def _or_note(row: Any, text: str) -> str:
    """Returns the text of a row that was measured; of others, why they were not."""
    return text if row.status == "ok" else f"{row.status}: {row.note}"


def _signed(row: Any, text: str) -> str:
    """Returns the text with a sign where it is the machine's other load that one sees."""
    return _or_note(row, f"{text} {_SIGN}" if row.busy else text)


def _new_per_second(row: LlmRow) -> float | None:
    """Returns the new tokens of all sequences over the whole time."""
    return 1e3 * row.batch * row.new_tokens / row.total_ms if row.total_ms else None


_SIGN = "!"
_MOST_REST_DIFFERS = 20.0  # percent
_MODEL: Cells = {
    "model": lambda r: r.model if r.layers is None else f"{r.model}, {r.layers} layers",
    "dtype": lambda r: r.dtype,
}
_CELL: Cells = {
    **_MODEL,
    "weights": lambda r: r.weights,
    "B x beams": lambda r: f"{r.batch} x {r.beams}",
    "context": lambda r: str(r.context),
    "attention/cache": lambda r: r.way,
}
_SPEED: Cells = {
    "tokens/s": lambda r: _or_note(r, number(r.tokens_per_s)),
    "ratio per round": per_round,
}
_DECODE: Cells = {
    **_SPEED,
    "tokens/s": lambda r: _signed(r, number(r.tokens_per_s)),
    "TTFT ms": lambda r: number(r.ttft_ms),
    "TPOT ms": lambda r: times(r.median_ms, r.min_ms, r.iqr_ms),
    "mean": lambda r: number(r.mean_ms),
    "p90": lambda r: number(r.p90_ms),
    "p99": lambda r: number(r.p99_ms),
    "in attention": lambda r: percent(r.attention_percent),
    "KV": lambda r: size(r.kv_bytes),
    "KV GB/s": lambda r: number(r.kv_gbytes_per_s),
    "of read peak": lambda r: f"{percent(r.percent_of_peak)} of {r.bound_by}" if r.bound_by else NONE,
    "copied / token": lambda r: size(r.copied_bytes),
    "peak memory": lambda r: size(r.peak_bytes),
}
_GENERATE: Cells = {
    "new": lambda r: str(r.new_tokens),
    "generate() ms": lambda r: _signed(r, number(r.total_ms)),
    "new tokens/s": lambda r: number(_new_per_second(r)),
    "TTFT ms": lambda r: number(r.ttft_ms),
    "peak memory": lambda r: size(r.peak_bytes),
}
_STEPS: Cells = {
    **_MODEL,
    "B": lambda r: str(r.batch),
    "S": lambda r: str(r.seq),
    "checkpointing": lambda r: "yes" if r.checkpointing else "no",
    "attention": lambda r: r.way,
    **_SPEED,
    "step ms": lambda r: times(r.median_ms, r.min_ms, r.iqr_ms),
    "peak memory": lambda r: size(r.peak_bytes),
    "loss": lambda r: number(r.loss, 6),
}
_WORDS = {
    "ratio per round": "median (lowest to highest) of sdpa's time / this one's",
    "TTFT ms": "until the first token",
    "TPOT ms": "from one token to the next: median (minimum, interquartile range)",
    "in attention": "attention and cache, of that",
    "KV": "bytes of K and V that a token attends to",
    "KV GB/s": "at which attention reads K and V",
    "copied / token": "by the cache",
    "step ms": "median (minimum, interquartile range)",
}
DECODE, GENERATE = (
    Layout(
        LlmRow,
        {"decode": {**_CELL, **cells}},
        case=(*_CELL, "new"),
        details=("mean", "p90", "p99", "of read peak", "KV GB/s"),
        spare=("copied / token", "peak memory", "in attention", "KV"),
        words=_WORDS,
        remark=_remark,
    )
    for cells in (_DECODE, _GENERATE)
)
TRAIN = Layout(TrainRow, {"train": _STEPS}, case=tuple(_STEPS)[:5], spare=("step ms", "loss"), words=_WORDS)
