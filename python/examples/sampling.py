"""A decode loop that draws tokens: each request has its own seed and limits, and its text does not depend on its batch.

python python/examples/sampling.py
"""

import torch
from torch.nn.functional import linear, rms_norm
from xeflash import flash_attn_with_kvcache, linear_cross_entropy, linear_log_prob, linear_sample, linear_top_k

device = "xpu" if torch.xpu.is_available() else "cpu"
torch.manual_seed(0)
vocabulary, width, heads, heads_k, dim, room, steps = 1000, 512, 8, 2, 64, 128, 24

# A language model of one layer, with random weights.
embedding, head = (torch.randn(vocabulary, width, device=device) for _ in range(2))
head *= 3 / width**0.5
wq, wo = (torch.randn(width, width, device=device) / width**0.5 for _ in range(2))
wk, wv = (torch.randn(heads_k * dim, width, device=device) / width**0.5 for _ in range(2))
angles = torch.arange(room, device=device)[:, None] * 10000 ** (-torch.arange(dim // 2, device=device) * 2 / dim)
rotary = {"rotary_cos": angles.cos(), "rotary_sin": angles.sin(), "rotary_interleaved": False}

requests = [
    {"prompt": range(40), "seed": 11, "temperature": 0.7, "top_k": 50, "top_p": 0.9},
    {"prompt": range(500, 507), "seed": 12, "temperature": 1.2, "top_k": 0, "top_p": 0.95},
    {"prompt": range(60, 71), "seed": 0, "temperature": 0.0, "top_k": 0, "top_p": 1.0},  # the largest logit
    {"prompt": range(500, 507), "seed": 13, "temperature": 1.2, "top_k": 0, "top_p": 0.95},  # another seed
]
dtypes = {"seed": torch.int64, "temperature": torch.float32, "top_k": torch.int32, "top_p": torch.float32}


def hidden_states(tokens, caches, lengths):
    """Returns hidden states of new tokens (batch, tokens, width); appends their keys and values to the caches."""
    x = embedding[tokens]
    q, k, v = (linear(x, weight).unflatten(-1, (-1, dim)) for weight in (wq, wk, wv))
    out = flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=lengths, causal=True, **rotary)
    return rms_norm(x + linear(out.flatten(-2), wo), (width,))


def new_caches(batch):
    """Returns room for the keys and values of some requests."""
    return [torch.zeros(batch, room, heads_k, dim, device=device) for _ in range(2)]


def read(prompt, caches):
    """Returns the hidden states of a prompt, (1, tokens, width)."""
    tokens = torch.as_tensor(prompt, device=device)[None]
    return hidden_states(tokens, caches, torch.zeros(1, dtype=torch.int32, device=device))


def generate(requests):
    """Returns the drawn tokens (batch, steps), and the hidden states that they were drawn from."""
    each = {name: torch.tensor([r[name] for r in requests], dtype=dtypes[name], device=device) for name in dtypes}
    lengths = torch.tensor([len(r["prompt"]) for r in requests], dtype=torch.int32, device=device)
    caches = new_caches(len(requests))
    x = torch.cat([read(r["prompt"], [c[i : i + 1] for c in caches])[:, -1] for i, r in enumerate(requests)])
    drawn, states = [], []
    for _ in range(steps):  # nothing in here waits for the device
        tokens = linear_sample(x, head, position=lengths.long(), **each)
        drawn.append(tokens)
        states.append(x)
        x = hidden_states(tokens[:, None], caches, lengths)[:, 0]
        lengths += 1
    return torch.stack(drawn, 1), torch.stack(states, 1)


tokens, x = generate(requests)
alone = torch.cat([generate([request])[0] for request in requests])
same = int((tokens == alone).sum())
print(f"{same} of {tokens.numel()} tokens of a batch of {len(requests)} are those that each request gets alone")
assert torch.equal(tokens, alone)
assert not torch.equal(tokens[1], tokens[3])

# The request without randomness: its text, read at once, has these tokens as torch's largest logits.
prompt = list(requests[2]["prompt"])
text = prompt + tokens[2].tolist()
logits = linear(read(text[:-1], new_caches(1))[0, len(prompt) - 1 :], head)
assert torch.equal(logits.argmax(-1), tokens[2])
print(f"the {steps} tokens of temperature 0 have torch's largest logits")

# How probable a token was, and which ones are the most probable, also without logits in memory.
x, drawn = x[:, -1], tokens[:, -1]
drawn_logs = linear_log_prob(x, head, drawn)
values, best = linear_top_k(x, head, 3)
_, lse = linear_cross_entropy(x, head, drawn, reduction="none", return_lse=True)
for token, own, names, logs in zip(drawn, drawn_logs, best, values - lse[:, None], strict=True):
    most = ", ".join(f"{name} {log:.2f}" for name, log in zip(names.tolist(), logs.tolist(), strict=True))
    print(f"last token {token} {own:.2f}; the most probable ones: {most}")
expected = linear(x, head).log_softmax(-1)
assert torch.equal(best, expected.topk(3).indices)
assert (values - lse[:, None] - expected.topk(3).values).abs().max() < 1e-4
assert (drawn_logs - expected.gather(-1, drawn[:, None])[:, 0]).abs().max() < 1e-4
