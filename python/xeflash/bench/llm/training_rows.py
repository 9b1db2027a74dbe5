"""What `xeflash bench train` runs and finds: the cells, the rows, and their table."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from xeflash.bench.formats import Layout
from xeflash.bench.numbers import number, ratio, size, times
from xeflash.bench.rows import Result, case_of, times_of
from xeflash.bench.stats import median_of_ratios


@dataclass(frozen=True)
class TrainCell:
    """A model, and the tokens of its training steps."""

    model: str
    layers: int | None  # None: all
    dtype: str
    batch: int
    seq: int
    checkpointing: bool

    @property
    def label(self) -> str:
        """Short name for the progress bar and for messages."""
        return f"{self.model} {self.dtype} B{self.batch} {self.seq}{' checkpointing' if self.checkpointing else ''}"


def expand(
    models: Iterable[str],
    layers: int | None,
    dtypes: Iterable[str],
    batches: Sequence[int],
    lengths: Sequence[int],
    checkpointing: bool,
) -> list[TrainCell]:
    """Return every cell once, all of a model and dtype together."""
    choices = itertools.product(dict.fromkeys(models), dict.fromkeys(dtypes), batches, lengths)
    cells = (TrainCell(model, layers, dtype, batch, seq, checkpointing) for model, dtype, batch, seq in choices)
    return list(dict.fromkeys(cells))


@dataclass(frozen=True)
class TrainRow(TrainCell):
    """One cell with one attention.

    `status` is "ok", "failed" (wrong or an error; `note` says which) or "skipped". Times are milliseconds per step;
    numbers that were not measured are None.
    """

    attention: str = ""
    status: str = "ok"
    note: str = ""
    rounds: int | None = None
    median_ms: float | None = None
    min_ms: float | None = None
    iqr_ms: float | None = None
    tokens_per_s: float | None = None
    ratio: float | None = None
    peak_bytes: int | None = None
    loss: float | None = None

    @property
    def label(self) -> str:
        """Short name for messages."""
        return f"{super().label} {self.attention}"

    @property
    def section(self) -> str:
        """Tables of a result are by this."""
        return "train"


def row_without_times(cell: TrainCell, attention: str, status: str, note: str) -> TrainRow:
    """Return the row of what was skipped or failed."""
    return TrainRow(**dataclasses.asdict(cell), attention=attention, status=status, note=note)


def result_of(cell: TrainCell, attention: str, steps_ms: Sequence[float], peak_bytes: int, loss: float) -> Result:
    """Return the result of what was timed."""
    times = times_of(steps_ms)
    row = dataclasses.replace(
        row_without_times(cell, attention, "ok", ""),
        rounds=len(steps_ms),
        **times,
        tokens_per_s=1e3 * cell.batch * cell.seq / times["median_ms"],
        peak_bytes=peak_bytes,
        loss=loss,
    )
    return Result(row, {"step": tuple(steps_ms)})


def with_ratios(results: Sequence[Result]) -> list[Result]:
    """Return the results with the speed over that of sdpa filled in."""
    plain: Mapping[TrainCell, Sequence[float]] = {
        case_of(TrainCell, result.row): result.samples_ms["step"]
        for result in results
        if result.row.attention == "sdpa" and result.row.status == "ok"
    }

    def fill(result: Result) -> TrainRow:
        row: TrainRow = result.row
        of_sdpa = plain.get(case_of(TrainCell, row))
        if row.status != "ok" or of_sdpa is None:
            return row
        return dataclasses.replace(row, ratio=median_of_ratios(of_sdpa, result.samples_ms["step"]))

    return [dataclasses.replace(result, row=fill(result)) for result in results]


_CELL: dict[str, Callable[[TrainRow], str]] = {
    "model": lambda r: r.model if r.layers is None else f"{r.model}, {r.layers} layers",
    "dtype": lambda r: r.dtype,
    "B": lambda r: str(r.batch),
    "S": lambda r: str(r.seq),
    "checkpointing": lambda r: "yes" if r.checkpointing else "no",
}
_MEASURED: dict[str, Callable[[TrainRow], str]] = {
    "attention": lambda r: r.attention,
    "tokens/s": lambda r: number(r.tokens_per_s) if r.status == "ok" else f"{r.status}: {r.note}",
    "of sdpa": lambda r: ratio(r.ratio),
    "step ms": lambda r: times(r.median_ms, r.min_ms, r.iqr_ms),
    "peak memory": lambda r: size(r.peak_bytes),
    "loss": lambda r: number(r.loss, 6),
}
LAYOUT = Layout(TrainRow, {"train": _CELL | _MEASURED}, tuple(_CELL), ("step ms", "loss"))
