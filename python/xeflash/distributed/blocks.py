"""A call over ranks, and its blocks: some of a rank's rows with some keys, and the places of both."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from xeflash.call.call import Call
from xeflash.call.ready import ready
from xeflash.call.schema import THD
from xeflash.distributed import part
from xeflash.distributed.shards import RANGES, Chunk, chunks_of

State = tuple[Tensor, Tensor]  # out and LSE, in fp32
Sums = tuple[Tensor | None, Tensor | None]  # sums of dK and dV
EVERY = slice(None)


@dataclass(frozen=True)
class Documents:
    """Packed sequences: int32 starts and their end among all tokens, and a copy in host memory where it is known."""

    starts: Tensor
    on_host: tuple[int, ...] | None
    longest: int

    def between(self, q: Chunk, k: Chunk) -> dict[str, Any]:
        """Returns keywords for the rows and keys of two chunks; documents without rows here keep their places."""
        begin = self.starts[:-1]
        return {
            "cu_seqlens_q": self.starts.clamp(q.start, q.start + q.rows) - q.start,
            "cu_seqlens_k": self.starts.clamp(k.start, k.start + k.rows) - k.start,
            "max_seqlen_q": min(self.longest, q.rows),
            "max_seqlen_k": min(self.longest, k.rows),
            "q_start": begin.clamp(min=q.start) - begin if q.start else 0,
            "k_start": begin.clamp(min=k.start) - begin if k.start else 0,
        }

    def meet(self, q: Chunk, k: Chunk) -> bool:
        """Returns whether a document may have rows in q and keys in k; True where only a device knows."""
        if self.on_host is None:
            return True
        low, high = max(q.start, k.start), min(q.start + q.rows, k.start + k.rows)
        if low < high:
            return True
        first, last = (q.start + q.rows, k.start) if q.start < k.start else (k.start + k.rows, q.start)
        # One that begins before `first` ends beyond `last`.
        return any(a < first and b > last for a, b in itertools.pairwise(self.on_host))


@dataclass(frozen=True)
class Block:
    """Rows of q and keys of a shard that one launch takes."""

    rows: slice
    keys: slice
    q: Chunk
    k: Chunk
    masked: bool = True  # by the call's mask; else all of these rows see all of these keys
    first: bool = False  # the one block of its rows that has the sinks


@dataclass(frozen=True)
class Spread:
    """A call over ranks: all that its ranks and blocks have in common."""

    call: Call  # but for tensors; right of its window 0 if it is causal, which it says in no other way
    learned: tuple[str, ...]  # "alibi_slopes", "s_aux", "captures['NAME']": the tensors that follow q, k and v
    documents: Documents | None
    all_heads: int
    first_head: int = 0
    ready: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)  # results that were computed before

    @property
    def function(self) -> str:
        """Returns the name of the public function, for messages."""
        return self.call.function

    @property
    def layout(self) -> int:
        """Returns the layout of the call."""
        return self.call.layout

    @property
    def left(self) -> int:
        """Returns the left side of the window; -1 means no limit."""
        return int(self.call["window_left"])

    @property
    def right(self) -> int:
        """Returns the right side of the window; -1 means no limit, and 0 is causal."""
        return int(self.call["window_right"])

    @property
    def dim(self) -> int:
        """Returns the dimension of q, k and v that is the sequence."""
        return 0 if self.layout == THD else 1

    @property
    def by_order(self) -> bool:
        """Returns whether blocks need no positions: there is no mask, or each row sees all that comes before it."""
        shifts = "score_mod" in self.call or "alibi_slopes" in self.learned or self.call["dropout_p"] > 0
        return not shifts and self.left < 0 and self.right <= 0 and self.documents is None

    def from_head(self, first: int) -> Spread:
        """Returns a copy of the call for the heads from `first` on."""
        return replace(self, first_head=first)

    # ---- which blocks there are ------------------------------------------------------------------

    def sees(self, q: Chunk, k: Chunk) -> bool:
        """Returns whether some row of q may see some key of k."""
        nearest = k.start - (q.start + q.rows - 1), k.start + k.rows - 1 - q.start  # the range of key - row
        if (self.left >= 0 and nearest[1] < -self.left) or (self.right >= 0 and nearest[0] > self.right):
            return False
        return self.documents is None or self.documents.meet(q, k)

    def blocks(self, mine: Sequence[Chunk], theirs: Sequence[Chunk], own: bool) -> list[Block]:
        """Returns the blocks of one shard's rows with another shard's keys; `own` says that both are one shard."""
        pairs = [(q, k) for q in mine for k in theirs if self.sees(q, k)]
        if not self.by_order or not pairs:
            return [Block(q.here, k.here, q, k, first=own and q.at == k.at) for q, k in pairs]
        rows, keys = _whole([q for q, _ in pairs]), _whole([k for _, k in pairs])
        return [Block(rows.here, keys.here, rows, keys, masked=own and self.right == 0, first=own)]

    def last_step(self, world: int, rows: int, keys: int, shards: str) -> int:
        """Returns the last step of a ring in which some rank sees a key; in step s keys come from s ranks before."""
        name = ("last step", world, rows, keys, shards)
        if name not in self.ready:
            of_q = [chunks_of(rank, world, rows, shards) for rank in range(world)]
            of_k = [chunks_of(rank, world, keys, shards) for rank in range(world)]
            needed = (
                step
                for step in range(world - 1, 0, -1)
                for rank in range(world)
                if any(self.sees(q, k) for q in of_q[rank] for k in of_k[rank - step])
            )
            self.ready[name] = next(needed, 0)
        found: int = self.ready[name]
        return found

    # ---- what runs -------------------------------------------------------------------------------

    def state(self, q: Tensor, v: Tensor) -> State:
        """Returns the state (out, LSE) of rows that have seen no key yet."""
        out = q.new_zeros((*q.shape[:-1], v.shape[-1]), dtype=torch.float32)
        shape = (q.shape[1], q.shape[0]) if self.layout == THD else (q.shape[0], q.shape[2], q.shape[1])
        return out, q.new_full(shape, -torch.inf, dtype=torch.float32)

    def add(self, block: Block, q: Tensor, k: Tensor, v: Tensor, state: State, learned: Mapping[str, Tensor]) -> None:
        """Attends from the rows of a block to its keys, and adds to `state`; k and v are those of the keys' shard."""
        at_q, at_k = self._at(block.rows), self._at(block.keys)
        out, lse = state
        part.attention_part(
            q[at_q], k[at_k], v[at_k], out[at_q], lse[..., block.rows], **self._keywords(block, learned)
        )

    def add_gradients(
        self,
        block: Block,
        inputs: tuple[Tensor, Tensor, Tensor],
        kept: tuple[Tensor, Tensor, Tensor],
        dq: Tensor | None,
        dkv: Sums,
        learned: Mapping[str, Tensor],
        learned_sums: dict[str, Tensor],
    ) -> None:
        """Computes the gradients of a block, and adds them to dq, to dkv and to those that `learned_sums` has.

        `inputs` are q, k and v; `kept` is dO, LSE and Delta.
        """
        at_q, at_k = self._at(block.rows), self._at(block.keys)
        (q, k, v), (dout, lse, delta), (dk, dv) = inputs, kept, dkv
        wanted = [name for name in learned_sums if name != "s_aux" or block.first]
        found = part.attention_part_backward(
            dout[at_q], q[at_q], k[at_k], v[at_k], lse[..., block.rows], delta[..., block.rows],
            *(None if x is None else x[at] for x, at in ((dq, at_q), (dk, at_k), (dv, at_k))),
            wanted=wanted, captures=list(_captured(learned).items()), **self._keywords(block, learned),
        )  # fmt: skip
        for name, x in found.items():
            learned_sums[name] += x

    def _at(self, rows: slice) -> tuple[slice, ...]:
        return (EVERY,) * self.dim + (rows,)

    def _keywords(self, block: Block, learned: Mapping[str, Tensor]) -> dict[str, Any]:
        names = [name for name in self.learned if name != "s_aux" or block.first]
        place: dict[str, Any] | None = {"q_start": block.q.start, "k_start": block.k.start}
        if self.documents is not None and (place := self.ready.get((block.q, block.k))) is None:
            place = self.ready[block.q, block.k] = self.documents.between(block.q, block.k)
        window = {"causal": self.right == 0} if block.masked else {"window_left": -1, "window_right": -1}
        heads = {"first_head": self.first_head, "all_heads": self.all_heads}
        tensors = [learned[name] for name in names]
        return ready(self.call.joined(names, tensors, **window, **(place or {}), **heads)).arguments


def _captured(learned: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name[len("captures['") : -2]: x for name, x in learned.items() if name.startswith("captures[")}


def _whole(chunks: Sequence[Chunk]) -> Chunk:
    """Joins chunks that lie beside each other into one."""
    at = min(chunk.at for chunk in chunks)
    return Chunk(0, max(chunk.at + chunk.rows for chunk in chunks) - at, at)


def whole(rows: int) -> tuple[Chunk, ...]:
    """Returns the one chunk that is a whole sequence."""
    return chunks_of(0, 1, rows, RANGES)


def each(spread: Spread, mine: Sequence[Chunk], keys: int) -> Iterator[Block]:
    """Yields the blocks of a shard's rows with all keys, which are here in their order."""
    if spread.by_order and spread.right < 0:
        mine = [_whole(mine)]
    (theirs,) = whole(keys)
    for q in mine:
        yield Block(q.here, theirs.here, q, theirs, first=True)
