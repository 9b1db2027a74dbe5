"""Sparse attention of a video: each head lists blocks of keys, in two ways, and trains; other blocks take no time.

python python/examples/sparse_blocks.py --device cpu
"""

import argparse

import torch
from torch.nn.functional import scaled_dot_product_attention
from xeflash import attention

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cpu", help="a device of torch: cpu or xpu")
device = parser.parse_args().device
torch.manual_seed(0)
heads, dim, block = 4, 64, 64
frames, height, width = 8, 16, 16  # tokens of the video
cut = (4, 4, 4)  # frames, height and width of a cube of 64 tokens, which is a block

# Tokens lie cube by cube, so that a neighbourhood in the video is made of few blocks. Models reorder them once.
t, y, x = (n // c for n, c in zip((frames, height, width), cut, strict=True))  # cubes of each axis
cubes, tokens = t * y * x, frames * height * width
q, k, v = (torch.randn(1, heads, tokens, dim, device=device, requires_grad=True) for _ in range(3))
dout = torch.randn_like(q)

# Two heads see the cubes that touch their own. The two others see the quarter whose pooled scores are the largest.
places = torch.cartesian_prod(*(torch.arange(n, device=device) for n in (t, y, x)))
near = ((places[:, None] - places).abs().amax(-1) <= 1).expand(1, 2, cubes, cubes)
pooled_q, pooled_k = (x.detach()[:, 2:].unflatten(2, (cubes, block)).mean(3) for x in (q, k))
best = (pooled_q @ pooled_k.mT).topk(cubes // 4).indices
chosen = torch.zeros(1, 2, cubes, cubes, dtype=torch.bool, device=device).scatter(-1, best, True)
blocks = torch.cat([near, chosen], 1)  # (batch, heads, blocks of rows, blocks of keys)


def gradients(out):
    """Returns an output and the gradients of q, k and v."""
    return out, *torch.autograd.grad(out, (q, k, v), dout)


ours = gradients(attention(q, k, v, block_mask=blocks, block_size=block))

# PyTorch needs the mask of all heads, queries and keys in memory, and computes what it hides.
mask = blocks.repeat_interleave(block, 2).repeat_interleave(block, 3)
expected = gradients(scaled_dot_product_attention(q, k, v, mask))
for name, got, want in zip(("out", "dq", "dk", "dv"), ours, expected, strict=True):
    error = ((got - want).abs().max() / want.abs().max()).item()
    print(f"{name}: they differ by {error:.1e} of the largest")
    assert error < 1e-5
shares = ", ".join(f"{share:.2f}" for share in blocks.double().mean((0, 2, 3)).tolist())
print(
    f"heads list {shares} of {cubes} x {cubes} blocks; PyTorch's mask takes {mask.nbytes} bytes, ours {blocks.nbytes}"
)
