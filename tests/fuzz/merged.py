"""Cases of merge_states: parts of the keys put together."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from arrays import DTYPES, from_array
from xeflash.selftest.reference import merged_reference

from .case import Case, way_of
from .draw import Draw

UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
EXP, LOG = 2.0**-20, 2.0**-21  # of hardware


def merge_states(draw: Draw) -> Case:
    kernel = draw.kernel()
    count = draw.of(1, 2, 2, 3, 8, 9, 17)
    batch, rows, heads = draw.batch(), draw.random.choice((0, 1, 2, 5, 23)), draw.heads()[0]
    lead = () if draw.chance(0.4) else (batch,)
    states = []
    for _ in range(count):
        out = draw.normal(*lead, rows, heads, kernel.dim) * draw.of(1, 1, 30)
        lse = draw.normal(*lead, heads, rows) * draw.of(1, 3, 30)
        blind = torch.rand(lse.shape, generator=draw.generator) < draw.of(0, 0, 0.3, 1)
        lse = draw.array(lse.masked_fill(blind, draw.of(torch.inf, -torch.inf)))
        blind = lse.values().isinf().transpose(-2, -1)[..., None]
        out = out.masked_fill(blind, draw.of(torch.nan, 0, 5)).to(DTYPES[kernel.dtype])
        states += [draw.array(out, distinct=True), lse]
    pairs = [(states[i], states[i + 1]) for i in range(0, len(states), 2)]
    arguments = {"states": states if draw.chance(0.5) else pairs}
    way = way_of(draw, arguments)
    if way == "operator":
        arguments = {"states": states}

    def check(result: Any) -> None:
        out, lse = (from_array(x, states[0].kind) for x in result)
        assert (out.shape, lse.shape) == (states[0].shape, states[1].shape), f"{list(out.shape)}, {list(lse.shape)}"
        assert (out.dtype, lse.dtype) == (states[0].dtype, torch.float32), f"{out.dtype}, {lse.dtype}"
        outs, lses = (torch.stack([x.values().double() for x in states[i::2]]).numpy() for i in (0, 1))
        want, want_lse, size = (torch.from_numpy(x) for x in merged_reference(outs, lses))
        spread = float(np.max(np.abs(lses), initial=0.0, where=np.isfinite(lses)))
        # A weight is as exact as the difference of logits of this size, the sum has a rounding for each part.
        weight_error = 2.0**-23 * (spread + count) + (EXP if draw.on_gpu else 2.0**-22)
        limit = UNIT[out.dtype] * want.abs() * 1.01 + weight_error * size + 2.0**-25 * (out.dtype is torch.float16)
        error = torch.where(out.double() == want, 0, (out.double() - want).abs())
        worst = (error / (limit + 1e-37)).nan_to_num(torch.inf)
        assert not (worst > 1).any(), f"out is {worst.max():.3g} times the limit away at {int(worst.argmax())}"
        error = torch.where(lse.double() == want_lse, 0, (lse.double() - want_lse).abs())
        limit_lse = 2.0**-23 * (spread + 4) + (LOG * 4 if draw.on_gpu else 2.0**-22)
        assert not (error.nan_to_num(torch.inf) > limit_lse).any(), f"the LSE is {error.max():.3g} away"

    return Case("merge_states", arguments, check, way)
