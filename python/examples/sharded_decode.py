"""A cache that is larger than a device: the keys of a long prompt lie on all ranks, and each new token attends to all.

torchrun --nproc-per-node 2 python/examples/sharded_decode.py
"""

import os

import torch
import torch.distributed as dist
import xeflash.distributed as cp
from xeflash import flash_attn_func

device = f"xpu:{os.environ['LOCAL_RANK']}" if torch.xpu.is_available() else "cpu"
if device != "cpu":
    torch.xpu.set_device(device)
dist.init_process_group("xpu:xccl,cpu:gloo" if device != "cpu" else "gloo")
torch.manual_seed(0)
batch, heads, heads_k, dim = 1, 8, 2, 64
prompt, steps = 1024, 20

# A model would compute these for each token, rotated already; they are the same on all ranks.
q = torch.randn(batch, prompt + steps, heads, dim, device=device)
k, v = (torch.randn(batch, prompt + steps, heads_k, dim, device=device) for _ in range(2))

# Each rank has room for its part of the keys.
room = cp.local_room(prompt + steps)
k_cache, v_cache = (torch.zeros(batch, room, heads_k, dim, device=device) for _ in range(2))

# Prefill: each rank has a shard of the prompt. Its keys go to the ranks that keep them, by pages in turn.
shards = [cp.shard(x[:, :prompt]) for x in (q, k, v)]
outputs = [cp.unshard(cp.context_parallel_attn_func(*shards, causal=True))]
cp.fill_sharded_cache(*shards[1:], k_cache, v_cache)

# Decode: all ranks have the new token; one of them keeps its key, and all get the same output.
for length in range(prompt, prompt + steps):
    new = slice(length, length + 1)
    outputs.append(
        cp.context_parallel_with_kvcache(q[:, new], k_cache, v_cache, k[:, new], v[:, new], cache_seqlens=length)
    )
out = torch.cat(outputs, 1)

error = (out - flash_attn_func(q, k, v, causal=True)).abs().max().item()
if dist.get_rank() == 0:
    total = prompt + steps
    print(f"{total} keys on {dist.get_world_size()} ranks, {room} rows each, differ by {error:.1e} from one process")
assert error < 1e-5
dist.destroy_process_group()
