"""Pictures of the results: tokens/s and TPOT against the context, tokens/s and memory of training by length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from xeflash.bench.llm.cells import TrainCell
from xeflash.bench.numbers import size
from xeflash.bench.plot import PlotError, powers_of_two, quartiles, require_matplotlib, spread, with_legend
from xeflash.bench.rows import Result


def _title(row: Any) -> str:
    """Returns what all rows of a row of panels have in common."""
    layers = "" if row.layers is None else f", {row.layers} layers"
    quantised = "" if row.weights == "same" else f", weights {row.weights}"
    title = f"{row.model}{layers}, {row.dtype}{quantised}, batch {row.batch}"
    if isinstance(row, TrainCell):
        return f"training {title}{', checkpointing' if row.checkpointing else ''}"
    return f"{title}, {f'beam search, {row.beams} beams' if row.beams > 1 else 'greedy'}"


# What a field would be if a call took so many times its median.
_SLOWED: dict[str, Callable[[float, float], float]] = {
    "tokens_per_s": lambda value, times: value / times,
    "median_ms": lambda value, times: value * times,
    "peak_bytes": lambda value, _: value,
}


def _lines(axis: Any, results: Sequence[Result], length: str, field: str, colors: Mapping[str, str]) -> None:
    """Draws `field` against `length`, both fields of the rows, a line for each way."""
    results = sorted(results, key=lambda result: int(getattr(result.row, length)))
    for name, color in colors.items():
        mine = [result for result in results if result.row.way == name]
        places, values = ([getattr(result.row, what) for result in mine] for what in (length, field))
        ends = [
            quartiles(x.samples_ms[name], lambda ms, x=x, value=value: _SLOWED[field](value, ms / x.row.median_ms))  # type: ignore[misc]
            for x, value in zip(mine, values, strict=True)
        ]
        if mine:
            look = {"fmt": "o-", "capsize": 3, "elinewidth": 1, "label": name, "color": color}
            axis.errorbar(places, values, yerr=spread(values, ends), **look)
    powers_of_two(axis, list(dict.fromkeys(getattr(result.row, length) for result in results)), f"{length}, tokens")


def _stacks(axis: Any, rows: Sequence[Any], colors: Mapping[str, str]) -> None:
    """Draws the time of a token as attention and what is not attention, a group of bars for each context."""
    names = [name for name in colors if any(row.way == name for row in rows)]
    contexts = sorted({row.context for row in rows})
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        mine = [row for row in rows if row.way == name]
        places = [contexts.index(row.context) + (i - (len(names) - 1) / 2) * width for row in mine]
        inside = [row.attention_ms or 0.0 for row in mine]
        outside = [row.median_ms - attention for row, attention in zip(mine, inside, strict=True)]
        axis.bar(places, outside, 0.9 * width, color="lightgray", label="other" if i == 0 else None)
        axis.bar(places, inside, 0.9 * width, bottom=outside, color=colors[name], label=f"attention, {name}")
    axis.set_xticks(range(len(contexts)), [str(context) for context in contexts])
    axis.set_xlabel("context, tokens")


def figure(results: Sequence[Result], device: str) -> Any:
    """Returns the picture as matplotlib's Figure: a row of panels for each model and kind of cell."""
    require_matplotlib()
    import matplotlib.figure

    results = [result for result in results if result.row.status == "ok" and result.row.tokens_per_s]
    titles = list(dict.fromkeys(_title(result.row) for result in results))
    if not titles:
        raise PlotError("bench: --plot has no timed case to draw")
    training = isinstance(results[0].row, TrainCell)
    colors = {name: f"C{i}" for i, name in enumerate(dict.fromkeys(result.row.way for result in results))}
    size_in = (11 if training else 15, min(10, 0.4 + 4.4 * len(titles)))
    figure: Any = matplotlib.figure.Figure(figsize=size_in, layout="constrained")
    for part, title in zip(figure.subfigures(len(titles), 1, squeeze=False)[:, 0], titles, strict=True):
        part.suptitle(f"{title}; {device}: median and quartiles")
        mine = [result for result in results if _title(result.row) == title]
        (_training_panels if training else _decode_panels)(part, mine, colors)
        with_legend(part)
    return figure


def _decode_panels(part: Any, mine: Sequence[Result], colors: Mapping[str, str]) -> None:
    left, middle, right = part.subplots(1, 3)
    _lines(left, mine, "context", "tokens_per_s", colors)
    left.set_ylabel("tokens/s")
    _lines(middle, mine, "context", "median_ms", colors)
    _stacks(right, [result.row for result in mine], colors)
    for axis in (middle, right):
        axis.set_ylabel("time per output token, ms")


def _training_panels(part: Any, mine: Sequence[Result], colors: Mapping[str, str]) -> None:
    left, right = part.subplots(1, 2)
    _lines(left, mine, "seq", "tokens_per_s", colors)
    left.set_ylabel("tokens/s")
    _lines(right, mine, "seq", "peak_bytes", colors)
    right.set_ylabel("peak memory")
    right.yaxis.set_major_formatter(lambda value, _place: size(int(value)))
