"""Attention with rules of one's own: a line of C++ changes each score, and is compiled into the kernel.

python python/examples/score_mod.py
"""

import torch
from torch.nn.functional import scaled_dot_product_attention
from xeflash import attention

device = "xpu" if torch.xpu.is_available() else "cpu"
torch.manual_seed(0)
heads, tokens, far = 4, 300, 64
q, k, v = (torch.randn(1, heads, tokens, 64, device=device) for _ in range(3))

# Tokens see their own document only, up to themselves; a learned bias depends on head and distance, as in T5.
document = torch.arange(tokens, dtype=torch.int32, device=device) // 120
bias = torch.randn(heads, far, device=device)
out = attention(
    q,
    k,
    v,
    is_causal=True,
    score_mod="select(document[q_idx] == document[k_idx], s + bias(h, min(q_idx - k_idx, far - 1)), -inf)",
    captures={"document": document, "bias": bias, "far": far},
)

# PyTorch needs the mask of all heads, queries and keys in memory.
i, j = torch.arange(tokens, device=device)[:, None], torch.arange(tokens, device=device)
mask = bias[:, (i - j).clamp(0, far - 1)].masked_fill((document[:, None] != document) | (j > i), -torch.inf)
expected = scaled_dot_product_attention(q, k, v, mask)
error = (out - expected).abs().max().item()
captured = document.nbytes + bias.nbytes
print(f"they differ by {error:.1e}; PyTorch's mask takes {mask.nbytes} bytes, the captured arrays {captured}")
assert error < 1e-5
