"""Attention in a ring: keys travel from rank to rank, and each rank adds what its rows see of them to an fp32 state.

    forward:   a rank attends to its own keys while they travel to the next; W - 1 hops, K and V in one message.
    backward:  keys travel once more, and the sums of dK and dV, in fp32, behind them. What a rank adds to its own keys
               stays, so a sum starts at the next rank, and is at home after W - 1 hops, too.

Steps behind the last one in which any rank sees a key, by a window or in documents, are neither computed nor sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from xeflash.distributed import transport
from xeflash.distributed.blocks import Block, Spread, State
from xeflash.distributed.shards import chunks_of


@dataclass(frozen=True)
class Pair:
    """K and V, or their gradients, in one piece of memory."""

    buffer: Tensor
    of_k: tuple[int, ...]
    of_v: tuple[int, ...]

    @classmethod
    def of(cls, k: Tensor, v: Tensor) -> Pair:
        """Copies k and v into one buffer."""
        return cls(torch.cat([k.reshape(-1), v.reshape(-1)]), tuple(k.shape), tuple(v.shape))

    @classmethod
    def zeros(cls, k: Tensor, v: Tensor) -> Pair:
        """Returns zeros in fp32, in which gradients of k and v are summed."""
        return cls(k.new_zeros(k.numel() + v.numel(), dtype=torch.float32), tuple(k.shape), tuple(v.shape))

    def at(self, buffer: Tensor) -> Pair:
        """Returns a pair of the same shapes in another buffer."""
        return Pair(buffer, self.of_k, self.of_v)

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        """Returns views of k and v."""
        k, v = self.buffer.split([self.buffer.numel() - _elements(self.of_v), _elements(self.of_v)])
        return k.view(self.of_k), v.view(self.of_v)


def _elements(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


class Way:
    """The ring of a group; rows and keys are those of a shard."""

    def __init__(self, spread: Spread, group: dist.ProcessGroup, shards: str, rows: int, keys: int) -> None:
        self.spread, self.group, self.rank, self.world = spread, group, group.rank(), group.size()
        self.mine = chunks_of(self.rank, self.world, rows, shards)
        self.theirs = [chunks_of(rank, self.world, keys, shards) for rank in range(self.world)]
        self.last = spread.last_step(self.world, rows, keys, shards)

    def blocks(self, step: int) -> list[Block]:
        """Returns the blocks that this rank computes in a step."""
        source = (self.rank - step) % self.world
        return self.spread.blocks(self.mine, self.theirs[source], own=step == 0)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, learned: Mapping[str, Tensor]) -> State:
        """Computes (out, LSE) of this rank's rows, in fp32; the LSE of a row without a key is -inf."""
        state = self.spread.state(q, v)
        ring = transport.Ring(self.group)
        pair = Pair.of(k, v) if self.last else None
        for step in range(self.last + 1):
            if pair is not None:
                if step < self.last:
                    ring.start(pair.buffer)
                k, v = pair.both
            for block in self.blocks(step):
                self.spread.add(block, q, k, v, state, learned)
            if pair is not None and step < self.last:
                pair = pair.at(ring.wait())
        return state

    def backward(
        self,
        inputs: tuple[Tensor, Tensor, Tensor],
        kept: tuple[Tensor, Tensor, Tensor],
        dq: Tensor | None,
        wants_kv: bool,
        learned: Mapping[str, Tensor],
        learned_sums: dict[str, Tensor],
    ) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """Computes dK and dV of this rank's keys, in fp32; adds to dq and to learned_sums.

        `kept` is dO, LSE and Delta.
        """
        q, k, v = inputs
        ring, back = transport.Ring(self.group), transport.Ring(self.group)
        own = Pair.zeros(k, v) if wants_kv else None
        pair = Pair.of(k, v) if self.last else None
        for step in range(self.last + 1):
            if pair is not None:
                if step < self.last:
                    ring.start(pair.buffer)
                k, v = pair.both
            sums = own if step == 0 or own is None else Pair.zeros(k, v)
            dkv = (None, None) if sums is None else sums.both
            for block in self.blocks(step):
                self.spread.add_gradients(block, (q, k, v), kept, dq, dkv, learned, learned_sums)
            if pair is not None and step < self.last:
                pair = pair.at(ring.wait())
            if sums is not None and step:
                if step > 1:  # what other ranks added to the gradients of these keys came during the step
                    sums.buffer.add_(back.wait())
                back.start(sums.buffer)
        if own is None:
            return None, None
        if self.last:
            for _ in range(self.world - 1 - self.last):  # a ring that ended early sends sums on until they are home
                back.start(back.wait())
            own.buffer.add_(back.wait())
        return own.both
