"""A toy model that decodes over ranks, from a prompt that lies in shards: its tokens are those of one process."""

import pytest
import ranks
import torch
import torch.distributed as dist
import xeflash
from xeflash.distributed.decode import context_parallel_with_kvcache
from xeflash.distributed.fill import fill_sharded_cache
from xeflash.distributed.owners import local_lengths, local_room
from xeflash.distributed.shards import shard

BATCH, HEADS, HEADS_K, DIM, WORDS = 2, 4, 2, 64, 50


def decode(group, start, steps, dealt, at_once, dtype):
    """(tokens over ranks, tokens of one process, keys here at the end), at_once tokens each time."""
    past = torch.randn(2, BATCH, start, HEADS_K, DIM, dtype=dtype)
    embed, head, places = (torch.randn(n, HEADS * DIM) for n in (WORDS, WORDS, steps))
    weights = [torch.randn(HEADS * DIM, n * DIM) / (HEADS * DIM) ** 0.5 for n in (HEADS, HEADS_K, HEADS_K)]
    end = start + steps * at_once
    world = dist.get_world_size(group)
    room = local_room(end, group=group, **dealt)
    if dealt["owners"] == "ranges":
        dealt = {**dealt, "room": room}
    caches = torch.zeros(2, BATCH, room, HEADS_K, DIM, dtype=dtype)
    whole = torch.zeros(2, BATCH, end, HEADS_K, DIM, dtype=dtype)
    whole[:, :, :start] = past
    padded = torch.nn.functional.pad(past, (0, 0, 0, 0, 0, -start % (2 * world)))
    fill_sharded_cache(*(shard(x, group=group) for x in padded), *caches, cache_seqlens=start, group=group, **dealt)

    def one(q, k, v, length):
        return xeflash.flash_attn_with_kvcache(q, *whole, k, v, cache_seqlens=length, causal=True)

    def many(q, k, v, length):
        return context_parallel_with_kvcache(q, *caches, k, v, cache_seqlens=length, causal=True, group=group, **dealt)

    found = []
    for attend in (many, one):
        tokens = torch.arange(BATCH * at_once).view(BATCH, at_once) % WORDS
        said = []
        for step in range(steps):
            x = embed[tokens] + places[step]
            q, k, v = ((x @ w / 2).unflatten(-1, (-1, DIM)).to(dtype) for w in weights)
            out = attend(q, k, v, start + step * at_once).float()
            out = x + 4 * out.flatten(2)
            tokens = (out @ head.T).argmax(-1)
            said.append(tokens)
        found.append(torch.stack(said).tolist())
    return *found, local_lengths(end, group=group, **dealt)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("owners", ["pages", "ranges"])
@pytest.mark.parametrize("start", [1, 1000, pytest.param(65536, marks=pytest.mark.wide)])
def test_tokens_are_those_of_one_process(start, owners, world):
    found = ranks.run(decode, start, 40, {"owners": owners}, 1, torch.float32, world=world)
    tokens = found[0][0]
    assert len({str(step) for step in tokens}) > 10  # they are not all the same
    for over_ranks, alone, _ in found:
        assert over_ranks == tokens and alone == tokens
    assert sum(length for *_, length in found) == start + 40


@pytest.mark.parametrize("owners", ["pages", "ranges"])
def test_four_tokens_at_once(owners):
    for over_ranks, alone, _ in ranks.run(decode, 70, 10, {"owners": owners}, 4, torch.float32, world=3):
        assert over_ranks == alone
