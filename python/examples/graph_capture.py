"""A step of decoding that an XPUGraph captures once, and replays for other sequences: lengths and pages change.

python python/examples/graph_capture.py
"""

import sys

import torch
from torch.nn.functional import scaled_dot_product_attention
from xeflash import flash_attn_with_kvcache

if not torch.xpu.is_available():
    print("torch has no xpu device here, and only such a device captures graphs")
    sys.exit()

torch.manual_seed(0)
places, heads, heads_k, dim, page, longest = 4, 6, 2, 64, 16, 96

# The arrays of the graph: a replay reads what they hold then. The width of the table says how long sequences may be.
q = torch.zeros(places, 1, heads, dim, dtype=torch.bfloat16, device="xpu")
pages = torch.randn(2, places * longest // page, page, heads_k, dim, dtype=torch.bfloat16, device="xpu")
lengths = torch.zeros(places, dtype=torch.int32, device="xpu")
table = torch.zeros(places, longest // page, dtype=torch.int32, device="xpu")


def step():
    """Attends one query of each sequence to its keys."""
    return flash_attn_with_kvcache(q, *pages, cache_seqlens=lengths, block_table=table, causal=True)


step()  # compiles the kernel
torch.xpu.synchronize()
graph = torch.xpu.XPUGraph()
with torch.xpu.graph(graph):
    out = step()

errors = []
for sizes in ([37, 5, 90], [96, 1, 50, 12]):  # keys of the sequences; places without one have none
    order = torch.randperm(pages.shape[1]).int().view(places, -1)
    lengths.zero_()[: len(sizes)].copy_(torch.tensor(sizes))
    table.copy_(order)
    q.copy_(torch.randn(q.shape))
    graph.replay()
    found, rows, cache = (x.cpu().double().transpose(1, -2) for x in (out, q, pages.flatten(1, 2)))
    slots = (order[:, :, None] * page + torch.arange(page)).flatten(1)
    for place, size in enumerate(sizes):
        k, v = cache[:, :, slots[place, :size]]
        want = scaled_dot_product_attention(rows[place], k, v, enable_gqa=True)
        errors.append((found[place] - want).abs().max().item())
    assert not found[len(sizes) :].any()
print(f"two replays, of 3 and of 4 sequences, differ by {max(errors):.1e} from attention in float64")
assert max(errors) < 1e-2
