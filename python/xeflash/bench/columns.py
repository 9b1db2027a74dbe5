"""The tables of the attention benchmark."""

from __future__ import annotations

from collections.abc import Callable

from xeflash.bench.limits import words
from xeflash.bench.numbers import errors, number, of_device, percent, ratio, size, timings, whole
from xeflash.bench.rows import Row

CASE = ("dtype", "B", "Hq/Hkv", "D", "S", "causal", "KV", "arch")
_SHARES: dict[str, Callable[[Row], str]] = {
    "threads": lambda r: whole(r.threads),
    "of device": lambda r: of_device(r.percent_of_device),
    "splits": lambda r: whole(r.splits),
    "partial": lambda r: size(r.partial_bytes),
}
DETAILS = ("error / allowed", *_SHARES, "per round", "plain torch", "torch form", "bound by", "% of peak")
LEGEND = (
    "times: median (minimum, interquartile range); torch: its fastest form; ratio: torch's time / ours, also as the "
    "median over rounds (per round), and for the form that a user writes first (plain torch); bound by: the peak that "
    "% of peak is of; threads: of the launch that scores, and of device: of those that it holds (a CPU: 4 work-items a "
    "core); splits: of the keys, and the memory of their partial results"
)
_COMMON: dict[str, Callable[[Row], str]] = {
    "dtype": lambda r: r.dtype,
    "B": lambda r: str(r.batch),
    "Hq/Hkv": lambda r: f"{r.heads}/{r.kv_heads}",
    "D": lambda r: str(r.head_dim),
}
_TIMES: dict[str, Callable[[Row], str]] = {
    "% of peak": lambda r: percent(r.percent_of_peak),
    "bound by": lambda r: words(r.bound_by, r.peak),
    "torch form": lambda r: r.torch_form or "-",
    "torch ms": lambda r: timings(r, "torch_"),
    "ratio": lambda r: ratio(r.ratio),
    "per round": lambda r: ratio(r.ratio_per_round),
    "plain torch": lambda r: ratio(r.plain_ratio),
    "error / allowed": errors,
}
_OURS: dict[str, Callable[[Row], str]] = {
    "arch": lambda r: r.arch or "-",
    "xeflash ms": timings,
}
_SEQUENCES: dict[str, Callable[[Row], str]] = {
    **_COMMON,
    "S": lambda r: str(r.seq_q),
    "causal": lambda r: "yes" if r.causal else "no",
    **_OURS,
    "GFLOP/s": lambda r: number(r.gflops),
    **_TIMES,
}
TABLES: dict[str, dict[str, Callable[[Row], str]]] = {
    "prefill": {**_SEQUENCES, **_SHARES},
    "backward": _SEQUENCES,
    "train": {
        **_SEQUENCES,
        "peak memory": lambda r: size(r.peak_bytes),
        "of torch": lambda r: size(r.torch_peak_bytes),
        "of eager": lambda r: size(r.eager_peak_bytes),
    },
    "decode": {
        **_COMMON,
        "KV": lambda r: str(r.seq_k),
        **_OURS,
        "GB/s of KV": lambda r: number(r.kv_gbytes_per_s),
        **_TIMES,
        **_SHARES,
    },
}
