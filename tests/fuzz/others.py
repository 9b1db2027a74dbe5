"""Cases of functions that others know: torch's and IPEX's, and standard attention. They are valid ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from arrays import DTYPES, from_array
from tolerance import check_sequences
from xeflash.selftest.reference import Features

from .cached import check_sequence, draw_cache
from .case import Case
from .dense import compare, lengths_of, longest, starts, tensor
from .draw import CacheKernel, Draw, Kernel, draw_mask
from .memory import Array


def of_torch(draw: Draw) -> None:
    """These functions take torch's tensors."""
    draw.kind, draw.mixed = "xpu" if draw.on_gpu else "torch", False


def plain(draw: Draw, *variants: str) -> Kernel:
    while (kernel := draw.kernel()).variant not in ("plain", *variants):
        pass
    return kernel


def below_xeflash(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(**arguments: Any) -> Any:
        from xeflash.integrations import torch_sdpa

        with torch_sdpa.use_xeflash():
            return function(**arguments)

    return call


def scaled_dot_product_attention(draw: Draw) -> Case:
    of_torch(draw)
    kernel = plain(draw, "mask", "bias")
    rank = draw.random.choices((4, 3, 5), (8, 1, 1))[0]
    heads, heads_k = draw.some_heads()
    lead = {3: (), 4: (draw.batch(),), 5: (2, draw.of(1, 2))}[rank]
    rows, keys = max(1, draw.rows(kernel)), max(1, draw.keys())

    def shape(n: int, length: int, dim: int) -> tuple[int, ...]:
        return (*lead, n, length, dim)

    q, k, v = (
        draw.array(tensor(draw, kernel, *shape(*sizes)))
        for sizes in ((heads, rows, kernel.dim), (heads_k, keys, kernel.dim), (heads_k, keys, kernel.dim_v))
    )
    arguments: dict[str, Any] = {"query": q, "key": k, "value": v}
    f, batch = Features(top_left=True, empty_lse=-torch.inf), int(torch.tensor(lead).prod())
    if heads != heads_k or draw.chance(0.2):
        arguments["enable_gqa"] = True
    if draw.chance(0.3):
        arguments["scale"] = draw.of(0.3, 1.0, -0.2)
        f = f.with_(scale=arguments["scale"])
    if kernel.variant != "plain":
        mask = draw_mask(draw, kernel, shape(heads, rows, keys))
        if len(mask.shape) >= 2:
            arguments["attn_mask"] = mask
            f = f.with_(mask=mask.values().expand(shape(heads, rows, keys)).reshape(batch, heads, rows, keys))
    elif draw.chance(0.4):
        arguments["is_causal"] = True
        f = f.with_(window=(-1, 0))

    def check(result: Any) -> None:
        out = from_array(result, q.kind)
        assert out.shape == shape(heads, rows, kernel.dim_v), f"out has shape {list(out.shape)}"
        sizes = ((q, heads), (k, heads_k), (v, heads_k))
        full = [x.values().reshape(batch, n, *x.shape[-2:]) for x, n in sizes]
        compare(full, f, out, None, (batch, heads, rows, kernel.dim_v), draw.on_gpu)

    call = below_xeflash(torch.nn.functional.scaled_dot_product_attention)
    return Case("scaled_dot_product_attention", arguments, check, call=call)


def varlen_attn(draw: Draw) -> Case:
    of_torch(draw)
    kernel = plain(draw)
    heads, heads_k = draw.heads()
    lengths_q = lengths_of(draw, lambda: draw.rows(kernel))
    lengths_k = [draw.keys() for _ in lengths_q]
    shapes = ((sum(lengths_q), heads), (sum(lengths_k), heads_k), (sum(lengths_k), heads_k))
    q, k, v = (draw.array(tensor(draw, kernel, *shape, kernel.dim)) for shape in shapes)
    cu_q, cu_k = starts(lengths_q), starts(lengths_k)
    arguments: dict[str, Any] = {"query": q, "key": k, "value": v}
    arguments |= {"cu_seq_q": draw.int32(cu_q), "cu_seq_k": draw.int32(cu_k)}
    arguments |= {"max_q": longest(draw, lengths_q), "max_k": longest(draw, lengths_k)}
    f = Features()
    if heads != heads_k:
        arguments["enable_gqa"] = True
    if draw.chance(0.4):
        arguments["window_size"] = draw.of((-1, 0), (5, 0), (3, 1), (2**31 - 1, 0), (2**31, 1))
        sides = [n if n < arguments["max_k"] else -1 for n in arguments["window_size"]]
        f = f.with_(window=tuple(sides))
    if draw.chance(0.3):
        f = f.with_(scale=0.3)
        arguments["scale"] = 0.3

    def check(result: Any) -> None:
        out = from_array(result, q.kind)
        assert out.shape == q.shape, f"out has shape {list(out.shape)}"
        qkv = [x.values() for x in (q, k, v)]
        check_sequences("", qkv, (cu_q, cu_k), f, out, gpu=draw.on_gpu, drawn=True)

    def call(**more: Any) -> Any:
        from torch.nn.attention.varlen import varlen_attn as function

        return below_xeflash(function)(**more)

    return Case("varlen_attn", arguments, check, call=call)


# ---- standard attention -------------------------------------------------------------------------


def standard_attention(draw: Draw) -> Case:
    draw.guised = False  # it is for plain tensors
    kernel = plain(draw)
    heads, heads_k = draw.heads()
    batch, rows, keys = draw.batch(), draw.rows(kernel), draw.keys()
    q = draw.array(tensor(draw, kernel, batch, heads, rows, kernel.dim))
    k = draw.array(tensor(draw, kernel, batch, heads_k, keys, kernel.dim))
    v = draw.array(tensor(draw, kernel, batch, heads_k, keys, kernel.dim_v))
    f, arguments = Features(), {"query": q, "key": k, "value": v}
    if draw.chance(0.5):
        arguments |= {"is_causal": True, "bottom_right": draw.chance(0.5)}
        f = f.with_(window=(-1, 0), top_left=not arguments["bottom_right"])
    if draw.chance(0.3):
        arguments["scale"] = draw.of(0.3, -0.2, 1)
        f = f.with_(scale=arguments["scale"])

    def check(result: Any) -> None:
        out = from_array(result, q.kind)
        assert out.shape == (batch, heads, rows, kernel.dim_v), f"out has shape {list(out.shape)}"
        compare([x.values() for x in (q, k, v)], f, out, None, out.shape, draw.on_gpu)

    def call(**more: Any) -> Any:
        from xeflash.bench.standard import standard_attention as function

        return function(**more)

    return Case("standard_attention", arguments, check, call=call)


# ---- IPEX's -------------------------------------------------------------------------------------


def ipex(name: str, method: str = "") -> Callable[..., Any]:
    def call(**arguments: Any) -> Any:
        from xeflash.integrations import ipex as module

        function = getattr(module, name)
        return (getattr(function, method) if method else function)(**arguments)

    return call


def ipex_sdp(draw: Draw) -> Case:
    of_torch(draw)
    kernel = plain(draw, "mask", "bias")
    (heads, heads_k), batch = draw.some_heads(), draw.of(1, 2)
    rows, keys = max(1, draw.rows(kernel)), max(1, draw.keys())
    q = draw.array(tensor(draw, kernel, batch, heads, rows, kernel.dim))
    k = draw.array(tensor(draw, kernel, batch, heads_k, keys, kernel.dim))
    v = draw.array(tensor(draw, kernel, batch, heads_k, keys, kernel.dim_v))
    f = Features(scale=draw.of(0.125, 1.0, 0.3))
    arguments: dict[str, Any] = {"query": q, "key": k, "value": v, "alpha": f.scale}
    if kernel.variant != "plain":
        mask = draw_mask(draw, kernel, (batch, heads, rows, keys + draw.of(0, 7)))
        if len(mask.shape) == 4:
            arguments["bias"] = mask
            seen = mask.values()[..., :keys] if mask.shape[-1] > 1 else mask.values()
            f = f.with_(mask=seen.expand(batch, heads, rows, keys))
    if draw.chance(0.4):
        arguments["is_causal"] = True
        f = f.with_(window=(-1, 0))
    if draw.chance(0.3):
        arguments["seq_last"] = True

    def check(result: Any) -> None:
        out = from_array(result, q.kind)
        assert out.shape == (batch, heads, rows, kernel.dim_v), f"out has shape {list(out.shape)}"
        compare([x.values() for x in (q, k, v)], f, out, None, out.shape, draw.on_gpu)

    return Case("IpexSDP", arguments, check, call=ipex("IpexSDP"))


def ipex_varlen(draw: Draw) -> Case:
    of_torch(draw)
    kernel = plain(draw, "softcap")
    heads, heads_k = draw.some_heads()
    lengths_q = lengths_of(draw, lambda: draw.rows(kernel))
    lengths_k = [draw.keys() for _ in lengths_q]
    q = draw.array(tensor(draw, kernel, sum(lengths_q), heads, kernel.dim))
    k = draw.array(tensor(draw, kernel, sum(lengths_k), heads_k, kernel.dim))
    v = draw.array(tensor(draw, kernel, sum(lengths_k), heads_k, kernel.dim_v))
    out = draw.array(torch.zeros(sum(lengths_q), heads, kernel.dim_v).to(q.dtype), written=True)
    cu_q, cu_k, causal = starts(lengths_q), starts(lengths_k), draw.chance(0.4)
    f = Features(scale=0.3, window=(-1, 0) if causal else (-1, -1))
    arguments: dict[str, Any] = {"query": q, "key": k, "value": v, "out": out}
    arguments |= {"seqlen_q": draw.int32(cu_q), "seqlen_k": draw.int32(cu_k), "alibi_slopes": None}
    arguments |= {"max_seqlen_q": longest(draw, lengths_q), "max_seqlen_k": longest(draw, lengths_k)}
    arguments |= {"pdropout": 0.0, "softmax_scale": 0.3, "zero_tensors": draw.chance(0.5), "is_causal": causal}
    arguments |= {"return_softmax": False, "gen_": None}
    if kernel.variant == "softcap":
        arguments["softcap"], f = 3.0, f.with_(softcap=3.0)

    def check(_result: Any) -> None:
        qkv = [x.values() for x in (q, k, v)]
        check_sequences("", qkv, (cu_q, cu_k), f, out.values(), gpu=draw.on_gpu, drawn=True)

    call = ipex("VarlenAttention", "apply_function")
    return Case("VarlenAttention", arguments, check, call=call, written={"out": ...})


def ipex_paged(draw: Draw) -> Case:
    """One token of each sequence on pages (pages, Hk, page, D)."""
    of_torch(draw)
    while (kernel := draw.cache_kernel()).place != "paged" or kernel.format != "same" or kernel.variant != "plain":
        pass
    heads, heads_k = draw.some_heads()
    batch, scale = draw.of(1, 2, 3), 0.3
    kernel = CacheKernel(**{**vars(kernel), "dim_v": kernel.dim})
    while (cache := draw_cache(draw, kernel, batch, heads_k, [1] * batch, -1)).page == kernel.dim:
        pass  # which of them comes first is told by the page's size
    q = draw.array(tensor(draw, kernel, batch, heads, kernel.dim))
    out = draw.array(torch.zeros(batch, heads, kernel.dim).to(q.dtype), written=True)
    mapping = torch.arange(heads, dtype=torch.int32) // (heads // heads_k)
    arguments = {"output": out, "query": q, "key_cache": transposed(cache.k), "value_cache": transposed(cache.v)}
    arguments |= {"head_mapping": draw.int32(mapping), "scale": scale, "block_tables": cache.arguments["block_table"]}
    arguments |= {"context_lens": draw.int32(cache.lengths), "block_size": cache.page}
    arguments |= {"max_context_len": longest(draw, cache.lengths), "alibi_slopes": None}

    def check(_result: Any) -> None:
        for b in range(batch):
            f, got = Features(scale=scale), out.values()[b][None]
            check_sequence(cache, b, q.values()[b][None], f, got, None, draw.on_gpu)

    call = ipex("PagedAttention", "single_query_cached_kv_attention")
    return Case("PagedAttention", arguments, check, call=call, written={"output": ...})


def ipex_slots(draw: Draw) -> Case:
    """New keys and values to slots of pages (pages, Hk, page, D), but for negative slots."""
    of_torch(draw)
    kernel, heads, page, pages = draw.cache_kernel(), draw.some_heads()[0], draw.of(1, 16, 32), draw.of(1, 3)
    dtype = DTYPES[kernel.dtype]
    tokens = draw.random.randint(0, pages * page)
    slots = torch.randperm(pages * page, generator=draw.generator)[:tokens]
    slots = slots.masked_fill(torch.rand(tokens, generator=draw.generator) < draw.of(0, 0.3, 1), -1)
    new = [draw.array(draw.normal(tokens, heads, dim).to(dtype)) for dim in (kernel.dim, kernel.dim_v)]
    dims = (kernel.dim, kernel.dim_v)
    caches = [draw.array(draw.normal(pages, heads, page, dim).to(dtype), written=True) for dim in dims]
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


def transposed(array: Array) -> Array:
    """The same memory with heads before rows."""
    (a, b, c, d), (i, j, m, n) = array.shape, array.strides
    return Array(array.kind, (a, c, b, d), array.dtype, array.memory, (i, m, j, n), array.offset, True, array.keep)
