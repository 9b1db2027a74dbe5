"""A case of attention on a cache: lengths, where keys lie, in which format; `run` calls and checks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xeflash
from arrays import DTYPES, from_array, is_on_gpu, to_array
from tolerance import check_attention
from xeflash.selftest.reference import Features

HEADS = {"32/32": (32, 32), "2/2": (2, 2), "32/8": (32, 8), "40/10": (40, 10), "8/1": (8, 1), "6/2": (6, 2)}
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "int8": torch.int8}
LENGTHS = {  # keys of each sequence at the end
    "5000": (5000,),
    "1": (1,),
    "0,17": (0, 17),
    "129,0,700": (129, 0, 700),
    "70,9": (70, 9),
    "eight": (31, 64, 65, 1, 300, 255, 256, 3),
}
WINDOWS = {"full": (-1, -1), "causal": (-1, 0), "window": (40, 7), "left": (100, -1)}
NAN = float("nan")


@dataclass(frozen=True)
class CacheCase:
    dtype: str = "bf16"
    dim: int = 64
    dim_v: int = 64
    lengths: str = "129,0,700"
    rows: int = 1
    heads: str = "6/2"
    place: str = "plain"  # plain, index, pad, paged16 ..., beams1 ...
    format: str = "same"  # same, or e4m3, e5m2, int8 with a scale, or with .array of scales
    new: int = 0  # keys appended by the call
    rotary: str = "none"  # none, pairs, halves
    window: str = "full"
    variant: str = "plain"  # softcap, alibi
    sinks: bool = False
    splits: int = 0
    unified: float | None = None  # the maximum to assume
    seqlens: str = "array"  # or int, where all lengths are equal
    kind: str = "torch"
    lse: bool = True

    @property
    def id(self) -> str:
        dim = f"d{self.dim}" if self.dim == self.dim_v else f"d{self.dim}x{self.dim_v}"
        parts = [self.dtype, dim, f"k{self.lengths}", f"q{self.rows}", self.heads, self.place]
        parts += [self.format] if self.format != "same" else []
        parts += [f"new{self.new}"] if self.new else []
        parts += [self.rotary] if self.rotary != "none" else []
        parts += [self.window] if self.window != "full" else []
        parts += [self.variant] if self.variant != "plain" else []
        parts += ["sinks"] if self.sinks else []
        parts += [f"splits{self.splits}"] if self.splits else []
        parts += [f"max{self.unified:g}"] if self.unified is not None else []
        return "-".join([*parts, self.seqlens, self.kind, *([] if self.lse else ["no-lse"])])


def is_possible(case: CacheCase) -> bool:
    lengths, heads = LENGTHS[case.lengths], HEADS[case.heads][0]
    if (case.rotary != "none" and not case.new) or case.new > min(lengths):
        return False
    if (case.splits > 1 or case.unified is not None) and case.rows > 1:
        return False  # refused
    if case.seqlens == "int" and len(lengths) > 1:
        return False
    if case.kind == "numpy" and case.format.startswith("e"):
        return False  # numpy has them by ml_dtypes: see test_append.py
    return heads * max(lengths) * max(case.rows, 4) * case.dim < 1e8  # the reference takes its time


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, at: torch.Tensor, style: str) -> torch.Tensor:
    """x (tokens, H, D) rotated in fp32 by the positions `at`, in the dtype of x."""
    dims, c, s = 2 * cos.shape[1], cos[at].float()[:, None], sin[at].float()[:, None]
    y = x.float().clone()
    first, second = (
        (slice(0, dims, 2), slice(1, dims, 2)) if style == "pairs" else (slice(dims // 2), slice(dims // 2, dims))
    )
    a, b = y[..., first].clone(), y[..., second].clone()
    y[..., first], y[..., second] = a * c - b * s, a * s + b * c
    return y.to(x.dtype)


def as_indexable(array: torch.Tensor) -> torch.Tensor:
    """The same memory; PyTorch indexes no 8-bit floats."""
    return array.view(torch.int8) if array.dtype in FORMATS.values() else array


class Cache:
    """Arrays of a cache around the keys of a case; what is not a key is NaN, and no table names it."""

    def __init__(self, case: CacheCase, generator: torch.Generator) -> None:
        self.case, self.lengths = case, LENGTHS[case.lengths]
        self.heads, self.heads_k = HEADS[case.heads]
        self.batch, self.longest = len(self.lengths), max(*self.lengths, 1)
        self.dtype = FORMATS.get(case.format.partition(".")[0], DTYPES[case.dtype])
        random = generator
        self.options: dict[str, Any] = {}
        if case.place.startswith("paged"):
            self.page = int(case.place[5:])
            pages = [-(-n // self.page) for n in self.lengths]
            places = torch.randperm(sum(pages) + 3, generator=random)[: sum(pages)].int()
            table = torch.full((self.batch, max(pages) + 1), -1, dtype=torch.int32)
            for row, mine in zip(table, places.split(pages), strict=True):
                row[: len(mine)] = mine
            left = WINDOWS[case.window][0]
            if left >= 0:  # pages that nobody sees are given up
                for row, n in zip(table, self.lengths, strict=True):
                    row[: max(0, n - case.rows - left) // self.page] = -1
            self.table, self.shape = table, (sum(pages) + 3, self.page)
            self.options["block_table"] = table
        else:
            self.shape = (self.batch + (case.place == "index"), self.longest + 9)
            self.index, self.pad = torch.arange(self.batch), torch.zeros(self.batch, dtype=torch.int64)
            if case.place == "index":
                self.index = torch.randperm(self.batch + 1, generator=random)[: self.batch]
                self.options["cache_batch_idx"] = self.index.int()
            elif case.place == "pad":
                self.pad = torch.randint(0, 9, (self.batch,), generator=random)
                self.options["cache_leftpad"] = self.pad.int()
            elif case.place.startswith("beams"):
                width = int(case.place[5:])  # sequences side by side share what they hold
                groups = torch.arange(self.batch)[:, None] // width * width
                choice = groups + torch.randint(0, width, (self.batch, self.shape[1]), generator=random)
                self.table = choice.clamp(max=self.batch - 1).int()
                if case.new:  # new keys have places of their own
                    for b, n in enumerate(self.lengths):
                        self.table[b, n - case.new : n] = b
                self.options["beam_index"] = self.table
        self.k, self.v = (self.filled(dim, random) for dim in (case.dim, case.dim_v))
        self.k_scale = self.v_scale = None
        if case.format != "same":
            if case.format.endswith("array"):
                shape = (*self.shape, self.heads_k)
                self.k_scale, self.v_scale = (torch.full(shape, NAN) for _ in range(2))
                for scale in (self.k_scale, self.v_scale):
                    for b, n in enumerate(self.lengths):
                        count = max(0, n - case.new)
                        factors = torch.rand(count, self.heads_k, generator=random) + 0.1
                        scale[self.slots(b, count)] = factors * self.usual_scale
            else:
                self.k_scale, self.v_scale = 0.75 * self.usual_scale, 1.25 * self.usual_scale
            self.options |= {"k_scale": self.k_scale, "v_scale": self.v_scale}

    @property
    def usual_scale(self) -> float:
        return 1 / 32 if self.dtype == torch.int8 else 1.0

    def filled(self, dim: int, random: torch.Generator) -> torch.Tensor:
        shape = (*self.shape, self.heads_k, dim)
        if self.dtype == torch.int8:
            array = torch.full(shape, 127, dtype=torch.int8)
        else:
            array = torch.full(shape, NAN).to(self.dtype)
        for b, n in enumerate(self.lengths):
            count = max(0, n - self.case.new)
            rows = torch.randn(count, self.heads_k, dim, generator=random)
            rows = (rows * 32).clamp(-127, 127) if self.dtype == torch.int8 else rows
            as_indexable(array)[self.slots(b, count)] = as_indexable(rows.to(self.dtype))
        return array

    def slots(self, b: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the first keys of sequence b are: two indices of the cache."""
        i = torch.arange(count)
        if self.case.place.startswith("paged"):
            return self.table[b, i // self.page].long(), i % self.page
        if self.case.place.startswith("beams"):
            return self.table[b, i].long(), i
        return self.index[b].expand(count), self.pad[b] + i

    def keys(self, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of a sequence as they are in the cache now, dequantised in float64: (keys, Hk, D)."""
        slots = self.slots(b, self.lengths[b])
        result = []
        for array, scale in ((self.k, self.k_scale), (self.v, self.v_scale)):
            rows = as_indexable(array)[slots].view(array.dtype).double()
            if isinstance(scale, torch.Tensor):
                rows = rows * scale[slots].double()[..., None]
            elif scale is not None:
                rows = rows * float(np.float32(scale))
            result.append(rows)
        return result[0], result[1]


def run(case: CacheCase) -> None:
    random = torch.Generator().manual_seed(sum(map(ord, case.id)))
    dtype, lengths = DTYPES[case.dtype], LENGTHS[case.lengths]
    cache = Cache(case, random)
    q = torch.randn(cache.batch, case.rows, cache.heads, case.dim, generator=random).to(dtype)
    options = dict(cache.options)
    pads = options.get("cache_leftpad", torch.zeros(cache.batch, dtype=torch.int32))
    before = (torch.tensor(lengths) + pads - case.new).int()
    options["cache_seqlens"] = before if case.seqlens == "array" else int(before[0])
    causal = case.window == "causal"
    if case.new:
        shapes = [(cache.batch, case.new, cache.heads_k, dim) for dim in (case.dim, case.dim_v)]
        options["k"], options["v"] = (torch.randn(shape, generator=random).to(dtype) for shape in shapes)
    q_seen = q
    if case.rotary != "none":
        angles = torch.rand(max(lengths) + case.rows + 20, case.dim // 16 * 8, generator=random) * 7
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        options |= {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": case.rotary == "pairs"}
        in_order = torch.arange(case.rows) if case.window != "full" else torch.zeros(case.rows, dtype=torch.int64)
        q_seen = torch.stack([rotated(q[b], cos, sin, before[b] + in_order, case.rotary) for b in range(cache.batch)])
    f = Features(window=WINDOWS[case.window], scale=-0.2 if case.splits == 3 else None)
    if case.variant == "softcap":
        f = f.with_(softcap=3.0)
    if case.variant == "alibi":
        f = f.with_(alibi=torch.rand(cache.batch, cache.heads, generator=random) / 2)
    if case.sinks:
        f = f.with_(sinks=torch.randn(cache.heads, generator=random) * 2)
    arrays = {name: to_array(x, case.kind) for name, x in options.items()}
    caches = [to_array(x, case.kind) for x in (cache.k, cache.v)]
    result = xeflash.flash_attn_with_kvcache(
        *(to_array(q, case.kind), *caches),
        **arrays,
        softmax_scale=f.scale,
        causal=causal,
        window_size=(-1, -1) if causal else f.window,
        softcap=f.softcap,
        alibi_slopes=to_array(f.alibi, case.kind),
        s_aux=to_array(f.sinks, case.kind),
        num_splits=case.splits,
        unified_max=case.unified,
        return_softmax_lse=case.lse,
    )
    if is_on_gpu(case.kind):  # they are not the memory of `cache`
        cache.k, cache.v = (from_array(x, case.kind) for x in caches)
        if isinstance(cache.k_scale, torch.Tensor):
            cache.k_scale, cache.v_scale = (from_array(arrays[name], case.kind) for name in ("k_scale", "v_scale"))
    out, lse = result if case.lse else (result, None)
    check(case, cache, q_seen, f, from_array(out, case.kind), None if lse is None else from_array(lse, case.kind))


def check(
    case: CacheCase, cache: Cache, q: torch.Tensor, f: Features, out: torch.Tensor, lse: torch.Tensor | None
) -> None:
    """Against the reference, for the keys that are in the cache."""
    for b in range(cache.batch):
        # flash-attn takes a side that reaches over all keys of the cache as unlimited; no window here reaches so far
        f_b = f.with_(alibi=None if f.alibi is None else f.alibi[b : b + 1])
        k, v = (x.transpose(0, 1)[None] for x in cache.keys(b))
        q_b, out_b = (x[b : b + 1].transpose(1, 2) for x in (q, out))
        lse_b = None if lse is None else lse[b : b + 1]
        check_attention(f"{case.id} sequence {b}", q_b, k, v, f_b, out_b, lse_b, is_on_gpu(case.kind))
