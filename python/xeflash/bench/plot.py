"""Pictures that fit a screen: panels in a grid, one legend below; and that of attention, a panel by phase and dtype."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from xeflash.bench.limits import words
from xeflash.bench.numbers import number
from xeflash.bench.rows import Result, Row
from xeflash.bench.stats import summarize

_DPI = 100  # a figure has at most 1600 x 1000 pixels
_PEAK_COLORS = {"arithmetic": "black", "memory": "tab:red", "L3": "tab:purple", "L2": "tab:brown"}
NameOf = Callable[[Result], str]  # of the form whose samples a bar shows; "" for none
Height = Callable[[Any, float], float]  # of a bar, by the result and the milliseconds of a call


class PlotError(RuntimeError):
    """matplotlib is missing, or there is nothing to draw."""


def require_matplotlib() -> None:
    """Raise PlotError if matplotlib cannot be imported: asked before minutes of measuring."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise PlotError('bench: --plot needs matplotlib; install it with: pip install "xeflash[bench]"') from error


def panels(count: int, title: str) -> tuple[Any, list[Any]]:
    """Return a figure and the axes of so many panels, as square a grid as there can be."""
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
    """Return the figure with the names of all its panels below them, where they hide nothing."""
    handles = {label: x for axis in figure.axes for x, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(len(handles), 6))
    return figure


def powers_of_two(axis: Any, ticks: Sequence[int], label: str) -> None:
    """Make the axis of lengths or counts logarithmic, with these ticks."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [str(x) for x in ticks])
    axis.minorticks_off()
    axis.set_ylim(bottom=0)
    axis.set_xlabel(label)
    axis.grid(alpha=0.3)


def save(figure: Any, path: Path) -> None:
    """Write the picture; the file's suffix chooses its format."""
    figure.savefig(path, dpi=_DPI)


def spread(middles: Sequence[float], ends: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Return what matplotlib draws as error bars between two ends of each, whichever is the upper one."""
    pairs = list(zip(middles, ends, strict=True))
    return [middle - min(both) for middle, both in pairs], [max(both) - middle for middle, both in pairs]


def bars(axis: Any, results: Sequence[Result], forms: Mapping[str, NameOf], height: Height) -> None:
    """Draw a bar for each form, by its label, of each result: the median, and the quartiles as its spread."""
    width = 0.8 / len(forms)
    for turn, (label, name_of) in enumerate(forms.items()):
        shift = width * (turn - (len(forms) - 1) / 2)
        here = [(i, x, x.samples_ms[name]) for i, x in enumerate(results) if (name := name_of(x)) in x.samples_ms]
        times = [(x, summarize(samples)) for _, x, samples in here]
        usual = [height(x, t.median) for x, t in times]
        ends = [[height(x, t.quartile_1), height(x, t.quartile_3)] for x, t in times]
        axis.bar(
            [i + shift for i, _, _ in here], usual, width,
            yerr=spread(usual, ends), capsize=3, error_kw={"elinewidth": 1}, label=label,
        )  # fmt: skip


def always(form: str) -> NameOf:
    """Return what names the same form of each result."""
    return lambda _: form


def of_forms(
    results: Sequence[Result],
    title: str,
    *,
    panel: Callable[[Any], Hashable],
    forms: Sequence[str],
    height: Height,
    unit: str,
    tick: Callable[[Any], str],
) -> Any:
    """Return a figure with a panel for each value of `panel`, and bars for all forms that were timed."""
    results = [result for result in results if result.row.status == "ok"]
    names = list(dict.fromkeys(panel(result.row) for result in results))
    figure, axes = panels(len(names), title)
    for axis, name in zip(axes, names, strict=True):
        mine = [result for result in results if panel(result.row) == name]
        timed = [form for form in forms if any(form in result.samples_ms for result in mine)]
        bars(axis, mine, {form: always(form) for form in timed}, height)
        axis.set_xticks(range(len(mine)), [tick(result.row) for result in mine], fontsize="small")
        axis.set_ylabel(unit)
        axis.set_title(str(name))
    return with_legend(figure)


_CASE: dict[str, Callable[[Row], str]] = {
    "batch": lambda row: str(row.batch),
    "query heads": lambda row: str(row.heads),
    "KV heads": lambda row: str(row.kv_heads),
    "head dim": lambda row: str(row.head_dim),
    "keys": lambda row: str(row.seq_k) if row.seq_k % 1024 else f"{row.seq_k // 1024}k",
}


def _rate(result: Result, milliseconds: float) -> float:
    """Return what the bars show: reading in decode, else arithmetic."""
    row = result.row
    return float(1e-6 * (row.kv_bytes if row.phase == "decode" else row.flops) / milliseconds)


def _names_of_peaks(results: Sequence[Result]) -> dict[str | None, str]:
    """Return one for each kind: peaks are measured beside each call, and differ a little."""
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


def _peaks(axis: Any, results: Sequence[Result], names: Mapping[str | None, str]) -> None:
    """Draw what each case would reach at the peak that holds it, a line over its bars."""
    held = [(i, result) for i, result in enumerate(results) if result.row.percent_of_peak]
    for bound_by in dict.fromkeys(result.row.bound_by for _, result in held):
        here = [(i, result) for i, result in held if result.row.bound_by == bound_by]
        tops = [_rate(result, result.row.median_ms) * 100 / result.row.percent_of_peak for _, result in here]
        ends = [(i - 0.5, i + 0.5) for i, _ in here]
        color = _PEAK_COLORS.get(bound_by, "black")
        axis.hlines(tops, *zip(*ends, strict=True), colors=color, linestyles="dashed", label=names[bound_by])


def figure(results: Sequence[Result], title: str) -> Any:
    """Return the picture as matplotlib's Figure; what all cases of a panel have in common is in its title."""
    results = [result for result in results if result.row.status == "ok"]
    names = list(dict.fromkeys((result.row.phase, result.row.dtype) for result in results))
    of_peaks = _names_of_peaks(results)
    figure, axes = panels(len(names), title)
    for axis, (phase, dtype) in zip(axes, names, strict=True):
        mine = [result for result in results if (result.row.phase, result.row.dtype) == (phase, dtype)]
        forms = {"xeflash": always("xeflash")}
        if any(result.row.torch_form for result in mine):
            forms["torch, best form"] = lambda result: result.row.torch_form or ""
        bars(axis, mine, forms, _rate)
        _peaks(axis, mine, of_peaks)
        ticks = {name: [tick(result.row) for result in mine] for name, tick in _CASE.items()}
        others = [name for name, texts in ticks.items() if len(set(texts)) > 1] or ["keys"]
        common = [f"{name} {texts[0]}" for name, texts in ticks.items() if name not in others]
        labels = ["\n".join(texts) for texts in zip(*(ticks[name] for name in others), strict=True)]
        axis.set_xticks(range(len(mine)), labels, fontsize="small")
        axis.set_xlim(-0.6, len(mine) - 0.4)
        axis.set_xlabel("; ".join(others))
        axis.set_ylabel("GB/s of K and V" if phase == "decode" else "GFLOP/s")
        axis.set_title(", ".join([f"{phase} {dtype}", *common]), fontsize="medium")
    return with_legend(figure)
