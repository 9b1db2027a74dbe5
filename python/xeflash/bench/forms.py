"""Inputs of a case, our call, and the ways to write the same in torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from xeflash.bench.cases import Case
from xeflash.bench.rows import CAUSAL

TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FORM_NOTES = {
    "sdpa": "torch scaled_dot_product_attention",
    "enable_gqa": "torch scaled_dot_product_attention with enable_gqa=True",
    "grouped": "decode only: q viewed as (B, Hkv, Hq/Hkv, D), no enable_gqa, K and V read once",
    "expand": "not on a cache: one batch entry per kv head, K and V expanded without a copy "
    "(repeat_interleave, which copies, is not faster and left out)",
    "masked": "verify only: torch scaled_dot_product_attention with the tree as a mask of all keys",
    CAUSAL: "verify only: our causal call of as many queries on the same cache",
}
Form = Callable[[], Tensor | tuple[Tensor, ...]]  # an output, or the gradients of q, k and v


class Inputs(NamedTuple):
    """Contiguous (B, H, S, D) tensors, on a cache (B, S, H, D) ones that are viewed so.

    dout is the gradient of the output, of which those of q, k and v are made; mask, (Sq, Sk), is True for the keys that
    the nodes of a tree see.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor | None = None
    mask: Tensor | None = None


def random_tree(nodes: int, seed: int) -> Tensor:
    """Returns which nodes each node sees, its ancestors and its own; the parents are drawn of the nodes before."""
    generator = torch.Generator().manual_seed(seed)
    sees = torch.eye(nodes, dtype=torch.bool)
    for node in range(1, nodes):
        sees[node] |= sees[int(torch.randint(node, (), generator=generator))]
    return sees


def make_inputs(case: Case, device: str, seed: int) -> Inputs:
    """Returns standard normal inputs; the seed makes them the same in every run."""
    generator = torch.Generator(device=device).manual_seed(seed)
    dtype = TORCH_DTYPES[case.dtype]

    def normal(heads: int, length: int) -> Tensor:
        shape = (case.batch, heads, length, case.head_dim)
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    q = normal(case.heads, case.seq_q)
    k, v = (normal(case.kv_heads, case.seq_k) for _ in range(2))
    if case.phase == "verify":
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
        mask = torch.ones(case.seq_q, case.seq_k, dtype=torch.bool)
        mask[:, -case.seq_q :] = random_tree(case.seq_q, seed)
        return Inputs(q, k, v, mask=mask.to(device))
    if not case.gradients:
        return Inputs(q, k, v)
    for x in (q, k, v):
        x.requires_grad_()
    return Inputs(q, k, v, dout=normal(case.heads, case.seq_q))


def timed_form(case: Case, inputs: Inputs, forward: Callable[[], Tensor]) -> Form:
    """Returns what is timed, and checked: the forward pass, the gradients after one of them, or both."""
    if not case.gradients:
        return forward
    learned, dout = inputs[:3], inputs.dout
    if case.phase == "train":
        return lambda: torch.autograd.grad(forward(), learned, dout)
    out = forward()
    return lambda: torch.autograd.grad(out, learned, dout, retain_graph=True)


def our_form(case: Case, inputs: Inputs) -> Callable[[], Tensor]:
    """Returns our call on the inputs, bound once as a caller would."""
    if inputs.mask is not None:
        pack: Any = importlib.import_module("xeflash").pack_tree_mask
        return _on_cache(inputs, tree_mask=pack(inputs.mask[:, -case.seq_q :]))
    attention: Any = importlib.import_module("xeflash").attention
    q, k, v = inputs[:3]
    gqa = case.group > 1

    def call() -> Tensor:
        out: Tensor = attention(q, k, v, is_causal=case.causal, enable_gqa=gqa)
        return out

    return call


def _on_cache(inputs: Inputs, **mask: Any) -> Callable[[], Tensor]:
    """Returns our call on a cache that has the keys of the queries already."""
    attention: Any = importlib.import_module("xeflash").flash_attn_with_kvcache
    q, k, v = (x.transpose(1, 2) for x in inputs[:3])

    def call() -> Tensor:
        out: Tensor = attention(q, k, v, **mask).transpose(1, 2)
        return out

    return call


def torch_forms(case: Case, inputs: Inputs) -> dict[str, Callable[[], Tensor]]:
    """Returns torch's ways by name, of verify also our causal call; the first one is what a user writes first."""
    q, k, v, _, mask = inputs
    causal = case.causal
    if mask is not None:
        return {
            "masked": lambda: scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=case.group > 1),
            CAUSAL: _on_cache(inputs, causal=True),
        }
    if case.group == 1:
        return {"sdpa": lambda: scaled_dot_product_attention(q, k, v, is_causal=causal)}

    def enable_gqa() -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    if case.phase == "decode":
        groups = q.view(case.batch, case.kv_heads, case.group, case.head_dim)
        return {
            "enable_gqa": enable_gqa,
            "grouped": lambda: scaled_dot_product_attention(groups, k, v).view(q.shape),
        }

    def per_kv_head(x: Tensor, heads: int) -> Tensor:
        return x.view(case.batch * case.kv_heads, heads, x.shape[2], case.head_dim)

    flat_q = per_kv_head(q, case.group)
    flat_k = per_kv_head(k, 1).expand(-1, case.group, -1, -1)
    flat_v = per_kv_head(v, 1).expand(-1, case.group, -1, -1)
    return {
        "enable_gqa": enable_gqa,
        "expand": lambda: scaled_dot_product_attention(flat_q, flat_k, flat_v, is_causal=causal).view(q.shape),
    }


def eager_form(case: Case, inputs: Inputs) -> Callable[[], Tensor]:
    """Returns attention that keeps all scores in memory, as the eager one of Transformers."""
    q, k, v = inputs[:3]

    def call() -> Tensor:
        keys, values = (x.repeat_interleave(case.group, dim=1) for x in (k, v))
        scores = q @ keys.mT * case.head_dim**-0.5
        if case.causal:
            hidden = torch.ones(case.seq_q, case.seq_k, dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(hidden, -torch.inf)
        return scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype) @ values

    return call


def synchronizer(device: str) -> Callable[[], None]:
    """Returns what waits for the device; calls on the CPU return when they are done."""
    if device.startswith("xpu"):
        return lambda: torch.xpu.synchronize()
    return lambda: None
