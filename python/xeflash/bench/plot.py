"""A picture of the results: one panel per phase and dtype, bars by case, with the quartiles of their samples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xeflash.bench.rows import Result, Row
from xeflash.bench.stats import summarize


class PlotError(RuntimeError):
    """matplotlib is missing, or there is nothing to draw."""


def _tick(row: Row) -> str:
    """Return what tells a case from the others of its panel, as the label of the axis explains it."""
    return f"{row.batch}, {row.heads}/{row.kv_heads}\n{row.head_dim}\n{row.seq_k}"


def _rate(row: Row, milliseconds: float) -> float:
    """Return what the bars show: reading in decode, else arithmetic."""
    return 1e-6 * (row.case.kv_bytes if row.phase == "decode" else row.case.flops) / milliseconds


def _bars(axis: Any, results: Sequence[Result], shift: float, label: str) -> None:
    """Draw the medians of a form, ours or torch's best, with the quartiles as their spread."""
    places, rates, below, above = [], [], [], []
    for place, result in enumerate(results):
        form = "xeflash" if label == "xeflash" else result.row.torch_form
        if form not in result.samples_ms:
            continue
        times = summarize(result.samples_ms[form])
        slow, usual, fast = (_rate(result.row, ms) for ms in (times.quartile_3, times.median, times.quartile_1))
        places.append(place + shift)
        rates.append(usual)
        below.append(usual - slow)
        above.append(fast - usual)
    axis.bar(places, rates, 0.4, yerr=(below, above), capsize=3, error_kw={"elinewidth": 1}, label=label)


def require_matplotlib() -> None:
    """Raise PlotError if matplotlib cannot be imported: asked before minutes of measuring."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise PlotError('bench: --plot needs matplotlib; install it with: pip install "xeflash[bench]"') from error


def figure(results: Sequence[Result], title: str) -> Any:
    """Return the picture as matplotlib's Figure."""
    require_matplotlib()
    import matplotlib.figure

    results = [result for result in results if result.row.status == "ok"]
    panels = list(dict.fromkeys((result.row.phase, result.row.dtype) for result in results))
    if not panels:
        raise PlotError("bench: --plot has no successful case to draw")
    figure: Any = matplotlib.figure.Figure(figsize=(8, 0.4 + 3.4 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axis, (phase, dtype) in zip(axes, panels, strict=True):
        mine = [result for result in results if (result.row.phase, result.row.dtype) == (phase, dtype)]
        _bars(axis, mine, -0.2, "xeflash")
        if any(result.row.torch_form for result in mine):
            _bars(axis, mine, 0.2, "torch, best form")
        axis.set_xticks(range(len(mine)), [_tick(result.row) for result in mine], fontsize="small")
        length, unit = ("keys", "GB/s of K and V") if phase == "decode" else ("tokens", "GFLOP/s")
        axis.set_xlabel(f"batch, query heads/KV heads; head dim; {length}")
        axis.set_ylabel(unit)
        axis.set_title(f"{phase} {dtype}: median and quartiles")
        axis.legend()
    figure.suptitle(title, fontsize="medium", wrap=True)
    return figure


def plot(results: Sequence[Result], path: Path, title: str) -> None:
    """Write the picture; the file's suffix chooses its format."""
    figure(results, title).savefig(path, dpi=120)
