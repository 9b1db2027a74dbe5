"""A picture of the results: one panel per phase and dtype, bars by case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xeflash.bench.rows import Result, Row

_UNITS = {"prefill": "GFLOP/s", "decode": "GB/s of K and V"}


class PlotError(RuntimeError):
    """matplotlib is missing, or there is nothing to draw."""


def _tick(row: Row) -> str:
    """Return what tells a case from the others of its panel."""
    length = row.seq_q if row.phase == "prefill" else row.seq_k
    return f"B{row.batch} H{row.heads}/{row.kv_heads}\nD{row.head_dim}\n{length}"


def _rate(row: Row, milliseconds: float | None) -> float:
    """Return what the bars show: arithmetic in prefill, reading in decode; 0 if not timed."""
    if milliseconds is None:
        return 0.0
    return 1e-6 * (row.case.flops if row.phase == "prefill" else row.case.kv_bytes) / milliseconds


def require_matplotlib() -> None:
    """Raise PlotError if matplotlib cannot be imported: asked before minutes of measuring."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise PlotError('bench: --plot needs matplotlib; install it with: pip install "xeflash[bench]"') from error


def plot(results: Sequence[Result], path: Path, title: str) -> None:
    """Write the picture; the file's suffix chooses its format."""
    require_matplotlib()
    import matplotlib.figure

    rows = [result.row for result in results if result.row.status == "ok"]
    panels = list(dict.fromkeys((row.phase, row.dtype) for row in rows))
    if not panels:
        raise PlotError("bench: --plot has no successful case to draw")
    figure: Any = matplotlib.figure.Figure(figsize=(8, 3.2 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axis, (phase, dtype) in zip(axes, panels, strict=True):
        mine = [row for row in rows if (row.phase, row.dtype) == (phase, dtype)]
        places = list(range(len(mine)))
        ours = [_rate(row, row.median_ms) for row in mine]
        axis.bar([p - 0.2 for p in places], ours, 0.4, label="xeflash")
        theirs = [_rate(row, row.torch_median_ms) for row in mine]
        axis.bar([p + 0.2 for p in places], theirs, 0.4, label="torch, best form")
        axis.set_xticks(places, [_tick(row) for row in mine], fontsize="small")
        axis.set_ylabel(_UNITS[phase])
        axis.set_title(f"{phase} {dtype}")
        axis.legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
