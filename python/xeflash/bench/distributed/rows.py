"""What is measured of context parallel, and the result as a flat row: the same fields in CSV, JSON and the table."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xeflash.bench.formats import Layout
from xeflash.bench.numbers import errors, number, ratio, size, timings
from xeflash.bench.rows import case_of
from xeflash.distributed.cost import BYTES, WAYS

ONE = "one process"  # a row beside those of the ways
TORCH_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class DistributedCase:
    """The attention of all ranks together; `seq` is the whole length."""

    dtype: str
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    seq: int
    causal: bool
    shards: str

    @property
    def label(self) -> str:
        """Short name for the progress bar and for messages."""
        mask = " causal" if self.causal else ""
        return f"{self.dtype} B{self.batch} H{self.heads}/{self.kv_heads} D{self.head_dim} {self.seq}{mask}"

    def shapes(self, world: int = 1) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Those of q and k of one of so many ranks."""
        rows = self.seq // world
        return (self.batch, rows, self.heads, self.head_dim), (self.batch, rows, self.kv_heads, self.head_dim)

    def bytes_of(self, copies_of_q: int, copies_of_kv: int, world: int = 1) -> int:
        """Bytes of so many tensors with the shape of q, and so many pairs with that of k and v."""
        rows = self.batch * self.seq // world * self.head_dim * BYTES[TORCH_NAMES[self.dtype]]
        return rows * (copies_of_q * self.heads + 2 * copies_of_kv * self.kv_heads)

    def memory_bytes(self, world: int) -> float:
        """Estimate of what all ranks together hold on one machine: inputs, the check in fp32, gathered keys."""
        whole = self.bytes_of(4, 2)
        return (2 + 8 // BYTES[TORCH_NAMES[self.dtype]]) * whole + world * 3 * whole


@dataclass(frozen=True)
class DistributedRow(DistributedCase):
    """A case by one way, or in one process. Times are milliseconds of the slowest rank; None is a number not known.

    Bytes and memory are those of the rank that has most; those that end in `_formula` come from shapes alone.
    """

    ranks: int
    way: str
    status: str
    note: str = ""
    rounds: int | None = None
    median_ms: float | None = None
    min_ms: float | None = None
    iqr_ms: float | None = None
    forward_ms: float | None = None
    backward_ms: float | None = None
    waited_ms: float | None = None
    speedup: float | None = None
    forward_bytes: int | None = None
    forward_bytes_formula: int | None = None
    backward_bytes: int | None = None
    backward_bytes_formula: int | None = None
    messages: int | None = None
    messages_formula: int | None = None
    peak_bytes: int | None = None
    peak_bytes_formula: int | None = None
    rss_growth_bytes: int | None = None
    max_error: float | None = None
    allowed_error: float | None = None

    @property
    def section(self) -> str:
        """There is one table."""
        return "context parallel"

    @property
    def case(self) -> DistributedCase:
        """The problem of this row."""
        return case_of(DistributedCase, self)


def _both(counted: int | None, formula: int | None, words: Callable[[int | None], str] = size) -> str:
    """What was counted, and the formula's number where it is another."""
    if counted is None or formula is None:
        return "-"
    return words(counted) if counted == formula else f"{words(counted)} ({words(formula)})"


_CELLS: dict[str, Callable[[Any], str]] = {
    "dtype": lambda r: r.dtype,
    "B": lambda r: str(r.batch),
    "Hq/Hkv": lambda r: f"{r.heads}/{r.kv_heads}",
    "D": lambda r: str(r.head_dim),
    "S": lambda r: str(r.seq),
    "causal": lambda r: "yes" if r.causal else "no",
    "shards": lambda r: r.shards,
    "ranks": lambda r: str(r.ranks),
    "way": lambda r: r.way,
    "ms": timings,
    "forward": lambda r: number(r.forward_ms),
    "backward": lambda r: number(r.backward_ms),
    "waited": lambda r: number(r.waited_ms),
    "speed": lambda r: ratio(r.speedup),
    "sent forward": lambda r: _both(r.forward_bytes, r.forward_bytes_formula),
    "sent backward": lambda r: _both(r.backward_bytes, r.backward_bytes_formula),
    "messages": lambda r: _both(r.messages, r.messages_formula, str),
    "memory": lambda r: size(r.peak_bytes),
    "formula": lambda r: size(r.peak_bytes_formula),
    "RSS": lambda r: size(r.rss_growth_bytes),
    "error / allowed": errors,
}
LAYOUT = Layout(
    DistributedRow,
    {"context parallel": _CELLS},
    ("dtype", "B", "Hq/Hkv", "D", "S", "causal", "shards", "ranks"),
    ("error / allowed", "RSS", "messages", "formula", "backward", "forward"),
    "ms of both passes on the slowest rank: median (minimum, interquartile range); speed: one process's time / this; "
    "waited: ms that a rank stood still for others; sent: bytes of a rank, counted (by the formula, where it differs); "
    "memory: the peak of a rank above its inputs, formula: what shapes say of it; RSS: its growth",
)


def expand(
    dtypes: Sequence[str],
    batches: Sequence[int],
    heads: Sequence[int],
    kv_heads: Sequence[int],
    dims: Sequence[int],
    lengths: Sequence[int],
    causal: bool,
    shards: str,
) -> list[DistributedCase]:
    """Returns every case of the choices."""
    choices = itertools.product(dtypes, batches, heads, kv_heads, dims, lengths)
    cases = [DistributedCase(*choice, causal, shards) for choice in choices]
    for case in cases:
        if case.heads % case.kv_heads:
            raise ValueError(f"bench: --heads must be a multiple of --kv-heads, got {case.heads} and {case.kv_heads}")
    return cases


def check_cases(cases: Sequence[DistributedCase], world: int) -> None:
    """Raises if a length cannot be dealt to so many ranks."""
    for case in cases:
        chunks = 2 * world if case.shards == "zigzag" else world
        if case.seq % chunks:
            raise ValueError(
                f"bench: --seq must be a multiple of {chunks} for {world} ranks with --shards {case.shards}, "
                f"got {case.seq}"
            )


__all__ = ["LAYOUT", "ONE", "TORCH_NAMES", "WAYS", "DistributedCase", "DistributedRow", "check_cases", "expand"]
