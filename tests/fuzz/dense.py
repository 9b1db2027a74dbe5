"""Cases of attention on arrays of their own: `attention`, the functions of flash-attn, packed or not."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
import xeflash
from arrays import DTYPES, from_array
from tolerance import check_attention, check_sequences
from xeflash.selftest.reference import Features

from .case import Case
from .draw import Draw, Kernel, draw_features, draw_listed

FLASH_NAMES = {"scale": "softmax_scale", "sinks": "s_aux"}
SDPA_NAMES = {"causal": "is_causal"}


@dataclass
class Inputs:
    """Q, K and V of a call, as arguments, and as tensors (B, S, H, D) or (tokens, H, D)."""

    arguments: dict[str, Any]
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    kind: str  # of the result


def renamed(words: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in words.items()}


def tensor(draw: Draw, kernel: Kernel, *shape: int) -> torch.Tensor:
    return draw.numbers(*shape).to(DTYPES[kernel.dtype])


# ---- attention ----------------------------------------------------------------------------------


def attention(draw: Draw) -> Case:
    kernel = draw.kernel()
    rank = 4 if draw.kind.startswith("usm") else draw.random.choices((4, 3, 2, 5), (76, 9, 6, 9))[0]
    heads, heads_k = draw.heads() if rank > 2 else (1, 1)
    lead = {5: (draw.of(1, 2), draw.of(1, 2, 3)), 4: (draw.batch(),)}.get(rank, ())
    rows, keys = draw.rows(kernel), draw.keys()
    batch = lead[0] * lead[1] if rank == 5 else lead[0] if lead else 1

    def shape(length: int, n: int, dim: int) -> tuple[int, ...]:
        return (*lead, n, length, dim) if rank > 2 else (length, dim)

    q = draw.array(tensor(draw, kernel, *shape(rows, heads, kernel.dim)))
    k = draw.array(tensor(draw, kernel, *shape(keys, heads_k, kernel.dim)))
    v = draw.array(tensor(draw, kernel, *shape(keys, heads_k, kernel.dim_v)))
    f, words = draw_features(draw, kernel, batch, heads, keys, shape(rows, heads, keys))
    if rank == 4 or lead == (batch, 1):
        f, listed = draw_listed(draw, kernel, lead, rows, keys, f)
        words |= listed
        if "document_ids" in listed and rows < keys:
            words["bottom_right"] = True
    if f.dropout:
        f = f.with_(rng=(draw.random.getrandbits(64), draw.of(0, 1, 2**32 + 3, draw.random.getrandbits(63))))
        words["rng"] = f.rng
    if heads != heads_k or draw.chance(0.2):
        words["enable_gqa"] = True
    if want_lse := draw.chance(0.5):
        words["return_lse"] = True
    written = {}
    if draw.chance(0.3):
        empty = torch.zeros(shape(rows, heads, kernel.dim_v), dtype=DTYPES[kernel.dtype])
        # Leading axes have to merge into one.
        words["out"] = draw.array(empty, written=True, packed=rank == 5)
        written["out"] = ...

    def check(result: Any) -> None:
        out, lse = result if want_lse else (result, None)
        if "out" in words:
            assert out is words["out"].given, "the result is not out"
            out = words["out"].values()
        else:
            out = from_array(out, q.kind)
        lse = None if lse is None else from_array(lse, q.kind)
        assert out.shape == shape(rows, heads, kernel.dim_v), f"out has shape {list(out.shape)}"
        assert lse is None or lse.shape == out.shape[:-1], f"the LSE has shape {list(lse.shape)}"
        full = [x.values().reshape(batch, n, *x.shape[-2:]) for x, n in ((q, heads), (k, heads_k), (v, heads_k))]
        compare(full, f, out, lse, (batch, heads, rows, kernel.dim_v), draw.on_gpu)

    arguments = {"query": q, "key": k, "value": v, **renamed(words, SDPA_NAMES)}
    return Case("attention", arguments, check, way_of(draw, arguments, rank == 4 and "out" not in words), written)


def compare(
    qkv: list[torch.Tensor], f: Features, out: torch.Tensor, lse: torch.Tensor | None, shape: tuple[int, ...], gpu: bool
) -> None:
    if out.numel() == 0:
        return
    lse = None if lse is None else lse.reshape(shape[:3])
    check_attention("", *qkv, f, out.reshape(shape), lse, gpu, drawn=True)


def way_of(draw: Draw, arguments: dict[str, Any], operator: bool = True) -> str:
    """Torch's tensors can go through its dispatcher, too."""
    if draw.kind not in ("torch", "xpu") or draw.mixed:
        return "direct"
    operator &= "gather_kv_indices" not in arguments  # which become another call
    return draw.random.choices(("direct", "mode", "operator"), (60, 20, 20 if operator else 0))[0]


# ---- flash-attn's, dense ------------------------------------------------------------------------


def flash_attn(draw: Draw, function: str) -> Case:
    """A call of one of its functions, whose names say what they take."""
    together = 3 if "qkvpacked" in function else 2 if "kvpacked" in function else 1
    unknown = ("documents", "picks") if "varlen" in function else ()
    kernel, heads = draw.kernel_without(*unknown) if together == 1 else packable(draw, *unknown), draw.heads()
    if "varlen" not in function:
        batch, rows = draw.batch(), draw.rows(kernel)
        x = inputs(draw, kernel, heads, together, (batch, rows), (batch, draw.keys()))
        return flash_case(draw, function, kernel, x)
    lengths_q = lengths_of(draw, lambda: draw.rows(kernel))
    lengths_k = lengths_q if together == 3 else [0 if draw.chance(0.1) else draw.keys() for _ in lengths_q]
    used, cu_k = None, starts(lengths_k)
    if together == 1 and draw.chance(0.3):
        used = [draw.random.randint(0, n) for n in lengths_k]
    unused = [slice(start + n, end) for start, n, end in zip(cu_k, used or [], cu_k[1:], strict=False)]
    x = inputs(draw, kernel, heads, together, (sum(lengths_q),), (sum(lengths_k),), unused)
    return varlen_case(draw, function, kernel, x, lengths_q, lengths_k, used)


def inputs(
    draw: Draw, kernel: Kernel, heads: tuple[int, int], together: int, lead_q: Any, lead_k: Any, unused: Any = ()
) -> Inputs:
    """Rows with these sizes before them, the last `together` of Q, K and V in one array; NaN where keys are unused."""
    if together == 3:
        packed = draw.array(tensor(draw, kernel, *lead_q, 3, heads[0], kernel.dim))
        return Inputs({"qkv": packed}, *packed.values().unbind(-3), packed.kind)
    q = draw.array(tensor(draw, kernel, *lead_q, heads[0], kernel.dim))
    if together == 2:
        kv = draw.array(tensor(draw, kernel, *lead_k, 2, heads[1], kernel.dim))
        return Inputs({"q": q, "kv": kv}, q.values(), *kv.values().unbind(-3), q.kind)
    k, v = (tensor(draw, kernel, *lead_k, heads[1], dim) for dim in (kernel.dim, kernel.dim_v))
    for keys in unused:
        k[keys], v[keys] = torch.nan, torch.nan
    k, v = (draw.array(x, distinct=bool(unused)) for x in (k, v))
    return Inputs({"q": q, "k": k, "v": v}, q.values(), k.values(), v.values(), q.kind)


def packable(draw: Draw, *unknown: str) -> Kernel:
    """One whose heads of K and V are as wide; packed functions take no score_mod and no lists."""
    while (kernel := draw.kernel_without("snippet", "picks", *unknown)).dim != kernel.dim_v:
        pass
    return kernel


def flash_case(draw: Draw, function: str, kernel: Kernel, x: Inputs) -> Case:
    (batch, rows, heads, _), keys = x.q.shape, x.k.shape[1]
    f, words = draw_features(draw, kernel, batch, heads, keys)
    f, listed = draw_listed(draw, kernel, (batch,), rows, keys, f)
    words |= listed
    f, before = seeded(draw, f)
    if want_lse := not f.dropout and draw.chance(0.5):
        words["return_attn_probs"] = True
    if draw.chance(0.1):
        words["deterministic"] = True

    def check(result: Any) -> None:
        out, lse = parts(result, want_lse, x.kind)
        assert out.shape == (batch, rows, heads, x.v.shape[-1]), f"out has shape {list(out.shape)}"
        assert lse is None or lse.shape == (batch, heads, rows), f"the LSE has shape {list(lse.shape)}"
        q, k, v, out = (y.transpose(1, 2) for y in (x.q, x.k, x.v, out))
        compare([q, k, v], f, out, lse, out.shape, draw.on_gpu)

    arguments = x.arguments | renamed(words, FLASH_NAMES)
    way = way_of(draw, arguments, function == "flash_attn_func")
    return Case(function, arguments, check, way, before=before)


def seeded(draw: Draw, f: Features) -> tuple[Features, Any]:
    """flash-attn's functions take no seed: that of manual_seed, whose first call has offset 0."""
    if not f.dropout:
        return f, None
    seed = draw.random.getrandbits(64)
    return f.with_(rng=(seed, 0)), lambda: xeflash.manual_seed(seed)


def parts(result: Any, want_lse: bool, kind: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    if not want_lse:
        return from_array(result, kind), None
    out, lse, nothing = result
    assert nothing is None
    return from_array(out, kind), from_array(lse, kind)


# ---- flash-attn's, packed sequences -------------------------------------------------------------


def lengths_of(draw: Draw, draw_one: Any) -> list[int]:
    return [0 if draw.chance(0.12) else draw_one() for _ in range(draw.of(1, 1, 2, 3, 4, 6, 0))]


def starts(lengths: list[int]) -> list[int]:
    return [0, *itertools.accumulate(lengths)]


def longest(draw: Draw, lengths: list[int]) -> int:
    """A max_seqlen that may be larger than it has to be."""
    least = max(lengths, default=0)
    return least + (draw.of(1, 3, 64) if draw.chance(0.2) else 0)


def varlen_case(
    draw: Draw,
    function: str,
    kernel: Kernel,
    x: Inputs,
    lengths_q: list[int],
    lengths_k: list[int],
    used: list[int] | None,
) -> Case:
    batch, (tokens, heads, _) = len(lengths_q), x.q.shape
    cu_q, cu_k = starts(lengths_q), starts(lengths_k)
    arguments = dict(x.arguments)
    if "qkv" in arguments:
        most = longest(draw, lengths_q)
        arguments |= {"cu_seqlens": draw.int32(cu_q), "max_seqlen": most}
        least = {"max_seqlen": max(lengths_q, default=0)}
    else:
        most = longest(draw, lengths_k)
        arguments |= {"cu_seqlens_q": draw.int32(cu_q), "cu_seqlens_k": draw.int32(cu_k)}
        arguments |= {"max_seqlen_q": longest(draw, lengths_q), "max_seqlen_k": most}
        least = {"max_seqlen_q": max(lengths_q, default=0), "max_seqlen_k": max(lengths_k, default=0)}
    if used is not None:
        arguments["seqused_k"] = draw.int32(used)
    f, words = draw_features(draw, kernel, batch, heads, most)
    f, before = seeded(draw, f)
    if want_lse := not f.dropout and draw.chance(0.5):
        words["return_attn_probs"] = True
    used_q = lengths_q
    limits = not draw.kind.startswith("usm") and not draw.mixed and kernel.variant not in ("dropout", "snippet")
    if function == "flash_attn_varlen_func" and limits and draw.chance(0.3):
        used_q = [draw.random.randint(0, n) for n in lengths_q]
        arguments["seqused_q"] = draw.int32(used_q)
    rows = [start + i for start, n in zip(cu_q, used_q, strict=False) for i in range(n)]

    def check(result: Any) -> None:
        out, lse = parts(result, want_lse, x.kind)
        assert out.shape == (tokens, heads, x.v.shape[-1]), f"out has shape {list(out.shape)}"
        assert lse is None or lse.shape == (heads, tokens), f"the LSE has shape {list(lse.shape)}"
        others = torch.ones(tokens, dtype=torch.bool)
        others[rows] = False
        assert not out[others].any(), "queries that are not used have results"
        q, out, lse = x.q[rows], out[rows], None if lse is None else lse[:, rows]
        check_sequences("", (q, x.k, x.v), (starts(used_q), cu_k), f, out, lse, used, gpu=draw.on_gpu, drawn=True)

    arguments |= renamed(words, FLASH_NAMES)
    way = way_of(draw, arguments, function == "flash_attn_varlen_func" and "seqused_q" not in arguments)
    return Case(function, arguments, check, way, before=before, facts={"longest": least})
