"""Pictures of the results: tokens/s and TPOT against the context, tokens/s and memory of training by length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xeflash.bench.llm.rows import LlmRow
from xeflash.bench.llm.training_rows import TrainRow
from xeflash.bench.numbers import size
from xeflash.bench.plot import PlotError, powers_of_two, require_matplotlib, spread, with_legend
from xeflash.bench.rows import Result
from xeflash.bench.stats import summarize


def _title(row: LlmRow) -> str:
    layers = "" if row.layers is None else f", {row.layers} layers"
    search = f"beam search, {row.beams} beams" if row.beams > 1 else "greedy"
    quantised = "" if row.weights == "same" else f", weights {row.weights}"
    return f"{row.model}{layers}, {row.dtype}{quantised}, batch {row.batch}, {search}"


# What a field would be if a call took so many times its median.
_SLOWED: dict[str, Callable[[float, float], float]] = {
    "tokens_per_s": lambda value, times: value / times,
    "tpot_median_ms": lambda value, times: value * times,
    "peak_bytes": lambda value, _: value,
}


def _lines(axis: Any, results: Sequence[Result], by: str, length: str, field: str, colors: dict[str, str]) -> None:
    """Draw `field` against `length`, both fields of the rows, a line for each value of the field `by`."""
    results = sorted(results, key=lambda result: int(getattr(result.row, length)))
    for name, color in colors.items():
        mine = [result for result in results if getattr(result.row, by) == name]
        if not mine:
            continue
        places, values = ([getattr(result.row, what) for result in mine] for what in (length, field))
        times = [summarize([ms for series in result.samples_ms.values() for ms in series]) for result in mine]
        ends = [
            [_SLOWED[field](value, quartile / t.median) for quartile in (t.quartile_1, t.quartile_3)]
            for value, t in zip(values, times, strict=True)
        ]
        axis.errorbar(
            places, values, yerr=spread(values, ends), fmt="o-", capsize=3, elinewidth=1, label=name, color=color
        )
    lengths = list(dict.fromkeys(getattr(result.row, length) for result in results))
    powers_of_two(axis, lengths, f"{length}, tokens")


def _stacks(axis: Any, rows: Sequence[LlmRow], colors: dict[str, str]) -> None:
    names = [name for name in colors if any(row.implementation == name for row in rows)]
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


def _figure(
    results: Sequence[Result],
    device: str,
    width: float,
    by: str,
    title_of: Callable[[Any], str],
    draw: Callable[[Any, list[Result], dict[str, str]], None],
) -> Any:
    """Return a figure with a row of panels, which `draw` fills, for each title; colours are of the field `by`."""
    require_matplotlib()
    import matplotlib.figure

    titles = list(dict.fromkeys(title_of(result.row) for result in results))
    if not titles:
        raise PlotError("bench: --plot has no timed case to draw")
    colors = {name: f"C{i}" for i, name in enumerate(dict.fromkeys(getattr(result.row, by) for result in results))}
    figure: Any = matplotlib.figure.Figure(figsize=(width, min(10, 0.4 + 4.4 * len(titles))), layout="constrained")
    for part, title in zip(figure.subfigures(len(titles), 1, squeeze=False)[:, 0], titles, strict=True):
        part.suptitle(f"{title}; {device}: median and quartiles")
        draw(part, [result for result in results if title_of(result.row) == title], colors)
        with_legend(part)
    return figure


def figure(results: Sequence[Result], device: str) -> Any:
    """Return the picture as matplotlib's Figure: a row of panels for each model."""

    def draw(part: Any, mine: list[Result], colors: dict[str, str]) -> None:
        left, middle, right = part.subplots(1, 3)
        _lines(left, mine, "implementation", "context", "tokens_per_s", colors)
        left.set_ylabel("tokens/s")
        _lines(middle, mine, "implementation", "context", "tpot_median_ms", colors)
        middle.set_ylabel("time per output token, ms")
        _stacks(right, [result.row for result in mine], colors)
        right.set_ylabel("time per output token, ms")

    timed = [result for result in results if result.row.status == "ok" and result.row.tokens_per_s]
    return _figure(timed, device, 15, "implementation", _title, draw)


def _training_title(row: TrainRow) -> str:
    layers = "" if row.layers is None else f", {row.layers} layers"
    checkpointing = ", checkpointing" if row.checkpointing else ""
    return f"training {row.model}{layers}, {row.dtype}, batch {row.batch}{checkpointing}"


def training_figure(results: Sequence[Result], device: str) -> Any:
    """Return the picture as matplotlib's Figure: a row of panels for each model."""

    def draw(part: Any, mine: list[Result], colors: dict[str, str]) -> None:
        left, right = part.subplots(1, 2)
        _lines(left, mine, "attention", "seq", "tokens_per_s", colors)
        left.set_ylabel("tokens/s")
        _lines(right, mine, "attention", "seq", "peak_bytes", colors)
        right.set_ylabel("peak memory")
        right.yaxis.set_major_formatter(lambda value, _place: size(int(value)))

    timed = [result for result in results if result.row.status == "ok"]
    return _figure(timed, device, 11, "attention", _training_title, draw)
