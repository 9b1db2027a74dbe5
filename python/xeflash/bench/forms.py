"""Inputs of a case, our call, and the ways to write the same in torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from xeflash.bench import kv_cache
from xeflash.bench.blocks import random_blocks
from xeflash.bench.cases import Case
from xeflash.bench.rows import CAUSAL

TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FLEX = "flex"
FORM_NOTES = {
    "sdpa": "torch scaled_dot_product_attention",
    "enable_gqa": "torch scaled_dot_product_attention with enable_gqa=True",
    "grouped": "decode only: q viewed as (B, Hkv, Hq/Hkv, D), no enable_gqa, K and V read once",
    "expand": "not on a cache: one batch entry per kv head, K and V expanded without a copy "
    "(repeat_interleave, which copies, is not faster and left out)",
    "masked": "verify and blocks: torch scaled_dot_product_attention with the tree or the blocks as a mask of all keys",
    FLEX: "blocks only: torch's flex_attention by torch.compile, with a BlockMask of full blocks; it may refuse a "
    "device, or gradients on it, and a note then says so",
    CAUSAL: "verify only: our causal call of as many queries on the same cache",
}
_SPARSE = "torch.nn.attention.flex_attention"
Form = Callable[[], Tensor | tuple[Tensor, ...]]  # an output, or the gradients of q, k and v


class Inputs(NamedTuple):
    """Contiguous (B, H, S, D) tensors, on a cache (B, S, H, D) ones that are viewed so.

    dout is the gradient of the output, of which those of q, k and v are made; mask, (Sq, Sk), is True for the keys that
    the nodes of a tree, or rows with their blocks, see; blocks, (QB, KB), for the blocks that are listed. cache has the
    arrays that our call reads in the place of k and v, by keywords; these are then its numbers, and exact as in fp32.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    dout: Tensor | None = None
    mask: Tensor | None = None
    blocks: Tensor | None = None
    cache: dict[str, Tensor] | None = None
    exact: list[Tensor] | None = None


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
    cache = exact = blocks = mask = None
    if case.kv_dtype:
        cache = kv_cache.filled(case, q, k, v)
        exact = kv_cache.numbers(cache)
        k, v = (x.to(dtype) for x in exact)
    if case.phase == "verify":
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
        mask = torch.ones(case.seq_q, case.seq_k, dtype=torch.bool)
        mask[:, -case.seq_q :] = random_tree(case.seq_q, seed)
        return Inputs(q, k, v, mask=mask.to(device), cache=cache, exact=exact)
    if case.share is not None:
        blocks = torch.from_numpy(random_blocks(case, seed)).to(device)
        every = blocks.repeat_interleave(case.block_size, 0).repeat_interleave(case.block_size, 1)
        mask = every[: case.seq_q, : case.seq_k].contiguous()
    if not case.gradients:
        return Inputs(q, k, v, mask=mask, blocks=blocks, cache=cache, exact=exact)
    for x in (q, k, v):
        x.requires_grad_()
    return Inputs(q, k, v, normal(case.heads, case.seq_q), mask, blocks)


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
    if inputs.mask is not None and inputs.blocks is None:
        pack: Any = importlib.import_module("xeflash").pack_tree_mask
        return _on_cache(inputs, tree_mask=pack(inputs.mask[:, -case.seq_q :]))
    if inputs.cache is not None:
        return _on_cache(inputs)
    attention: Any = importlib.import_module("xeflash").attention
    q, k, v = inputs[:3]
    gqa = case.group > 1
    more = {} if inputs.blocks is None else {"block_mask": inputs.blocks[None, None], "block_size": case.block_size}

    def call() -> Tensor:
        out: Tensor = attention(q, k, v, is_causal=case.causal, enable_gqa=gqa, **more)
        return out

    return call


def _on_cache(inputs: Inputs, **mask: Any) -> Callable[[], Tensor]:
    """Returns our call on a cache that has the keys of the queries already."""
    attention: Any = importlib.import_module("xeflash").flash_attn_with_kvcache
    q, k, v = (x.transpose(1, 2) for x in inputs[:3])
    cache = inputs.cache or {"k_cache": k, "v_cache": v}

    def call() -> Tensor:
        out: Tensor = attention(q, **cache, **mask).transpose(1, 2)
        return out

    return call


def torch_forms(case: Case, inputs: Inputs) -> dict[str, Callable[[], Tensor]]:
    """Returns torch's ways by name, of verify also our causal call; the first one is what a user writes first."""
    q, k, v, _, mask, blocks = inputs[:6]
    causal = case.causal
    if mask is not None:
        masked: dict[str, Callable[[], Tensor]] = {
            "masked": lambda: scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=case.group > 1)
        }
        return masked | ({CAUSAL: _on_cache(inputs, causal=True)} if blocks is None else {})
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


def flex_form(case: Case, inputs: Inputs) -> Form:
    """Returns torch's flex_attention with the same blocks; it is compiled, and may be refused, at its first call."""
    forms: list[Form] = []

    def first() -> Form:
        flex: Any = importlib.import_module(_SPARSE)
        listed: Any = inputs.blocks
        counts = listed.sum(1, dtype=torch.int32)[None, None]
        order = listed.to(torch.int8).argsort(dim=1, descending=True, stable=True).to(torch.int32)[None, None]
        sizes = (case.seq_q, case.seq_k)
        mask = flex.BlockMask.from_kv_blocks(
            torch.zeros_like(counts), order, counts, order, BLOCK_SIZE=case.block_size, seq_lengths=sizes
        )
        importlib.import_module("torch._dynamo").reset()  # other shapes are not to run without a compiler
        call: Any = torch.compile(flex.flex_attention, dynamic=False)
        return timed_form(case, inputs, lambda: call(*inputs[:3], block_mask=mask, enable_gqa=case.group > 1))

    def call() -> Tensor | tuple[Tensor, ...]:
        if not forms:
            forms.append(first())
        return forms[0]()

    return call


def eager_form(case: Case, inputs: Inputs) -> Callable[[], Tensor]:
    """Returns attention that keeps all scores in memory, as the eager one of Transformers."""
    q, k, v = inputs[:3]

    def call() -> Tensor:
        keys, values = (x.repeat_interleave(case.group, dim=1) for x in (k, v))
        scores = q @ keys.mT * case.head_dim**-0.5
        if inputs.mask is not None:
            scores = scores.masked_fill(~inputs.mask, -torch.inf)
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
