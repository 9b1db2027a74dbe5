"""A paged cache, as servers such as vLLM keep it: sequences of any length share one pool of pages.

python python/examples/paged_cache.py
"""

import torch
from xeflash import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

device = "xpu" if torch.xpu.is_available() else "cpu"
torch.manual_seed(0)
heads, heads_k, dim, page = 8, 2, 64, 16
prompts, steps = [37, 5, 90], 12

k_pool, v_pool = (torch.zeros(40, page, heads_k, dim, device=device) for _ in range(2))
free = torch.randperm(40).tolist()
tables = [[free.pop() for _ in range(0, n + steps, page)] for n in prompts]  # the pages of each sequence, in order
block_table = torch.tensor(
    [t + [0] * (max(map(len, tables)) - len(t)) for t in tables], dtype=torch.int32, device=device
)

# A model would compute these for each token of each sequence.
q = [torch.randn(n + steps, heads, dim, device=device) for n in prompts]
k, v = ([torch.randn(n + steps, heads_k, dim, device=device) for n in prompts] for _ in range(2))

# Prefill: the prompts are packed, without padding. Their keys go to their slots, and attention reads the pages.
for table, n, keys, values in zip(block_table, prompts, k, v, strict=True):
    position = torch.arange(n, device=device)
    slots = table[position // page] * page + position % page
    k_pool.view(-1, heads_k, dim)[slots] = keys[:n]
    v_pool.view(-1, heads_k, dim)[slots] = values[:n]
starts = torch.tensor([0, *prompts], device=device).cumsum(0).int()
packed = torch.cat([x[:n] for x, n in zip(q, prompts, strict=True)])
out = flash_attn_varlen_func(
    packed, k_pool, v_pool, starts, starts, max(prompts), max(prompts), causal=True, block_table=block_table
)
outputs = [list(rows.unbind()) for rows in out.split(prompts)]

# Decode: each call appends one key per sequence to its pages, and attends.
lengths = torch.tensor(prompts, dtype=torch.int32, device=device)
for step in range(steps):
    new_q, new_k, new_v = (
        torch.stack([x[n + step] for x, n in zip(xs, prompts, strict=True)])[:, None] for xs in (q, k, v)
    )
    out = flash_attn_with_kvcache(
        new_q, k_pool, v_pool, new_k, new_v, cache_seqlens=lengths, block_table=block_table, causal=True
    )
    lengths += 1
    for rows, row in zip(outputs, out[:, 0], strict=True):
        rows.append(row)

errors = [
    (torch.stack(rows) - flash_attn_func(a[None], b[None], c[None], causal=True)[0]).abs().max().item()
    for rows, a, b, c in zip(outputs, q, k, v, strict=True)
]
print(f"sequences of {[n + steps for n in prompts]} tokens differ by {max(errors):.1e} from attention without pages")
assert max(errors) < 1e-5
