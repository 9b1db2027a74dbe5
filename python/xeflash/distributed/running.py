"""A call from its arguments to its results."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from xeflash.call.call import Call
from xeflash.distributed import agree
from xeflash.distributed.arguments import read
from xeflash.distributed.gradients import Attention, settled
from xeflash.distributed.shards import groups_of


def run(call: Call) -> Any:
    """Runs a call: all ranks agree on it, then attend."""
    groups = groups_of(call.function, call.get("group"))
    device = call["q"].device if isinstance(call["q"], Tensor) else None
    with agree.together(call.function, groups, device=device) as facts:
        job, tensors, more = read(call.with_("group"), groups)
        facts |= more
    job = settled(job, facts)
    out, lse = Attention.apply(job, *tensors)
    if not job.wants_lse:
        return out
    return (out, lse) if job.lse_alone else (out, lse, None)
