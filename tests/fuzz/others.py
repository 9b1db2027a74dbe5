"""Cases of functions that others know: torch's and IPEX's, and standard attention. They are valid ones.

Each is a Spec, whose arrays and words are given to the function in its own names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from arrays import DTYPES, from_array
from xeflash.selftest.attention.spec import Spec

from .attention import judged, placed, spec_of
from .case import Case
from .draw import Draw


def take_torch_tensors(draw: Draw) -> None:
    """These functions take torch's tensors."""
    draw.kind, draw.mixed = "xpu" if draw.on_gpu else "torch", False


def plain(draw: Draw, entry: str, *variants: str, **more: Any) -> Spec:
    """A call whose scores are only masked, if one of the variants is not drawn; at least one row and one key."""
    while (kernel := draw.kernel()).variant not in ("plain", *variants):
        pass
    while 0 in ((spec := spec_of(draw, kernel, entry)).rows, spec.keys) or 0 in spec.heads:
        pass
    scale = draw.of(0.3, 1.0, -0.2) if draw.chance(0.3) and draw.width != "narrow" else None
    usual = {"scale": scale, "window": "full", "sinks": False, "lse": False}
    return replace(spec, **usual | more)


def case_of(
    draw: Draw, name: str, spec: Spec, call: Callable[..., Any], lead: Any = None, rank: int = 4, **more: Any
) -> Case:
    """A call with the keywords that the Spec's own function has, and the shape of out that this one has."""
    drawn, arrays, put = placed(draw, spec, lead, rank)
    arguments = drawn.arguments(put) | more

    def check(result: Any) -> None:
        if lead is not None:
            shape = arrays.led((spec.batch, spec.heads[0], spec.rows, spec.dims[1]))
            assert tuple(result.shape) == shape, f"out has shape {list(result.shape)}"
            out = from_array(result, arrays.kind).reshape(spec.batch, spec.heads[0], spec.rows, spec.dims[1])
            result, arrays.kind = out, "torch"
        judged(drawn, arrays, put, result)

    return Case(name, arguments, check, call=call)


def below_xeflash(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(**arguments: Any) -> Any:
        from xeflash.integrations import torch_sdpa

        with torch_sdpa.use_xeflash():
            return function(**arguments)

    return call


def scaled_dot_product_attention(draw: Draw) -> Case:
    take_torch_tensors(draw)
    spec = plain(draw, "attention", "mask", "bias")
    rank = draw.random.choices((4, 3, 5), (8, 1, 1))[0]
    lead = {3: (), 4: (spec.batch,), 5: (2, draw.of(1, 2))}[rank]
    spec = replace(spec, batch=int(torch.tensor(lead).prod()), broadcast=spec.broadcast.rjust(2, "1"))
    if not spec.masks and draw.chance(0.4):
        spec = replace(spec, window="causal-tl")
    spec = replace(spec, window=spec.window if spec.is_causal else "full-tl")

    def call(bottom_right: bool = False, enable_gqa: bool = False, **given: Any) -> Any:
        more = {"enable_gqa": True} if spec.heads[0] != spec.heads[1] else {}
        return below_xeflash(torch.nn.functional.scaled_dot_product_attention)(**given, **more)

    return case_of(draw, "scaled_dot_product_attention", spec, call, lead, rank)


def varlen_attn(draw: Draw) -> Case:
    take_torch_tensors(draw)
    window = draw.of("=-1,0", "=5,0", "=3,1", f"={2**31 - 1},0", f"={2**31},1") if draw.chance(0.4) else "full"
    spec = plain(draw, "varlen", window=window)

    def call(softmax_scale: float | None = None, window_size: Any = (-1, -1), **given: Any) -> Any:
        from torch.nn.attention.varlen import varlen_attn as function

        names = {"q": "query", "k": "key", "v": "value", "cu_seqlens_q": "cu_seq_q", "cu_seqlens_k": "cu_seq_k"}
        names |= {"max_seqlen_q": "max_q", "max_seqlen_k": "max_k"}
        more = {"scale": softmax_scale, "window_size": window_size, "enable_gqa": True}
        return below_xeflash(function)(**{names[name]: x for name, x in given.items()}, **more)

    return case_of(draw, "varlen_attn", replace(spec, dim_v=spec.dim), call)


def standard_attention(draw: Draw) -> Case:
    draw.guised = False  # it is for plain tensors
    spec = plain(draw, "attention", window=draw.of("full", "full", "causal", "causal-tl"))

    def call(enable_gqa: bool = True, **given: Any) -> Any:
        from xeflash.bench.standard import standard_attention as function

        return function(**given)

    return case_of(draw, "standard_attention", spec, call, (spec.batch,))


# ---- IPEX's -------------------------------------------------------------------------------------


def ipex(name: str, method: str = "") -> Callable[..., Any]:
    def call(**arguments: Any) -> Any:
        from xeflash.integrations import ipex as module

        function = getattr(module, name)
        return (getattr(function, method) if method else function)(**arguments)

    return call


def ipex_sdp(draw: Draw) -> Case:
    take_torch_tensors(draw)
    spec = plain(draw, "attention", "mask", "bias", batch=draw.of(1, 2), scale=draw.of(0.125, 1.0, 0.3))
    spec = replace(spec, broadcast=spec.broadcast.rjust(4, "1"), window=draw.of("full", "full", "causal"))
    seq_last = draw.chance(0.3)

    def call(query: Any, key: Any, value: Any, scale: float, **given: Any) -> Any:
        more = {"bias": given["attn_mask"]} if "attn_mask" in given else {}
        if "attn_mask" in given and given["attn_mask"].shape[-1] > 1 and seq_last:  # with room for more keys
            more["bias"] = torch.nn.functional.pad(given["attn_mask"], (0, 7))
        more |= {"is_causal": True} if spec.is_causal else {}
        return ipex("IpexSDP")(query=query, key=key, value=value, alpha=scale, seq_last=seq_last, **more)

    return case_of(draw, "IpexSDP", spec, call, (spec.batch,))


def ipex_varlen(draw: Draw) -> Case:
    take_torch_tensors(draw)
    spec = plain(draw, "varlen", "softcap", scale=0.3, window=draw.of("full", "full", "causal"))
    out = draw.array(torch.zeros(spec.tokens[0], spec.heads[0], spec.dims[1], dtype=DTYPES[spec.dtype]), written=True)

    def call(q: Any, k: Any, v: Any, out: Any, softmax_scale: float, causal: bool = False, **given: Any) -> Any:
        names = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
        packing = dict(zip(("seqlen_q", "seqlen_k", *names[2:]), (given[name] for name in names), strict=True))
        more = {"softcap": given["softcap"]} if "softcap" in given else {}
        ipex("VarlenAttention", "apply_function")(
            query=q, key=k, value=v, out=out, alibi_slopes=None, pdropout=0.0, softmax_scale=softmax_scale,
            zero_tensors=False, is_causal=causal, return_softmax=False, gen_=None, **packing, **more,
        )  # fmt: skip
        return out

    case = case_of(draw, "VarlenAttention", spec, call, out=out)
    return replace(case, written={"out": ...})


def ipex_paged(draw: Draw) -> Case:
    """One token of each sequence on pages (pages, Hk, page, D)."""
    take_torch_tensors(draw)
    while (kernel := draw.cache_kernel()).place != "paged" or kernel.format or kernel.variant != "plain":
        pass
    page = draw.of(16, 32, 48 if kernel.dim != 48 else 16)  # which of the last two axes comes first is told by the size
    heads, batch, scale = draw.some_heads(), draw.of(1, 2, 3), 0.3
    spec = Spec(
        kernel.dtype, kernel.dim, kernel.dim, heads, (1,) * batch, tuple(draw.keys() for _ in range(batch)), scale=scale,
        entry="kvcache", place=f"paged{page if page != kernel.dim else 32}", values="any", lse=False,
    )  # fmt: skip
    out = draw.array(torch.zeros(batch, heads[0], spec.dim, dtype=DTYPES[spec.dtype]), written=True)
    mapping = torch.arange(heads[0], dtype=torch.int32) // (heads[0] // heads[1])

    def call(q: Any, k_cache: Any, v_cache: Any, out: Any, mapping: Any, block_table: Any, **given: Any) -> Any:
        ipex("PagedAttention", "single_query_cached_kv_attention")(
            output=out, query=q[:, 0], key_cache=k_cache.transpose(1, 2), value_cache=v_cache.transpose(1, 2),
            head_mapping=mapping, scale=scale, block_tables=block_table, context_lens=given["cache_seqlens"],
            block_size=k_cache.shape[1], max_context_len=max(0, *spec.used), alibi_slopes=None,
        )  # fmt: skip
        return out[:, None]

    case = case_of(draw, "PagedAttention", spec, call, out=out, mapping=draw.int32(mapping))
    return replace(case, written={"out": ...})


def ipex_slots(draw: Draw) -> Case:
    """New keys and values to slots of pages (pages, Hk, page, D), but for negative slots."""
    take_torch_tensors(draw)
    kernel, heads, page, pages = draw.cache_kernel(), draw.some_heads()[0], draw.of(1, 16, 32), draw.of(1, 3)
    dtype = DTYPES[kernel.dtype]
    tokens = draw.random.randint(0, pages * page)
    slots = torch.randperm(pages * page, generator=draw.generator)[:tokens]
    slots = slots.masked_fill(torch.rand(tokens, generator=draw.generator) < draw.of(0, 0.3, 1), -1)
    new = [draw.array(draw.normal(tokens, heads, dim).to(dtype)) for dim in kernel.dims]
    caches = [draw.array(draw.normal(pages, heads, page, dim).to(dtype), written=True) for dim in kernel.dims]
    arguments = dict(zip(("key", "value", "key_cache", "value_cache"), (*new, *caches), strict=True))
    arguments["slot_mapping"] = draw.array(slots.to(draw.of(torch.int32, torch.int64)), packed=True)
    used = slots[slots >= 0]
    index = ((used // page).numpy(), slice(None), (used % page).numpy())

    def check(_result: Any) -> None:
        for x, cache in zip(new, caches, strict=True):
            got, want = cache.values()[index], x.values()[slots >= 0]
            assert torch.equal(got, want), f"{int((got != want).sum())} elements differ"

    call = ipex("PagedAttention", "reshape_and_cache")
    return Case("reshape_and_cache", arguments, check, call=call, written={"key_cache": index, "value_cache": index})
