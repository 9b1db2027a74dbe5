"""A picture of the results: GB/s of the weights against rows, one panel for each type and kind of weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xeflash.bench.linear.rows import LinearRow
from xeflash.bench.plot import PlotError, require_matplotlib
from xeflash.bench.rows import Result


def _rate(row: LinearRow, microseconds: float | None) -> float:
    return 1e-3 * (row.bytes or 0) / microseconds if microseconds else float("nan")


def plot(results: Sequence[Result], path: Path, title: str) -> None:
    """Write the picture; the file's suffix chooses its format."""
    require_matplotlib()
    import matplotlib.figure

    rows: list[LinearRow] = [result.row for result in results if result.row.status == "ok"]
    panels = list(dict.fromkeys((row.dtype, row.weights) for row in rows))
    if not panels:
        raise PlotError("bench: --plot has no successful case to draw")
    figure: Any = matplotlib.figure.Figure(figsize=(8, 0.4 + 3.6 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axis, (dtype, weights) in zip(axes, panels, strict=True):
        mine = [row for row in rows if (row.dtype, row.weights) == (dtype, weights)]
        for i, layer in enumerate(dict.fromkeys((row.model, row.layer, row.outputs, row.inputs) for row in mine)):
            some = [row for row in mine if (row.model, row.layer, row.outputs, row.inputs) == layer]
            some.sort(key=lambda row: row.rows)
            places, (model, name, outputs, inputs) = [row.rows for row in some], layer
            label = f"{model} {name} {outputs}x{inputs}".removeprefix("- - ")
            axis.plot(places, [_rate(row, row.median_us) for row in some], "o-", color=f"C{i}", label=label)
            if any(row.torch_median_us for row in some):
                axis.plot(places, [_rate(row, row.torch_median_us) for row in some], "x--", color=f"C{i}")
        ticks = sorted({row.rows for row in mine})
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [str(x) for x in ticks])
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.set_xlabel("rows of x")
        axis.set_ylabel("GB/s of the weight")
        axis.set_title(f"{dtype}, weights {weights}: xeflash (solid), torch with such weights (dashed)")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    figure.suptitle(title, fontsize="medium", wrap=True)
    figure.savefig(path, dpi=120)
