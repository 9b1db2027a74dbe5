"""Attention of torch's context parallel: scaled_dot_product_attention of DTensors whose rows are dealt to ranks.

``torch.distributed.tensor.experimental.context_parallel`` makes them of a program's tensors, and so do modules with
``_ContextParallel``, which is to follow it. torch's own ring knows operators of CUDA alone; this takes its place on CPU
and XPU tensors. Two private names of torch say whether its context parallel is on, and how rows were dealt; where a
release has others, calls stay torch's.

Of a load balancer torch remembers only that there is one: it must be the one of head and tail, as for torch's own ring.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_FUNCTION = "scaled_dot_product_attention"


def dealt() -> str | None:
    """Returns how torch's context parallel has dealt rows, in our words, or None where it is off.

    A DTensor does not say it: its second dimension is sharded with and without.
    """
    try:
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor.experimental._attention import _cp_options

        is_on = torch.ops.aten._scaled_dot_product_flash_attention.default in DTensor._op_dispatcher._custom_op_handlers
        balanced = _cp_options.enable_load_balance
    except (ImportError, AttributeError):
        return None
    return ("zigzag" if balanced else "ranges") if is_on else None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor | None:
    """Computes attention over the ranks of a mesh; returns None for a call that torch has to run."""
    from torch.distributed.tensor import DTensor, Shard

    shards = dealt()
    if shards is None or not all(type(x) is DTensor for x in (query, key, value)):
        return None
    mesh, placements = query.device_mesh, (Shard(2),)
    if any(x.device_mesh != mesh or tuple(x.placements) != placements or x.dim() != 4 for x in (query, key, value)):
        return None
    local: list[Tensor] = [x.to_local() for x in (query, key, value)]
    if not all(type(x) is Tensor for x in local) or query.device.type not in ("cpu", "xpu"):
        return None
    if (query.shape[1] != key.shape[1] and not enable_gqa) or (scale is not None and not math.isfinite(scale)):
        return None
    if attn_mask is not None:
        raise NotImplementedError(
            f"{_FUNCTION}: attn_mask must be None where torch's context parallel has dealt the rows of query, got "
            f"one of {list(attn_mask.shape)}"
        )
    from xeflash.distributed import context_parallel_attn_func

    q, k, v = (x.transpose(1, 2) for x in local)
    out = context_parallel_attn_func(
        q,
        k,
        v,
        dropout_p,
        scale,
        is_causal,
        group=mesh.get_group(),
        shards=shards if is_causal or dropout_p else "ranges",
    )
    result: Tensor = DTensor.from_local(out.transpose(1, 2), mesh, placements, run_check=False)
    return result
