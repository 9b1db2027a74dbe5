"""A picture of the results: time, bytes and memory of each way, a column of panels for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xeflash.bench.distributed.rows import ONE, WAYS, DistributedRow
from xeflash.bench.plot import panels, with_legend
from xeflash.bench.rows import Result
from xeflash.bench.stats import summarize


def _tick(row: DistributedRow) -> str:
    mask = "" if row.causal else ", full"
    return f"{row.dtype}, {row.seq} tokens\n{row.heads}/{row.kv_heads} heads of {row.head_dim}{mask}"


def _bars(
    axis: Any,
    results: Sequence[Result],
    ways: Sequence[str],
    value: Callable[[DistributedRow], float | None],
    unit: float,
) -> None:
    """Draw a number of each way, a group of bars per case."""
    cases = list(dict.fromkeys(result.row.case for result in results))
    width = 0.8 / len(ways)
    for i, way in enumerate(ways):
        mine = {result.row.case: value(result.row) for result in results if result.row.way == way}
        places = [x for x, case in enumerate(cases) if mine.get(case) is not None]
        heights = [(mine[cases[x]] or 0) / unit for x in places]
        axis.bar([x + width * (i - (len(ways) - 1) / 2) for x in places], heights, width, label=way, color=_color(way))
    labels = {result.row.case: _tick(result.row) for result in results}
    axis.set_xticks(range(len(cases)), [labels[case] for case in cases], fontsize="small")


def _color(way: str) -> str:
    return f"C{[ONE, *WAYS].index(way)}"


def _spread(axis: Any, results: Sequence[Result], ways: Sequence[str]) -> None:
    """Draw the quartiles of the times."""
    cases = list(dict.fromkeys(result.row.case for result in results))
    width = 0.8 / len(ways)
    for result in results:
        place = cases.index(result.row.case) + width * (ways.index(result.row.way) - (len(ways) - 1) / 2)
        times = summarize(result.samples_ms[result.row.way])
        below, above = times.median - times.quartile_1, times.quartile_3 - times.median
        axis.errorbar(place, times.median, yerr=((below,), (above,)), color="black", capsize=3, elinewidth=1)


def figure(results: Sequence[Result], title: str) -> Any:
    """Returns the picture as matplotlib's Figure."""
    results = [result for result in results if result.row.status == "ok"]
    forms = [name for name in (ONE, *WAYS) if any(result.row.way == name for result in results)]
    ways = [name for name in forms if name != ONE]
    ranks = max((result.row.ranks for result in results), default=0)
    figure, (time, sent, memory) = panels(3 if results else 0, title)
    _bars(time, results, forms, lambda row: row.median_ms, 1)
    _spread(time, results, forms)
    time.set_ylabel("ms")
    time.set_title(f"forward and backward pass on {ranks} ranks: median and quartiles")
    if ways:
        _bars(sent, results, ways, lambda row: (row.forward_bytes or 0) + (row.backward_bytes or 0), 1e6)
    sent.set_ylabel("MB")
    sent.set_title("what a rank sends in both passes, counted")
    _bars(memory, results, forms, lambda row: row.peak_bytes, 1e6)
    memory.set_ylabel("MB")
    memory.set_title("peak memory of a rank, above its inputs")
    return with_legend(figure)
