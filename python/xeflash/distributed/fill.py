"""Distribution of a prompt's keys, which a context-parallel prefill left in shards, to the ranks' caches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from xeflash.call.call import Call
from xeflash.call.schema import BSHD
from xeflash.distributed.agree import naming, together
from xeflash.distributed.decode_call import check_arrays, joined, longest, owners_of_cache, room_of
from xeflash.distributed.owners import checked_lengths
from xeflash.distributed.sharded_cache import append, rows_of
from xeflash.distributed.shards import ZIGZAG, check_shards, groups_of, pieces_of, undeal
from xeflash.distributed.transport import Group, all_gather


def fill_sharded_cache(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    cache_seqlens: int | Tensor | None = None,
    shards: str = ZIGZAG,
    owners: str = "pages",
    page: int | None = None,
    room: int | None = None,
    group: Group = None,
    block_table: Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    k_scale: Any = None,
    v_scale: Any = None,
) -> None:
    """Writes the keys and values of a prompt into the caches of all ranks, from the first position on.

    Each rank sends its shard to all, in one message, and takes its own positions of what comes: for that while it holds
    the K and V of all ranks, of one layer.

    Args:
        k, v: this rank's shard, (B, rows, Hk, D), as ``shard`` deals a sequence; keys are rotated already.
        k_cache, v_cache, owners, page, room, group, block_table, cache_batch_idx, k_scale, v_scale: as of
            context_parallel_with_kvcache.
        cache_seqlens: keys of each sequence, an int or int32 (B,); what is behind them is padding, and not written.
            Default all.
        shards: "zigzag" or "ranges".
    """
    function = "fill_sharded_cache"
    groups = groups_of(function, group)
    cache = {
        "k_cache": k_cache, "v_cache": v_cache, "block_table": block_table, "cache_batch_idx": cache_batch_idx,
        "k_scale": k_scale, "v_scale": v_scale,
    }  # fmt: skip
    dealing = {"owners": owners, "page": page, "room": room}
    given = {"function": function, "layout": BSHD, **cache, **dealing, "k": k, "v": v}
    call = Call({name: x for name, x in given.items() if x is not None or name in ("k_cache", "v_cache")})
    with together(function, groups, device=getattr(k, "device", None)) as facts:
        if len(groups) > 1:
            raise NotImplementedError(f"{function}: group must be one group, got {len(groups)}")
        check_shards(function, shards)
        check_arrays(call, "k")
        world = groups[0].size()
        pieces = pieces_of(world, shards) // world
        batch, total = k.shape[0], k.shape[1] * world
        if k.shape[1] % pieces:
            raise ValueError(f"{function}: k.shape[1] must be a multiple of {pieces} with {shards!r}, got {k.shape[1]}")
        dealt = owners_of_cache(call, groups[0])
        length = total if cache_seqlens is None else checked_lengths(function, cache_seqlens, batch, k.device, "k")
        if longest(length) > total:
            raise ValueError(
                f"{function}: cache_seqlens must be at most {total}, the rows of all, got {longest(length)}"
            )
        dealt.check_room(function, longest(length), room_of(call))
        facts |= {"k.shape": list(k.shape), "v.shape": list(v.shape), "k.dtype": k.dtype, "shards": shards}
        facts |= {"owners": owners, "page or room": dealt.page}
    both = torch.cat([k.flatten(2), v.flatten(2)], -1)
    with naming(function, groups):
        whole = undeal(all_gather(both, groups[0]), 1, shards)
    runs = dealt.runs(0, total)
    if not runs:
        return
    mine = joined(whole, runs)
    columns = k.shape[2] * k.shape[3]
    keys, values = mine[..., :columns].unflatten(-1, k.shape[2:]), mine[..., columns:].unflatten(-1, v.shape[2:])
    positions = joined(torch.arange(total, device=k.device)[None], runs).expand(batch, -1)
    kept = positions < (length[:, None] if isinstance(length, Tensor) else length)
    append(rows_of(call, keys.contiguous(), values.contiguous()), positions, dealt, call, kept)
