"""Cases of context parallel, their results as flat rows, and the table of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from xeflash.bench.cases import check_heads
from xeflash.bench.numbers import errors, number, per_round, size, timings
from xeflash.bench.rows import Timed
from xeflash.bench.tables import NONE, Cells, Layout
from xeflash.distributed.cost import BYTES

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
        """Returns a short name for the progress bar and for messages."""
        mask = " causal" if self.causal else ""
        return f"{self.dtype} B{self.batch} H{self.heads}/{self.kv_heads} D{self.head_dim} {self.seq}{mask}"

    def shapes(self, world: int = 1) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the shapes of q and k on one of `world` ranks."""
        rows = self.seq // world
        return (self.batch, rows, self.heads, self.head_dim), (self.batch, rows, self.kv_heads, self.head_dim)

    def bytes_of(self, copies_of_q: int, copies_of_kv: int, world: int = 1) -> int:
        """Returns the bytes of so many tensors with the shape of q, and so many pairs with that of k and v."""
        rows = self.batch * self.seq // world * self.head_dim * BYTES[TORCH_NAMES[self.dtype]]
        return rows * (copies_of_q * self.heads + 2 * copies_of_kv * self.kv_heads)

    def memory_bytes(self, world: int) -> float:
        """Returns an estimate of the bytes of all ranks on one machine: inputs, the check in fp32, gathered keys."""
        whole = self.bytes_of(4, 2)
        return (2 + 8 // BYTES[TORCH_NAMES[self.dtype]]) * whole + world * 3 * whole


@dataclass(frozen=True)
class DistributedRow(Timed, DistributedCase):
    """A case by one way, or in one process. Times are milliseconds of the slowest rank.

    Bytes and memory are those of the rank that has most; those that end in `_formula` come from shapes alone.
    """

    ranks: int = 1
    way: str = ONE
    forward_ms: float | None = None
    backward_ms: float | None = None
    waited_ms: float | None = None
    forward_bytes: int | None = None
    forward_bytes_formula: int | None = None
    backward_bytes: int | None = None
    backward_bytes_formula: int | None = None
    messages: int | None = None
    messages_formula: int | None = None
    peak_bytes_formula: int | None = None
    rss_growth_bytes: int | None = None

    section: ClassVar[str] = "context parallel"

    @property
    def label(self) -> str:
        """Returns a short name for messages."""
        return f"{super().label}, {self.way}"


def _both(counted: int | None, formula: int | None, words: Callable[[int | None], str] = size) -> str:
    """Returns what was counted, and the formula's number where it is another."""
    if counted is None or formula is None:
        return NONE
    return words(counted) if counted == formula else f"{words(counted)} ({words(formula)})"


_CASE: Cells = {
    "dtype": lambda r: r.dtype,
    "B": lambda r: str(r.batch),
    "Hq/Hkv": lambda r: f"{r.heads}/{r.kv_heads}",
    "D": lambda r: str(r.head_dim),
    "S": lambda r: str(r.seq),
    "causal": lambda r: "yes" if r.causal else "no",
    "shards": lambda r: r.shards,
    "ranks": lambda r: str(r.ranks),
}
_CELLS: Cells = {
    **_CASE,
    "way": lambda r: r.way,
    "ms": timings,
    "forward": lambda r: number(r.forward_ms),
    "backward": lambda r: number(r.backward_ms),
    "waited": lambda r: number(r.waited_ms),
    "speed": per_round,
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
    {DistributedRow.section: _CELLS},
    case=tuple(_CASE),
    details=("error / allowed", "RSS", "messages", "formula"),
    spare=("backward", "forward"),
    words={
        "ms": "both passes on the slowest rank: median (minimum, interquartile range)",
        "waited": "ms that a rank stood still for others",
        "speed": "median (lowest to highest) of a round's time of one process / this",
        "sent forward": "bytes of a rank, counted (by the formula, where it differs)",
        "memory": "the peak of a rank above its inputs",
        "formula": "what shapes say of it",
        "RSS": "its growth",
    },
)


def check_cases(cases: Sequence[DistributedCase], world: int) -> None:
    """Raises if heads do not divide, or a length cannot be dealt to so many ranks."""
    check_heads(cases)
    for case in cases:
        chunks = 2 * world if case.shards == "zigzag" else world
        if case.seq % chunks:
            raise ValueError(
                f"bench: --seq must be a multiple of {chunks} for {world} ranks with --shards {case.shards}, "
                f"got {case.seq}"
            )
