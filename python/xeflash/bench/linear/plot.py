"""A picture of the results: GB/s of the weights against rows, one panel for each type and kind of weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xeflash.bench.linear.rows import LinearRow
from xeflash.bench.plot import panels, powers_of_two, spread, with_legend
from xeflash.bench.rows import Result
from xeflash.bench.stats import summarize


def _line(axis: Any, results: Sequence[Result], form: Callable[[LinearRow], str | None], look: dict[str, Any]) -> None:
    """Draw the rates of a form by rows, with the quartiles as their spread."""
    here = [(result.row, result.samples_ms[name]) for result in results if (name := form(result.row))]
    times = [(row, summarize(samples)) for row, samples in here]
    usual = [1e-6 * row.bytes / t.median for row, t in times]
    ends = [[1e-6 * row.bytes / quartile for quartile in (t.quartile_1, t.quartile_3)] for row, t in times]
    if here:
        axis.errorbar([row.rows for row, _ in here], usual, yerr=spread(usual, ends), capsize=3, elinewidth=1, **look)


def _peak(axis: Any, rows: Sequence[LinearRow]) -> None:
    """Draw what the peak that holds each row allows: less where many rows are bound by arithmetic."""
    held = [row for row in rows if row.percent_of_peak and row.gbytes_per_s]
    peaks = [100 * row.gbytes_per_s / row.percent_of_peak for row in held if row.gbytes_per_s and row.percent_of_peak]
    if held:
        axis.plot([row.rows for row in held], peaks, color="black", linestyle="dotted", label="peak that holds each")


def figure(results: Sequence[Result], title: str) -> Any:
    """Return the picture as matplotlib's Figure."""
    results = [result for result in results if result.row.status == "ok"]
    kinds = list(dict.fromkeys((result.row.dtype, result.row.weights) for result in results))
    figure, axes = panels(len(kinds), f"{title}\nxeflash: solid; torch with such weights, best form: dashed")
    for axis, (dtype, weights) in zip(axes, kinds, strict=True):
        mine = [result for result in results if (result.row.dtype, result.row.weights) == (dtype, weights)]
        mine.sort(key=lambda result: int(result.row.rows))
        layers = dict.fromkeys((r.row.model, r.row.layer, r.row.outputs, r.row.inputs) for r in mine)
        for i, (model, name, outputs, inputs) in enumerate(layers):
            layer = (model, name, outputs, inputs)
            some = [r for r in mine if (r.row.model, r.row.layer, r.row.outputs, r.row.inputs) == layer]
            label = f"{model} {name} {outputs}x{inputs}".removeprefix("- - ")
            _line(axis, some, lambda _: "xeflash", {"fmt": "o-", "color": f"C{i}", "label": label})
            _line(axis, some, lambda row: row.torch_form, {"fmt": "x--", "color": f"C{i}"})
            _peak(axis, [result.row for result in some])
        ticks = sorted({result.row.rows for result in mine})
        powers_of_two(axis, ticks, "rows of x")
        axis.set_ylabel("GB/s of the weight")
        axis.set_title(f"{dtype}, weights {weights}")
    return with_legend(figure)
