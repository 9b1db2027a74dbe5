"""Decode context parallel of vLLM: the ranks of a group share a cache's keys and their heads.

    queries of all ranks' heads  ->  attend the keys that lie here  ->  each rank merges the parts of its own heads
    queries of the rank's heads  ->  attend the step's own keys, causal, which all ranks have  ->  merged with it

What a rank needs of the others is their LSE, (tokens, H) numbers in base e; +inf says that a row saw no key there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def local_lengths(lengths: Tensor, world: int, rank: int, interleave: int) -> Tensor:
    """Counts those of the first `lengths` keys that lie on a rank, where `interleave` keys in turn go to each rank."""
    rounds, remainder = lengths // (world * interleave), lengths % (world * interleave)
    return (rounds * interleave + (remainder - rank * interleave).clamp(0, interleave)).int()


def longest_local(longest: int, world: int, interleave: int) -> int:
    """Returns an upper bound of the keys that the longest sequence has on any rank."""
    return -(-longest // (world * interleave)) * interleave


def merge_over_ranks(out: Tensor, lse: Tensor, group: Any) -> tuple[Tensor, Tensor]:
    """Merges parts (tokens, H, D) and (H, tokens) of all ranks into (out, LSE) of this rank's heads.

    Sums are in fp32 until all parts are in them. `group` is vLLM's, which gathers and scatters.
    """
    heads = lse.shape[0] // group.world_size
    mine = slice(heads * group.rank_in_group, heads * (group.rank_in_group + 1))
    lse = lse.masked_fill(lse == torch.inf, -torch.inf)
    everyone = group.all_gather(lse[None].contiguous(), dim=0)  # (ranks, H, tokens)
    total = everyone.logsumexp(0)
    weight = (lse - total.masked_fill(total == -torch.inf, 0.0)).exp()
    part = torch.where(weight.mT[..., None] > 0, out.float() * weight.mT[..., None], 0.0)
    merged = group.reduce_scatter(part, dim=1)
    return merged.to(out.dtype), total[mine].masked_fill(total[mine] == -torch.inf, torch.inf).contiguous()
