"""What a call over ranks sends and holds: counted on each rank, for the tests of costs."""

import os

import torch
from xeflash.bench.memory import peak_of
from xeflash.distributed import arguments, context_parallel_attn_func
from xeflash.distributed.cost import cost
from xeflash.distributed.transport import traffic


def count(group, how, heads, kv_heads, dtype, backward):
    """(what was counted, the cost) of a call on shards of 128 rows."""
    world = group.size() if group is not None else torch.distributed.get_world_size()
    shapes = [(2, 128, n, 64) for n in (heads, kv_heads, kv_heads, heads)]
    *qkv, dout = (torch.randn(shape).to(getattr(torch, dtype)) for shape in shapes)
    for x in qkv:
        x.requires_grad_(backward)
    sent = {}

    def call():
        traffic.bytes = traffic.messages = 0
        out = context_parallel_attn_func(*qkv, causal=True, group=group, how=how)
        sent["forward"] = traffic.bytes, traffic.messages
        grads = torch.autograd.grad(out, qkv, dout) if backward else ()
        sent["both"] = traffic.bytes, traffic.messages
        return out, grads

    call()
    return {**sent, "memory": peak_of(call, "cpu")}, cost(*shapes[:2], dtype, world, how, backward=backward)


def count_of_auto(group, small):
    """Messages of a forward pass that auto chooses a way for, where the last rank's memory is `small`, or large."""
    rank, world = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    arguments._room.cache_clear()
    os.environ["LOCAL_WORLD_SIZE"] = str(10**9) if small and rank == world - 1 else "1"
    try:
        q, k, v = (torch.randn(1, 64, 4, 64) for _ in range(3))
        traffic.messages = 0
        context_parallel_attn_func(q, k, v, causal=True, group=group)
        return traffic.messages
    finally:
        del os.environ["LOCAL_WORLD_SIZE"]
        arguments._room.cache_clear()
