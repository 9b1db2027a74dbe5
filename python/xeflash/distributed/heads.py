"""Attention of some heads to the whole sequence: ranks exchange shards of all heads for all rows of some heads.

    forward:   one all-to-all of q, k and v, one of the output.
    backward:  one of dO, one of dq, dk and dv.

W has to divide the heads of q. If it does not divide the heads of k and v, ranks send copies of them, so that each rank
has the keys that its own heads of q need: with G heads of q per head of k, a copy serves gcd(H / W, G) heads of q.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from xeflash.distributed import transport
from xeflash.distributed.shards import deal, undeal


class Exchange:
    """An exchange of heads for rows within a group; dimension `dim` is the sequence, and the next one the heads."""

    def __init__(self, group: dist.ProcessGroup, dim: int, shards: str, heads: int, heads_k: int) -> None:
        self.group, self.dim, self.shards, self.world = group, dim, shards, group.size()
        self.heads = heads // self.world  # heads of q on a rank
        self.first = self.heads * group.rank()
        per_key = heads // heads_k
        serves = math.gcd(self.heads, per_key)
        self.heads_k = heads_k
        self.sources = [first // per_key for first in range(0, heads, serves)]  # the head of k behind each that travels
        self.copies = len(self.sources) > heads_k

    @property
    def mine(self) -> slice:
        """Returns this rank's heads of q."""
        return slice(self.first, self.first + self.heads)

    def to_heads(self, *tensors: Tensor) -> list[Tensor]:
        """Turns shards with all heads into all rows of this rank's heads."""
        parts = [x.unflatten(self.dim + 1, (self.world, -1)).movedim(self.dim + 1, 0) for x in tensors]
        return [undeal(x, self.dim, self.shards) for x in self._swap(parts)]

    def to_rows(self, *tensors: Tensor) -> list[Tensor]:
        """Turns all rows of this rank's heads back into its shard with all heads."""
        parts = [deal(x, self.dim, self.world, self.shards) for x in tensors]
        return [x.movedim(0, self.dim + 1).flatten(self.dim + 1, self.dim + 2) for x in self._swap(parts)]

    def spread(self, x: Tensor) -> Tensor:
        """Returns k or v with the copies of heads that are sent."""
        if not self.copies:
            return x
        return x.index_select(self.dim + 1, torch.tensor(self.sources, device=x.device))

    def collect(self, dx: Tensor) -> Tensor:
        """Sums the gradients of copied heads, in fp32 and in their order."""
        if not self.copies:
            return dx
        parts = dx.float().unbind(self.dim + 1)
        sums: list[Tensor | None] = [None] * self.heads_k
        for part, source in zip(parts, self.sources, strict=True):
            before = sums[source]
            sums[source] = part if before is None else before + part
        return torch.stack([x for x in sums if x is not None], self.dim + 1)

    def lse_to_rows(self, lse: Tensor) -> Tensor:
        """Turns an LSE (..., heads, rows) of this rank's heads into its rows of all heads."""
        (found,) = self._swap([deal(lse, lse.dim() - 1, self.world, self.shards)])
        return found.movedim(0, -3).flatten(-3, -2)

    def lse_to_heads(self, lse: Tensor) -> Tensor:
        """Turns an LSE of this rank's rows of all heads into all rows of its heads."""
        (found,) = self._swap([lse.unflatten(-2, (self.world, -1)).movedim(-3, 0)])
        return undeal(found, found.dim() - 2, self.shards)

    def _swap(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Exchanges tensors (ranks, ...) with the group in one message; returns what other ranks had for this one."""
        flat = [x.flatten(1) for x in parts]
        found = transport.all_to_all(flat[0] if len(flat) == 1 else torch.cat(flat, 1), self.group)
        pieces = found.split([x.shape[1] for x in flat], 1)
        return [x.unflatten(1, like.shape[1:]) for x, like in zip(pieces, parts, strict=True)]
