"""Greedy decoding with a tree of guesses: each step verifies several continuations at once, and keeps the right one.

python python/examples/tree_of_guesses.py --device cpu
"""

import argparse
import sys

import torch
from torch.nn.functional import linear, rms_norm
from xeflash import flash_attn_with_kvcache, keep_rows, pack_tree_mask

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cpu", help="a device of torch: cpu or xpu")
device = parser.parse_args().device
torch.manual_seed(0)
vocabulary, width, heads, heads_k, dim, layers = 1000, 256, 4, 2, 64, 2
batch, prompt, new = 3, 20, 60  # sequences, their tokens, and the tokens to generate

# The tree: a node for each path of guesses, by the ranks of its tokens. Parents come first, as their keys do.
PATHS = [(), (0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (2, 0), (0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0, 0, 0)]
nodes, levels = len(PATHS), max(map(len, PATHS)) + 1
parents = [PATHS.index(path[:-1]) for path in PATHS]  # the root is its own
depths = torch.tensor([len(path) for path in PATHS], dtype=torch.int32, device=device)
sees = pack_tree_mask(torch.tensor([[path[: len(other)] == other for other in PATHS] for path in PATHS], device=device))
room = prompt + new + levels + nodes

# A language model of two layers, with random weights.
embedding, head = (torch.randn(vocabulary, width, device=device) for _ in range(2))
weights = [
    [torch.randn(rows * dim, width, device=device) / width**0.5 for rows in (heads, heads_k, heads_k, heads)]
    for _ in range(layers)
]
angles = torch.arange(room, device=device)[:, None] * 10000 ** (-torch.arange(dim // 2, device=device) * 2 / dim)
rotary = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin(), "rotary_interleaved": False}

# A draft of it: the model without its layers, whose best tokens after each token can be listed.
draft = linear(rms_norm(embedding, (width,)), head).topk(3).indices


def next_tokens(tokens, caches, lengths, **attention):
    """Returns the best token after each of (batch, tokens), whose keys and values are appended to the caches."""
    x = embedding[tokens]
    for (wq, wk, wv, wo), cache in zip(weights, caches, strict=True):
        q, k, v = (linear(rms_norm(x, (width,)), w).unflatten(-1, (-1, dim)) for w in (wq, wk, wv))
        out = flash_attn_with_kvcache(q, *cache, k, v, cache_seqlens=lengths, **rotary, **attention)
        x = x + linear(out.flatten(-2), wo) * 0.5
    return linear(rms_norm(x, (width,)), head).argmax(-1)


def read(prompts):
    """Returns the caches of prompts, their lengths, and the first token after each."""
    caches = [torch.zeros(2, batch, room, heads_k, dim, device=device).unbind() for _ in range(layers)]
    lengths = torch.zeros(batch, dtype=torch.int32, device=device)
    tokens = next_tokens(prompts, caches, lengths, causal=True)[:, -1]
    return caches, lengths + prompt, tokens


def generate(prompts):
    """Returns new tokens (batch, new), one of each sequence a step."""
    caches, lengths, token = read(prompts)
    text = [token]
    for step in range(new - 1):
        token = next_tokens(token[:, None], caches, lengths + step, causal=True)[:, 0]
        text.append(token)
    return torch.stack(text, 1)


def generate_with_guesses(prompts):
    """Returns new tokens (batch, new), and how many of them each step gave to each sequence (steps, batch)."""
    caches, lengths, root = read(prompts)
    keys, values = zip(*caches, strict=True)
    text, gains = torch.zeros(batch, new + 2 * levels, dtype=torch.int64, device=device), []
    text[:, 0] = root
    while bool((goes_on := lengths < prompt + new - 1).any()):  # the only thing that waits for the device
        # The root is the last token of the text, which has no key yet; all other nodes are guesses.
        tokens = [root]
        for path, parent in zip(PATHS[1:], parents[1:], strict=True):
            tokens.append(draft[tokens[parent], path[-1]])

        # One call per layer verifies them. Nodes of one depth have one position.
        positions = lengths[:, None] + depths
        best = next_tokens(torch.stack(tokens, 1), caches, lengths, tree_mask=sees, rotary_positions=positions)

        # A node is right if its parent is, and if its token is the best one after its parent: one of a depth at most.
        right = [goes_on]  # sequences that are done keep no node
        for node in range(1, nodes):
            right.append(right[parents[node]] & (tokens[node] == best[:, parents[node]]))
        numbers = torch.where(torch.stack(right, 1), torch.arange(nodes, device=device), -1)
        accepted = torch.stack([numbers[:, depths == depth].amax(1) for depth in range(levels)], 1)

        # The keys of right nodes move together. Those behind them are written over by the next step.
        keep_rows(keys, values, accepted, lengths)
        found, gain = best.gather(1, accepted.clamp(0)), (accepted >= 0).sum(1, dtype=torch.int32)
        text.scatter_(1, (lengths - prompt + 1)[:, None] + torch.arange(levels, device=device), found)
        root = found.gather(1, (gain[:, None] - 1).clamp(0).long())[:, 0]
        lengths = lengths + gain
        gains.append(gain)
    return text[:, :new], torch.stack(gains)


prompts = torch.randint(vocabulary, (batch, prompt), device=device)
want = generate(prompts)
got, gains = generate_with_guesses(prompts)
same = int((got == want).sum())
print(f"{same} of {want.numel()} tokens are those of plain greedy decoding, which took {new - 1} steps")
print(f"with trees of {nodes} nodes: {len(gains)} steps, of {gains[gains > 0].float().mean():.2f} tokens on average")
for sequence, each in enumerate(gains.T.tolist()):
    print(f"sequence {sequence}: {' '.join(map(str, each))}")
sys.exit(same < want.numel())
