"""A decode loop by hand: one call per layer and token rotates the new key, appends it to the cache, and attends.

python python/examples/decode.py
"""

import torch
from xeflash import flash_attn_func, flash_attn_with_kvcache

device = "xpu" if torch.xpu.is_available() else "cpu"
torch.manual_seed(0)
batch, heads, heads_k, dim, room = 2, 8, 2, 64, 128
prompt, steps = 50, 20

# A model would compute these for each token: queries, keys and values before rotation.
q = torch.randn(batch, prompt + steps, heads, dim, device=device)
k, v = (torch.randn(batch, prompt + steps, heads_k, dim, device=device) for _ in range(2))
angles = torch.arange(room, device=device)[:, None] * 10000 ** (-torch.arange(dim // 2, device=device) * 2 / dim)
rotary = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin(), "rotary_interleaved": False}

k_cache, v_cache = (torch.zeros(batch, room, heads_k, dim, device=device) for _ in range(2))
lengths = torch.zeros(batch, dtype=torch.int32, device=device)
outputs = []
for begin, end in [(0, prompt), *((i, i + 1) for i in range(prompt, prompt + steps))]:
    new = slice(begin, end)
    outputs.append(
        flash_attn_with_kvcache(
            q[:, new], k_cache, v_cache, k[:, new], v[:, new], cache_seqlens=lengths, causal=True, **rotary
        )
    )
    lengths += end - begin
out = torch.cat(outputs, 1)


def rotated(x):
    """Rotates x as the cache's calls rotate queries and new keys."""
    cos, sin = (t[: x.shape[1], None] for t in (angles.cos(), angles.sin()))
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


# The same in a single call.
whole = flash_attn_func(rotated(q), rotated(k), v, causal=True)
error = (out - whole).abs().max().item()
print(f"{prompt} tokens at once and {steps} one by one: they differ by {error:.1e} from {prompt + steps} at once")
assert error < 1e-5
