"""A call over ranks in both directions: its ways, the tensors it keeps, and its autograd function.

Kept are q, k and v, the LSE, and the output in more than its 16 bits, as Delta = rowsum(dO O) needs them: the output
itself, which others keep anyway, and what rounding took from it, 2 bytes per element; or, where heads were exchanged
and nobody else has the output so, its fp32 state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from xeflash.distributed import agree, gather, part, ring
from xeflash.distributed.blocks import Spread
from xeflash.distributed.cost import choose
from xeflash.distributed.heads import Exchange
from xeflash.distributed.shards import RANGES
from xeflash.torch_ops.library import once

_UNITS = 256.0  # what rounding takes from the output is kept times this: it would be among fp16's least numbers


@dataclass(frozen=True)
class Choice:
    """The facts besides shapes from which how="auto" chooses a way, and the ways that it may choose."""

    dtype: torch.dtype
    backward: bool
    ways: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """A call, and the ways over its groups."""

    spread: Spread
    groups: tuple[dist.ProcessGroup, ...]
    ways: tuple[str, ...]  # a way for each group, the outer one first; empty until a way is chosen
    shards: str
    shapes: tuple[torch.Size, ...]  # shapes of q, k and v
    wants_lse: bool
    lse_alone: bool = False  # without flash-attn's third result
    auto: Choice | None = None
    number: int = 0  # the number of the call among those of its groups

    @cached_property
    def exchange(self) -> Exchange | None:
        """Returns the exchange of heads in the inner group, or None if no heads are exchanged."""
        if self.ways[-1] != "all_to_all":
            return None
        shards = RANGES if len(self.groups) == 2 else self.shards
        heads, heads_k = (shape[self.spread.dim + 1] for shape in self.shapes[:2])
        return Exchange(self.groups[-1], self.spread.dim, shards, heads, heads_k)

    @cached_property
    def way(self) -> ring.Way | gather.Way:
        """Returns the way that attends, with this rank's heads."""
        rows, keys = (shape[self.spread.dim] for shape in self.shapes[:2])
        if self.exchange is None:
            kind = ring.Way if self.ways[0] == "ring" else gather.Way
            return kind(self.spread, self.groups[0], self.shards, rows, keys)
        spread, world = self.spread.from_head(self.exchange.first), self.exchange.world
        if len(self.groups) == 1:
            return gather.Way(spread, None, RANGES, rows * world, keys * world)
        kind = ring.Way if self.ways[0] == "ring" else gather.Way
        return kind(spread, self.groups[0], self.shards, rows * world, keys * world)

    def _learned(self, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        """Returns learned tensors by name; slopes and sinks are cut to this rank's heads."""
        found = dict(zip(self.spread.learned, tensors, strict=True))
        if self.exchange is not None:
            for name in {"alibi_slopes", "s_aux"} & found.keys():
                found[name] = found[name][..., self.exchange.mine].contiguous()
        return found

    def forward(self, q: Tensor, k: Tensor, v: Tensor, learned: Sequence[Tensor], keep: bool) -> tuple[Any, ...]:
        """Computes (out, LSE, tensors for the backward pass)."""
        exchange, dtype = self.exchange, q.dtype
        if exchange is not None:
            q, k, v = exchange.to_heads(q, exchange.spread(k), exchange.spread(v))
        wide, lse = self.way.forward(q, k, v, self._learned(learned))
        lse.masked_fill_(lse == -torch.inf, torch.inf)  # flash-attn's LSE of rows that see no key
        out = wide.to(dtype)
        if exchange is not None:
            kept = (q, k, v, wide, None, lse)
            (out,) = exchange.to_rows(out)
            lse = exchange.lse_to_rows(lse) if self.wants_lse else lse
        elif keep and dtype is not torch.float32:
            kept = (q, k, v, out, wide.sub_(out).mul_(_UNITS).to(dtype), lse)
        else:
            kept = (q, k, v, out, None, lse)
        return out, lse, kept

    def backward(
        self,
        kept: Sequence[Any],
        learned: Sequence[Tensor],
        dout: Tensor,
        dlse: Tensor | None,
        wanted: Sequence[bool],
    ) -> list[Tensor | None]:
        """Computes the wanted gradients of q, k, v and of what is learned."""
        exchange, (q, k, v, out, residual, lse) = self.exchange, kept
        if exchange is not None:
            (dout,) = exchange.to_heads(dout)
            dlse = None if dlse is None else exchange.lse_to_heads(dlse)
        wide = out.float() if residual is None else torch.add(out, residual.float(), alpha=1 / _UNITS)
        delta = part.delta_of(dout, wide, dlse, self.spread.layout)
        del wide, out, residual
        dq = torch.zeros_like(q, dtype=torch.float32) if wanted[0] else None
        given = self._learned(learned)
        sums = {
            name: torch.zeros_like(given[name], dtype=torch.float32)
            for name, wants in zip(self.spread.learned, wanted[3:], strict=True)
            if wants
        }
        dk, dv = self.way.backward((q, k, v), (dout, lse, delta), dq, wanted[1] or wanted[2], given, sums)
        found = [None if x is None else x.to(q.dtype) for x in (dq, dk, dv)]
        if exchange is not None:
            moved = iter(exchange.to_rows(*(x for x in found if x is not None)))
            found = [None if x is None else next(moved) for x in found]
            found = [found[0], *(None if x is None else exchange.collect(x).to(q.dtype) for x in found[1:])]
            for name in {"alibi_slopes", "s_aux"} & sums.keys():
                shape = learned[self.spread.learned.index(name)].shape
                whole = sums[name].new_zeros(shape)
                whole[..., exchange.mine] = sums[name]
                sums[name] = whole
        found = [x if wants else None for x, wants in zip(found, wanted, strict=False)]
        dtypes = {name: x.dtype for name, x in zip(self.spread.learned, learned, strict=True)}
        return [*found, *(sums[name].to(dtypes[name]) if name in sums else None for name in self.spread.learned)]


class Attention(torch.autograd.Function):  # type: ignore[misc]
    """(out, LSE) of a job with its tensors."""

    @staticmethod
    def forward(ctx: Any, job: Job, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        """Keeps what the backward pass needs."""
        (q, k, v), learned = tensors[:3], tensors[3:]
        with agree.naming(job.spread.function, job.groups):
            out, lse, kept = job.forward(q, k, v, learned, any(ctx.needs_input_grad))
        ctx.job = job
        ctx.save_for_backward(*kept, *learned)
        ctx.set_materialize_grads(False)
        if not job.wants_lse:
            ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> Any:
        """Takes part in the backward pass of all ranks."""
        job, saved, wanted = ctx.job, ctx.saved_tensors, ctx.needs_input_grad[1:]
        return None, *once(
            job.spread.function, lambda: _backward(job, saved[:6], saved[6:], wanted, dout, dlse), dout, dlse
        )


def _backward(
    job: Job,
    kept: Sequence[Any],
    learned: Sequence[Tensor],
    wanted: Sequence[bool],
    dout: Tensor | None,
    dlse: Tensor | None,
) -> list[Tensor | None]:
    """Computes this rank's gradients, once all ranks agree that they are in the same backward pass."""
    passed = f"{job.spread.function} (backward pass)"
    with agree.together(passed, job.groups, device=kept[0].device) as facts:
        facts |= {"number of the forward pass": job.number, "gradients wanted of q, k, v": list(wanted[:3])}
        facts |= {"shapes": [list(x) for x in job.shapes]}
    q = kept[0]
    shape = (*job.shapes[0][:-1], job.shapes[2][-1])
    if dout is None:
        dout = q.new_zeros(()).expand(shape)
    if dlse is None and job.wants_lse and job.exchange is not None:  # other ranks may exchange theirs
        axes = (1, 0) if len(shape) == 3 else (0, 2, 1)
        dlse = q.new_zeros([shape[axis] for axis in axes], dtype=torch.float32)
    with agree.naming(passed, job.groups):
        return job.backward(kept, learned, dout, dlse, wanted)


def settled(job: Job, facts: dict[str, Any]) -> Job:
    """Returns the job with what ranks agreed on: dropout's seed and offset, and a way that fits into the least room."""
    (seed, offset), room, ways, auto = facts["seed"], facts["room"], job.ways, job.auto
    spread = replace(job.spread, call=job.spread.call.with_(seed=seed, offset=offset))
    if auto is not None:
        (q, k, v), world = job.shapes, job.groups[0].size()
        found = choose(q, k, auto.dtype, world, dim_v=v[-1], backward=auto.backward, memory_limit=room, ways=auto.ways)
        ways = (str(found.how),)
    return replace(job, spread=spread, ways=ways, number=facts["number"])
