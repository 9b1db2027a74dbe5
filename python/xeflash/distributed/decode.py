"""Attention of new tokens on a cache that lies on all ranks of a group.

context:   each rank, its keys of the cache      -> (out, LSE)
gather:    one message per rank                  -> (out, LSE) of all ranks
new keys:  several queries, dealt pages, causal  -> (out, LSE) of the new keys, the same on each rank
merge:     all of these, in one order            -> the same bits on each rank
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from xeflash.api.attention.kv_cache import attend_cache
from xeflash.api.attention.merge import merge_states
from xeflash.call.bind import public
from xeflash.call.call import Call
from xeflash.call.schema import BSHD
from xeflash.distributed.agree import naming, together
from xeflash.distributed.decode_call import OF_CACHE, Part, read_call
from xeflash.distributed.sharded_cache import append, rows_of
from xeflash.distributed.shards import groups_of
from xeflash.distributed.transport import Group, all_gather

State = tuple[Tensor, Tensor]  # out (B, S, H, D) and LSE (B, H, S)


def gather_states(out: Tensor, lse: Tensor, group: Group) -> list[State]:
    """Gathers (out, LSE) of all ranks, in one message from each."""
    numbers = out.numel() * out.element_size()
    start = -(-numbers // 4) * 4
    end = start + lse.numel() * 4
    message = out.new_empty(-(-end // 16) * 16, dtype=torch.uint8)  # kernels read 16 bytes at once
    message[:numbers].view(out.dtype).view(out.shape).copy_(out)
    message[start:end].view(torch.float32).view(lse.shape).copy_(lse)
    return [
        (x[:numbers].view(out.dtype).view(out.shape), x[start:end].view(torch.float32).view(lse.shape))
        for x in all_gather(message, group)
    ]


def _append(part: Part) -> list[State]:
    """Writes new keys that the call on the cache does not append itself; attends to them if they are seen apart."""
    if part.k is None or part.v is None:
        return []
    rows = rows_of(part.call, part.k, part.v)
    ending = []
    if part.is_apart:
        ending = [_state(part.call.with_(*OF_CACHE, **rows.arguments(), s_aux=part.sinks_apart, causal=True))]
    first = part.length[:, None] if isinstance(part.length, Tensor) else part.length
    positions = first + torch.arange(part.k.shape[1], device=part.k.device)
    append(rows, positions.expand(part.k.shape[:2]), part.owners, part.call)
    return ending


def _state(call: Call) -> State:
    out, lse = attend_cache(call.with_(return_lse=True))
    return out, lse


@public(BSHD, with_ranks=True)
def context_parallel_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    cache_seqlens: int | Tensor,
    owners: str = "pages",
    page: int | None = None,
    room: int | None = None,
    group: Group = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[Any] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    s_aux: Tensor | None = None,
    unified_max: float | None = None,
    k_scale: Any = None,
    v_scale: Any = None,
    score_mod: str | None = None,
    captures: Mapping[str, Any] | None = None,
) -> Any:
    """Computes flash_attn_with_kvcache on a cache whose keys lie on all ranks; q, k and v are the same on all.

    All ranks call it alike, get the same bits, and send one message of out and LSE each, whatever the context is.

    Args:
        k_cache, v_cache: this rank's keys of each sequence, in the order of their positions: (B_cache, rows, Hk, D), or
            (pages, page, Hk, D) with block_table. Their dtype is that of q, or has 8 bits.
        k, v: (B, new, Hk, D); the owner of a position writes it into its cache. All of them are attended.
        cache_seqlens: keys on all ranks together before the new ones, an int or int32 (B,). An int is faster.
        owners: "pages": position p belongs to rank p // page % ranks, which spreads keys evenly at any length.
            "ranges": rank r has positions r * room to (r + 1) * room. Windows, ALiBi, a score_mod of q_idx or k_idx,
            and causal with more queries than new keys need "ranges".
        page: the positions of a dealt page, by default 16. It may differ from the block_table's page.
        room: the positions of a range, by default all rows of the cache; it is required with block_table.
        group: of torch.distributed; default all processes.
        block_table, cache_batch_idx: where this rank's cache has its keys.
        rotary_cos, rotary_sin: rotate queries and new keys by their positions among the keys of all ranks.
        s_aux: counted once, as in one process.
        k_scale, v_scale: of this rank's cache.

    The others are as in flash_attn_with_kvcache. ``local_lengths`` says how many keys a rank has, ``local_room`` how
    many rows a cache needs, and ``fill_sharded_cache`` puts the keys of a prompt into the caches.
    """


@context_parallel_with_kvcache.body
def _(call: Call) -> Any:
    function, groups = call.function, groups_of(call.function, call.get("group"))
    call = call.with_("group", *(name for name, x in call.arguments.items() if x is None))
    with together(function, groups, device=getattr(call.get("q"), "device", None)) as facts:
        part = read_call(call, groups, facts)
    ending = _append(part)
    state = _state(part.call)
    with naming(function, groups):
        states = gather_states(*state, groups[0]) if groups[0].size() > 1 else [state]
    out, lse = merge_states(*states, *ending) if len(states) + len(ending) > 1 else state
    return (out, lse) if part.return_lse else out
