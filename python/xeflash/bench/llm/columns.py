"""The table of the language model benchmark."""

from __future__ import annotations

from collections.abc import Callable

from xeflash.bench.llm.rows import LlmRow
from xeflash.bench.numbers import number, percent, ratio, size

_CELL: dict[str, Callable[[LlmRow], str]] = {
    "model": lambda r: r.model if r.layers is None else f"{r.model}, {r.layers} layers",
    "dtype": lambda r: r.dtype,
    "weights": lambda r: r.weights,
    "B x beams": lambda r: f"{r.batch} x {r.beams}",
    "context": lambda r: str(r.context),
    "attention/cache": lambda r: r.implementation,
}
CASE = (*_CELL, "new")
DETAILS = ("mean", "p90", "of read peak", "KV GB/s", "copied / token", "peak memory", "in attention", "p99")
_COUNTS: dict[str, Callable[[LlmRow], str]] = {
    **_CELL,
    "instructions / token": lambda r: f"{r.instructions:,}" if r.instructions else f"{r.status}: {r.note}",
    "read": lambda r: size(r.read_bytes),
    "of K and V": lambda r: ratio(r.read_bytes / r.kv_bytes if r.read_bytes and r.kv_bytes else None),
    "written": lambda r: size(r.written_bytes),
    "launches": lambda r: str(r.launches),
}


def _per_second(row: LlmRow) -> float | None:
    """New tokens of all sequences over the whole time."""
    return 1e3 * row.batch * row.new_tokens / row.total_ms if row.total_ms else None


TABLES: dict[str, dict[str, Callable[[LlmRow], str]]] = {
    "decode": {
        **_CELL,
        "tokens/s": lambda r: number(r.tokens_per_s) if r.status == "ok" else f"{r.status}: {r.note}",
        "of sdpa": lambda r: ratio(r.ratio),
        "TTFT ms": lambda r: number(r.ttft_ms),
        "TPOT ms: median": lambda r: number(r.tpot_median_ms),
        "mean": lambda r: number(r.tpot_mean_ms),
        "p90": lambda r: number(r.tpot_p90_ms),
        "p99": lambda r: number(r.tpot_p99_ms),
        "in attention": lambda r: percent(r.attention_percent),
        "KV GB/s": lambda r: number(r.kv_gbytes_per_s),
        "of read peak": lambda r: f"{percent(r.percent_of_peak)} of {r.bound_by}" if r.bound_by else "-",
        "copied / token": lambda r: size(r.copied_bytes),
        "peak memory": lambda r: size(r.peak_bytes),
    },
    "counts": _COUNTS,
}
GENERATE_TABLES: dict[str, dict[str, Callable[[LlmRow], str]]] = {
    "decode": {
        **_CELL,
        "new": lambda r: str(r.new_tokens),
        "generate() ms": lambda r: number(r.total_ms) if r.status == "ok" else f"{r.status}: {r.note}",
        "new tokens/s": lambda r: number(_per_second(r)),
        "TTFT ms": lambda r: number(r.ttft_ms),
        "peak memory": lambda r: size(r.peak_bytes),
    },
    "counts": _COUNTS,
}
