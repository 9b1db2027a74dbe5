"""What the kernels of a release serve on a GPU when nothing can be compiled: prints a line for each part that was right.

Prompts and decoding of the shapes of Llama, Qwen, Gemma and GPT-OSS with plain and paged caches, and their training.
"""

import sys
import warnings

import torch
import xeflash

F32 = torch.float32


def reference(q, k, v, softcap=0.0, sinks=None):
    """Causal, of (batch, rows, heads, head dim), in fp64."""
    q, k, v = (x.double().cpu() for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    rows, keys = scores.shape[-2:]
    hidden = torch.arange(keys) > torch.arange(rows)[:, None] + keys - rows
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        column = sinks.double().cpu()[None, :, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, column], -1)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1)[..., :keys], v)


def check(found, expected, what):
    error = (found.double().cpu() - expected).abs().max() / expected.abs().max()
    assert error < 2e-2, f"{what}: {error:.2g}"


def prompts_and_decoding(name, dtype, heads, heads_k, head_dim, softcap=0.0, sinks=False):
    def new(*shape):
        return torch.randn(*shape).to(dtype).to("xpu")

    options = {"causal": True, "softcap": softcap}
    if sinks:
        options["s_aux"] = torch.randn(heads).to("xpu")
    expected = {"softcap": softcap, "sinks": options.get("s_aux")}
    keys = 200
    k, v = (new(1, 256, heads_k, head_dim) for _ in range(2))
    for rows in (1, 3, 40, keys):  # decoding, a chunk whose heads share a tile, tiles that are few, a prompt
        q = new(1, rows, heads, head_dim)
        right = reference(q, k[:, :keys], v[:, :keys], **expected)
        check(xeflash.flash_attn_func(q, k[:, :keys], v[:, :keys], **options), right, f"{name} {rows} rows")
        lengths = torch.tensor([keys], dtype=torch.int32).to("xpu")
        for page in (16, 64, 128):
            table = torch.randperm(256 // page).to(torch.int32)
            pages = torch.empty(2, 256 // page, page, heads_k, head_dim, dtype=dtype)
            pages[:, table.long()] = torch.stack([k, v]).cpu().reshape(2, -1, page, heads_k, head_dim)
            cached = {"cache_seqlens": lengths, "block_table": table[None].to("xpu")}
            out = xeflash.flash_attn_with_kvcache(q, *pages.to("xpu"), **cached, **options)
            check(out, right, f"{name} {rows} rows, pages of {page}")
    cache = torch.cat([k[:, :keys], torch.zeros_like(k[:, keys:])], 1), torch.cat([v[:, :keys], v[:, keys:] * 0], 1)
    q = new(1, 1, heads, head_dim)
    out = xeflash.flash_attn_with_kvcache(
        q, *cache, k=k[:, keys : keys + 1], v=v[:, keys : keys + 1], cache_seqlens=lengths, **options
    )
    check(out, reference(q, k[:, : keys + 1], v[:, : keys + 1], **expected), f"{name} with a new key")


def training(name, dtype, heads, heads_k, head_dim, sinks=False):
    def new(*shape):
        return torch.randn(*shape).to(dtype)

    q, k, v = new(1, 70, heads, head_dim), new(1, 70, heads_k, head_dim), new(1, 70, heads_k, head_dim)
    given = [q, k, v] + ([torch.randn(heads)] if sinks else [])
    weight = torch.randn(1, 70, heads, head_dim)
    exact = [x.double().requires_grad_() for x in given]
    right = reference(*exact[:3], sinks=exact[3] if sinks else None)
    expected = torch.autograd.grad((right * weight).sum(), exact)
    ours = [x.to("xpu").requires_grad_() for x in given]
    out = xeflash.flash_attn_func(*ours[:3], causal=True, s_aux=ours[3] if sinks else None)
    check(out.detach(), right.detach(), f"{name}: output")
    found = torch.autograd.grad(out, ours, weight.to(dtype).to("xpu"))
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        check(a, b, f"{name}: gradient {i}")


def main(dtypes):
    torch.manual_seed(0)
    for dtype in (getattr(torch, name) for name in dtypes):
        kind = str(dtype).removeprefix("torch.")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for name, shape in {
                "llama": {"heads": 4, "heads_k": 1, "head_dim": 128},
                "llama 2": {"heads": 1, "heads_k": 1, "head_dim": 128},
                "qwen": {"heads": 7, "heads_k": 1, "head_dim": 64},
                "qwen moe": {"heads": 16, "heads_k": 1, "head_dim": 128},
                "gemma 2": {"heads": 2, "heads_k": 1, "head_dim": 256, "softcap": 5.0},
                "gemma 3": {"heads": 2, "heads_k": 1, "head_dim": 256},
                "gpt-oss": {"heads": 8, "heads_k": 1, "head_dim": 64, "sinks": True},
            }.items():
                prompts_and_decoding(name, dtype, **shape)
                print(f"{name}, {kind}", flush=True)
            for name, shape in {
                "llama": {"heads": 2, "heads_k": 1, "head_dim": 128},
                "gpt-oss": {"heads": 2, "heads_k": 1, "head_dim": 64, "sinks": True},
            }.items():
                training(name, dtype, **shape)
                print(f"training {name}, {kind}", flush=True)
        told = [str(w.message) for w in said if "serves this call" in str(w.message)]
        print(*told, sep="\n", flush=True)
    print("done")


if __name__ == "__main__":
    main(sys.argv[1:])
