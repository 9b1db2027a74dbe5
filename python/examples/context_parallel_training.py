"""A training step of a long sequence that lies on several devices: each has its shard of tokens, positions and labels.

torchrun --nproc-per-node 2 python/examples/context_parallel_training.py
"""

import os

import torch
import torch.distributed as dist
import xeflash.distributed as cp
from torch import nn
from torch.nn.functional import cross_entropy
from xeflash import flash_attn_func

device = f"xpu:{os.environ['LOCAL_RANK']}" if torch.xpu.is_available() else "cpu"
if device != "cpu":
    torch.xpu.set_device(device)
dist.init_process_group("xpu:xccl,cpu:gloo" if device != "cpu" else "gloo")
vocabulary, width, heads, heads_k, dim, length = 100, 256, 4, 2, 64, 256


class Layer(nn.Module):
    """Attention with rotated queries and keys. What makes it parallel is the function that it is given."""

    def __init__(self):
        super().__init__()
        self.q, self.kv = nn.Linear(width, heads * dim), nn.Linear(width, 2 * heads_k * dim)
        self.out, self.norm = nn.Linear(heads * dim, width), nn.LayerNorm(width)

    def forward(self, x, positions, attend):
        """Applies the layer; `positions` are those of the rows of x in the whole sequence."""
        y = self.norm(x)
        q = self.q(y).unflatten(-1, (heads, dim))
        k, v = self.kv(y).unflatten(-1, (2, heads_k, dim)).unbind(2)
        return x + self.out(attend(rotated(q, positions), rotated(k, positions), v, causal=True).flatten(2))


def rotated(x, positions):
    """Applies a rotary embedding to x."""
    angles = positions[:, None, None] * 1000 ** (-torch.arange(0, 1, 2 / dim, device=x.device))
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


torch.manual_seed(0)  # the same parameters and tokens on all ranks
embed, head = nn.Embedding(vocabulary, width).to(device), nn.Linear(width, vocabulary).to(device)
layers = nn.ModuleList(Layer() for _ in range(2)).to(device)
parameters = [*embed.parameters(), *layers.parameters(), *head.parameters()]
tokens = torch.randint(vocabulary, (1, length), device=device)
labels = torch.cat([tokens[:, 1:], torch.full_like(tokens[:, :1], -100)], 1)  # shifted before they are sharded


def sum_of_losses(tokens, labels, positions, attend):
    """Sums the losses over the tokens that have a label."""
    x = embed(tokens)
    for layer in layers:
        x = layer(x, positions, attend)
    return cross_entropy(head(x).flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")


# Each rank: its tokens, its labels, and where they are in the sequence.
mine, wanted, places = cp.shard(tokens), cp.shard(labels), cp.positions(length, device=device)
count = (wanted != -100).sum()
dist.all_reduce(count)  # ranks may have different numbers of labels: sums and counts are summed apart
loss = sum_of_losses(mine, wanted, places, cp.context_parallel_attn_func) / count
loss.backward()  # gradients of this rank's part of the mean; those of all ranks add up
for parameter in parameters:
    dist.all_reduce(parameter.grad)
total = loss.detach().clone()
dist.all_reduce(total)

# The same in one process.
gradients = [parameter.grad for parameter in parameters]
whole = sum_of_losses(tokens, labels, torch.arange(length, device=device), flash_attn_func) / (length - 1)
expected = torch.autograd.grad(whole, parameters)
error = max((a - b).abs().max().item() for a, b in zip(gradients, expected, strict=True))
if dist.get_rank() == 0:
    ranks = dist.get_world_size()
    print(f"loss {total.item():.6f} on {ranks} ranks, {whole.item():.6f} on one; gradients differ by {error:.1e}")
assert abs(total.item() - whole.item()) < 1e-5 and error < 1e-5
dist.destroy_process_group()
