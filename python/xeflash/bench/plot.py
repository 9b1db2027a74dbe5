"""Pictures that fit a screen: panels in a grid, one legend below; and the picture of calls beside torch's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xeflash.bench.limits import words
from xeflash.bench.numbers import number
from xeflash.bench.rows import OURS, Result
from xeflash.bench.stats import summarize

_DPI = 100  # a figure has at most 1600 x 1000 pixels
_PEAK_COLORS = {"arithmetic": "black", "memory": "tab:red", "L3": "tab:purple", "L2": "tab:brown"}
_MANY = 12  # groups of bars above which their names stand upright


@dataclass(frozen=True)
class Picture:
    """The contents of a picture of calls beside torch's: a group of bars for each case, in panels.

    `panel` names the panel of a row, `ticks` tell its cases apart, and `reads` says what a row's bars are the rate of
    reading of; it is "" where they are that of arithmetic.
    """

    panel: Callable[[Any], str]
    ticks: Mapping[str, Callable[[Any], str]]
    reads: Callable[[Any], str] = lambda _: ""


class PlotError(RuntimeError):
    """matplotlib is missing, or there is nothing to draw."""


def require_matplotlib() -> None:
    """Raises PlotError if matplotlib cannot be imported: asked before minutes of measuring."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise PlotError('bench: --plot needs matplotlib; install it with: pip install "xeflash[bench]"') from error


def panels(count: int, title: str) -> tuple[Any, list[Any]]:
    """Returns a figure and the axes of so many panels, as square a grid as there can be."""
    if not count:
        raise PlotError("bench: --plot has no successful case to draw")
    require_matplotlib()
    import matplotlib.figure

    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    size = (min(16, 1 + 7 * columns), min(10, 1 + 4.5 * rows))
    figure: Any = matplotlib.figure.Figure(figsize=size, dpi=_DPI, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[count:]:
        axis.remove()
    figure.suptitle(title, fontsize="medium", wrap=True)
    return figure, axes[:count]


def with_legend(figure: Any) -> Any:
    """Returns the figure with the names of all its panels below them, where they hide nothing."""
    handles = {label: x for axis in figure.axes for x, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(len(handles), 6))
    return figure


def powers_of_two(axis: Any, ticks: Sequence[int], label: str) -> None:
    """Makes the axis of lengths or counts logarithmic, with these ticks."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [str(x) for x in ticks])
    axis.minorticks_off()
    axis.set_ylim(bottom=0)
    axis.set_xlabel(label)
    axis.grid(alpha=0.3)


def save(figure: Any, path: Path) -> None:
    """Writes the picture; the file's suffix chooses its format."""
    figure.savefig(path, dpi=_DPI)


def spread(middles: Sequence[float], ends: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Returns what matplotlib draws as error bars between two ends of each, whichever is the upper one."""
    pairs = list(zip(middles, ends, strict=True))
    return [middle - min(both) for middle, both in pairs], [max(both) - middle for middle, both in pairs]


def bars(
    axis: Any,
    heights: Mapping[str, Mapping[int, Sequence[float]]],
    labels: Sequence[str],
    colors: Mapping[str, str] | None = None,
) -> None:
    """Draws a group of bars for each label: one for each name of `heights`, at the places where it has some.

    A height is a middle, and perhaps the two ends of its spread.
    """
    width = 0.8 / max(1, len(heights))
    for turn, (name, found) in enumerate(heights.items()):
        shift = width * (turn - (len(heights) - 1) / 2)
        middles = [height[0] for height in found.values()]
        ends = spread(middles, list(found.values())) if any(len(height) > 1 for height in found.values()) else None
        axis.bar(
            [i + shift for i in found], middles, width, yerr=ends, capsize=3, error_kw={"elinewidth": 1}, label=name,
            color=(colors or {}).get(name),
        )  # fmt: skip
    axis.set_xticks(range(len(labels)), labels, fontsize="small", rotation=90 if len(labels) > _MANY else 0)


def quartiles(samples: Sequence[float], height: Callable[[float], float] = float) -> list[float]:
    """Returns the heights of a bar of these samples: at the median, and at both quartiles."""
    found = summarize(samples)
    return [height(x) for x in (found.median, found.quartile_1, found.quartile_3)]


def _rate(picture: Picture, row: Any) -> float:
    """Returns what the bars show of our time: the rate of reading, or of arithmetic."""
    return float(row.gbytes_per_s if picture.reads(row) else row.gflops)


def _names_of_peaks(results: Sequence[Result]) -> dict[str | None, str]:
    """Returns a name for each kind of peak: peaks are measured beside each call, and differ a little."""
    peaks: dict[str | None, list[float]] = {}
    for row in (result.row for result in results):
        if row.percent_of_peak and row.peak:
            peaks.setdefault(row.bound_by, []).append(row.peak)
    names = {}
    for bound_by, found in peaks.items():
        low, high = number(min(found)), number(max(found))
        text = words(bound_by, max(found))
        names[bound_by] = f"peak: {text if low == high else text.replace(high, f'{low} to {high}')}"
    return names


def _peaks(axis: Any, tops: Sequence[tuple[str | None, float | None]], names: Mapping[str | None, str]) -> None:
    """Draws what each case would reach at the peak that holds it, a line over its bars."""
    for kind in dict.fromkeys(bound_by for bound_by, top in tops if top is not None):
        here = [(i, top) for i, (bound_by, top) in enumerate(tops) if bound_by == kind and top is not None]
        lines = [i - 0.5 for i, _ in here], [i + 0.5 for i, _ in here]
        color = _PEAK_COLORS.get(str(kind), "black")
        axis.hlines([top for _, top in here], *lines, colors=color, linestyles="dashed", label=names[kind])


def _heights(
    picture: Picture, results: Sequence[Result], form_of: Callable[[Any], str | None]
) -> dict[int, list[float]]:
    """Returns the heights of a form's bars by the place of their case; `form_of` names the form of a row."""
    found = {}
    for i, result in enumerate(results):
        if form := form_of(result.row):
            work = _rate(picture, result.row) * result.row.median_ms
            found[i] = quartiles(result.samples_ms[form], lambda ms, work=work: work / ms)  # type: ignore[misc]
    return found


def _ticks(picture: Picture, rows: Sequence[Any]) -> tuple[list[str], list[str], list[str]]:
    """Returns the name of each case, what these names tell, and what all cases have in common."""
    ticks = {label: [text(row) for row in rows] for label, text in picture.ticks.items()}
    told = [label for label, texts in ticks.items() if len(set(texts)) > 1] or list(ticks)[-1:]
    common = [f"{label} {texts[0]}" for label, texts in ticks.items() if label not in told]
    return ["\n".join(texts) for texts in zip(*(ticks[label] for label in told), strict=True)], told, common


def figure(picture: Picture, results: Sequence[Result], title: str) -> Any:
    """Returns the picture as matplotlib's Figure; what all cases of a panel have in common is in its title."""
    results = [result for result in results if result.row.status == "ok"]
    names = list(dict.fromkeys(picture.panel(result.row) for result in results))
    names_of_peaks = _names_of_peaks(results)
    figure, axes = panels(len(names), title)
    for axis, name in zip(axes, names, strict=True):
        mine = [result for result in results if picture.panel(result.row) == name]
        rows = [result.row for result in mine]
        labels, told, common = _ticks(picture, rows)
        forms = {OURS: _heights(picture, mine, lambda _: OURS)}
        if torchs := _heights(picture, mine, lambda row: row.torch_form):
            forms["torch, best form"] = torchs
        bars(axis, forms, labels)
        tops = [100 * _rate(picture, row) / row.percent_of_peak if row.percent_of_peak else None for row in rows]
        _peaks(axis, [(row.bound_by, top) for row, top in zip(rows, tops, strict=True)], names_of_peaks)
        axis.set_xlim(-0.6, len(mine) - 0.4)
        axis.set_xlabel("; ".join(told))
        axis.set_ylabel(f"GB/s of {read}" if (read := picture.reads(rows[0])) else "GFLOP/s")
        axis.set_title(", ".join([name, *common]), fontsize="medium")
    return with_legend(figure)
