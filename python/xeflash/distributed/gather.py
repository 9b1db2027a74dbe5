"""Attention to all keys, which each rank gathers: one or two calls per shard, and the bits of one process.

forward:   one all-gather of K and V in one message.
backward:  it gathers them again, as a layer that kept them would hold the keys of all ranks until then; dK and dV of
           all keys, in fp32, go to their ranks through one all-to-all, and are summed in the order of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from xeflash.distributed import transport
from xeflash.distributed.blocks import Spread, State, each
from xeflash.distributed.ring import Pair
from xeflash.distributed.shards import chunks_of, deal, undeal


class Way:
    """A way that gathers the keys of a group, or without a group takes those that are here."""

    def __init__(self, spread: Spread, group: dist.ProcessGroup | None, shards: str, rows: int, keys: int) -> None:
        self.spread, self.group, self.shards = spread, group, shards
        rank: int = 0 if group is None else group.rank()
        self.world: int = 1 if group is None else group.size()
        self.blocks = list(each(spread, chunks_of(rank, self.world, rows, shards), keys * self.world))

    def _gathered(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.world == 1:
            return k, v
        found = transport.all_gather(Pair.of(k, v).buffer, self.group)
        of_k, of_v = (found[:, : k.numel()], k.shape), (found[:, k.numel() :], v.shape)
        k, v = (undeal(x.unflatten(1, shape), self.spread.dim, self.shards) for x, shape in (of_k, of_v))
        return k, v

    def forward(self, q: Tensor, k: Tensor, v: Tensor, learned: Mapping[str, Tensor]) -> State:
        """Computes (out, LSE) of this rank's rows, in fp32; the LSE of a row without a key is -inf."""
        state = self.spread.state(q, v)
        k, v = self._gathered(k, v)
        for block in self.blocks:
            self.spread.add(block, q, k, v, state, learned)
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
        q, of_k, of_v = inputs
        k, v = self._gathered(of_k, of_v)
        sums = tuple(torch.zeros_like(x, dtype=torch.float32) for x in (k, v)) if wants_kv else (None, None)
        for block in self.blocks:
            self.spread.add_gradients(block, (q, k, v), kept, dq, sums, learned, learned_sums)
        dk, dv = sums
        if dk is None or dv is None:
            return None, None
        if self.world == 1:
            return dk, dv
        del k, v
        parts = [deal(x, self.spread.dim, self.world, self.shards).flatten(1) for x in (dk, dv)]
        found = transport.all_to_all(torch.cat(parts, 1), self.group)
        total = found[0]
        for other in found[1:]:
            total += other
        dk, dv = Pair(total, tuple(of_k.shape), tuple(of_v.shape)).both
        return dk, dv
