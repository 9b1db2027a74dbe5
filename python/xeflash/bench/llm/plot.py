"""Pictures of the results: tokens/s and TPOT against the context, tokens/s and memory of training by length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from xeflash.bench.llm.rows import LlmRow
from xeflash.bench.llm.training_rows import TrainRow
from xeflash.bench.numbers import size
from xeflash.bench.plot import PlotError, require_matplotlib
from xeflash.bench.rows import Result


def _kind(row: LlmRow) -> tuple[object, ...]:
    """Rows of the same panels."""
    return row.model, row.layers, row.dtype, row.weights, row.batch, row.beams


def _title(row: LlmRow) -> str:
    layers = "" if row.layers is None else f", {row.layers} layers"
    search = f"beam search, {row.beams} beams" if row.beams > 1 else "greedy"
    quantised = "" if row.weights == "same" else f", weights {row.weights}"
    return f"{row.model}{layers}, {row.dtype}{quantised}, batch {row.batch}, {search}"


def _lines(axis: Any, rows: Sequence[Any], by: str, length: str, field: str, colors: dict[str, str]) -> None:
    """Draw `field` against `length`, both fields of the rows, a line for each value of the field `by`."""
    rows = sorted(rows, key=lambda row: int(getattr(row, length)))
    for name, color in colors.items():
        mine = [row for row in rows if getattr(row, by) == name]
        if mine:
            places, values = ([getattr(row, what) for row in mine] for what in (length, field))
            axis.plot(places, values, "o-", label=name, color=color)
    lengths = list(dict.fromkeys(getattr(row, length) for row in rows))
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [str(x) for x in lengths])
    axis.minorticks_off()
    axis.set_ylim(bottom=0)
    axis.set_xlabel(f"{length}, tokens")
    axis.grid(alpha=0.3)


def _stacks(axis: Any, rows: Sequence[LlmRow], names: Sequence[str], colors: dict[str, str]) -> None:
    contexts = sorted({row.context for row in rows})
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        mine = [row for row in rows if row.implementation == name]
        places = [contexts.index(row.context) + (i - (len(names) - 1) / 2) * width for row in mine]
        inside = [row.attention_ms or 0.0 for row in mine]
        outside = [(row.tpot_median_ms or 0.0) - (row.attention_ms or 0.0) for row in mine]
        axis.bar(places, outside, 0.9 * width, color="lightgray", label="other" if i == 0 else None)
        axis.bar(places, inside, 0.9 * width, bottom=outside, color=colors[name], label=f"attention, {name}")
    axis.set_xticks(range(len(contexts)), [str(context) for context in contexts])
    axis.set_xlabel("context, tokens")


def _colors(names: Iterable[str]) -> dict[str, str]:
    return {name: f"C{i}" for i, name in enumerate(dict.fromkeys(names))}


def plot(results: Sequence[Result], path: Path, device: str) -> None:
    """Write the picture; the file's suffix chooses its format."""
    require_matplotlib()
    import matplotlib.figure

    rows = [result.row for result in results if result.row.status == "ok" and result.row.tokens_per_s]
    kinds = list(dict.fromkeys(map(_kind, rows)))
    if not kinds:
        raise PlotError("bench: --plot has no timed case to draw")
    colors = _colors(row.implementation for row in rows)
    figure: Any = matplotlib.figure.Figure(figsize=(13, 0.4 + 3.8 * len(kinds)), layout="constrained")
    for part, kind in zip(figure.subfigures(len(kinds), 1, squeeze=False)[:, 0], kinds, strict=True):
        mine = [row for row in rows if _kind(row) == kind]
        present = [name for name in colors if any(row.implementation == name for row in mine)]
        part.suptitle(f"{_title(mine[0])}; {device}")
        left, middle, right = part.subplots(1, 3)
        _lines(left, mine, "implementation", "context", "tokens_per_s", colors)
        left.set_ylabel("tokens/s")
        left.legend(fontsize="small")
        _lines(middle, mine, "implementation", "context", "tpot_median_ms", colors)
        middle.set_ylabel("time per output token, ms")
        _stacks(right, mine, present, colors)
        right.set_ylabel("time per output token, ms")
        right.set_ylim(top=1.45 * right.get_ylim()[1])  # room for the legend
        right.legend(fontsize="small", loc="upper left")
    figure.savefig(path, dpi=100)


def _training_kind(row: TrainRow) -> str:
    """The title of the panels that a row belongs to."""
    layers = "" if row.layers is None else f", {row.layers} layers"
    checkpointing = ", checkpointing" if row.checkpointing else ""
    return f"training {row.model}{layers}, {row.dtype}, batch {row.batch}{checkpointing}"


def plot_training(results: Sequence[Result], path: Path, device: str) -> None:
    """Write the picture; the file's suffix chooses its format."""
    require_matplotlib()
    import matplotlib.figure

    rows = [result.row for result in results if result.row.status == "ok"]
    kinds = list(dict.fromkeys(map(_training_kind, rows)))
    if not kinds:
        raise PlotError("bench: --plot has no timed case to draw")
    colors = _colors(row.attention for row in rows)
    figure: Any = matplotlib.figure.Figure(figsize=(9, 0.4 + 3.8 * len(kinds)), layout="constrained")
    for part, kind in zip(figure.subfigures(len(kinds), 1, squeeze=False)[:, 0], kinds, strict=True):
        mine = [row for row in rows if _training_kind(row) == kind]
        part.suptitle(f"{kind}; {device}")
        left, right = part.subplots(1, 2)
        _lines(left, mine, "attention", "seq", "tokens_per_s", colors)
        left.set_ylabel("tokens/s")
        left.legend(fontsize="small")
        _lines(right, mine, "attention", "seq", "peak_bytes", colors)
        right.set_ylabel("peak memory")
        right.yaxis.set_major_formatter(lambda value, _place: size(int(value)))
    figure.savefig(path, dpi=100)
