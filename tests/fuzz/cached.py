"""Cases of attention on a cache: flash_attn_with_kvcache, and flash_attn_varlen_func with a block table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from arrays import DTYPES
from caches import FORMATS, as_indexable, rotated
from tolerance import check_attention
from xeflash.selftest import cached
from xeflash.selftest.arrays import TorchArrays
from xeflash.selftest.reference import Features, to_float64
from xeflash.selftest.tolerance import ulp

from .case import Case
from .dense import FLASH_NAMES, longest, parts, renamed, starts, tensor, way_of
from .draw import CacheKernel, Draw, draw_features
from .invalid import is_number
from .memory import Array, place

HOST = TorchArrays("cpu")


@dataclass
class Cache:
    """Arrays of a cache; what no sequence has at the beginning is NaN, or 127."""

    kernel: CacheKernel
    heads: int
    lengths: list[int]  # of the sequences after the call, with what is padded on their left
    pads: list[int]
    added: int
    unseen: list[int]  # keys of each that are out of sight
    writable: bool
    arguments: dict[str, Any] = field(default_factory=dict)
    k: Any = None
    v: Any = None
    scales: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, int] = (0, 0)
    capacity: int = 0
    table: Any = None
    page: int = 0

    def slots(self, b: int, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Where keys [first, end) of sequence b are: two indices of the cache."""
        i, table = np.arange(first, end), self.table[b].numpy()
        if self.page:
            return table[i // self.page], i % self.page
        return (table[i] if self.kernel.place == "beams" else np.full(end - first, table)), i

    def written(self) -> tuple[np.ndarray, ...]:
        """The index of what is appended."""
        places = [self.slots(b, n - self.added, n) for b, n in enumerate(self.lengths)]
        return tuple(np.concatenate([place[axis] for place in places]) for axis in (0, 1)) if places else ([], [])

    def used(self) -> list[tuple[int, int]]:
        """Places of the table that are read whatever the window is."""
        if not self.page and self.kernel.place != "beams":
            return []
        size = self.page or 1
        return [(b, (n - 1) // size) for b, n in enumerate(self.lengths) if n > max(0, self.pads[b])]

    def now(self) -> cached.Cache:
        """What is in it."""
        k, v, *scales = (
            HOST.get(x.values()) if isinstance(x, Array) else x
            for x in (self.k, self.v, self.scales.get("k"), self.scales.get("v"))
        )
        return cached.Cache([], {}, (k, v), (scales[0], scales[1]))


def draw_cache(
    draw: Draw, kernel: CacheKernel, batch: int, heads: int, rows: list[int], left: int, new: int | None = None
) -> Cache:
    """For queries of so many rows, a window of `left` keys or -1, and `new` keys appended to each sequence."""
    more = new or 0
    pads = [0] * batch
    if kernel.place != "paged" and draw.chance(0.25):
        pads = [draw.of(0, 1, 5, 16) for _ in range(batch)]
    one = draw.chance(0.25)  # of one length
    size = draw.keys()
    lengths = [pad + more + (size if one else draw.keys()) for pad in pads]
    if one:
        lengths = [max(lengths, default=0)] * batch
    unseen = [0] * batch
    cache = Cache(kernel, heads, lengths, pads, more, unseen, new is not None)
    table_of = {"paged": pages, "beams": beams, "plain": sequences}[kernel.place]
    table_of(draw, cache, batch)
    if kernel.place == "paged" and 0 <= left < cache.capacity and draw.chance(0.7):
        for b, n in enumerate(lengths):  # pages out of sight may be given up; there must be one to append to
            given_up = min(max(0, n - rows[b] - left), n - more) // cache.page
            cache.table[b, :given_up] = -1
            unseen[b] = given_up * cache.page
    if any(pads):
        cache.arguments["cache_leftpad"] = draw.int32(pads)
    if kernel.place != "plain":
        name = "block_table" if cache.page else "beam_index"
        cache.arguments[name] = draw.array(cache.table, cached=True, forward=True, distinct=True)
    form, _, arrays = kernel.format.partition(".")
    if form != "same" and (arrays or form == "int8" or draw.chance(0.8)):
        for side in "kv":
            usual = 1 / 32 if form == "int8" else draw.of(1.0, 0.02)
            number = float(np.float32(usual * draw.of(0.75, 1.0, 1.3, 1)))
            cache.scales[side] = scales(draw, cache, usual) if arrays else number
        cache.arguments |= {f"{side}_scale": one_number(draw, scale) for side, scale in cache.scales.items()}
    cache.k, cache.v = (filled(draw, cache, dim) for dim in (kernel.dim, kernel.dim_v))
    return cache


def one_number(draw: Draw, scale: Any) -> Any:
    """A number as it is, or in an array; this may be in host memory while all else is on a GPU."""
    if isinstance(scale, Array) or draw.mixed or draw.kind not in ("numpy", "torch", "xpu") or not draw.chance(0.3):
        return scale
    kind = draw.of("torch", "xpu") if draw.kind == "xpu" else draw.kind
    return place(torch.full(draw.of((), (1,)), scale), kind)


def sequences(draw: Draw, cache: Cache, batch: int) -> None:
    cache.capacity = max([*cache.lengths, 1]) + draw.of(0, 1, 9)
    cache.shape = (batch, cache.capacity)
    cache.table = torch.arange(batch, dtype=torch.int32)
    if draw.chance(0.4):
        cache.shape = (max(1, batch) + draw.of(0, 1, 2), cache.capacity)
        chosen = torch.randperm(cache.shape[0], generator=draw.generator)[:batch]
        if not cache.added and draw.chance(0.3):
            chosen = torch.randint(cache.shape[0], (batch,), generator=draw.generator)
        cache.table = chosen.int()
        cache.arguments["cache_batch_idx"] = draw.int32(cache.table)


def pages(draw: Draw, cache: Cache, batch: int) -> None:
    cache.page = draw.of(16, 64) if draw.on_gpu else draw.of(16, 16, 32, 48, 64)
    counts = [-(-n // cache.page) for n in cache.lengths]
    columns = max([*counts, 0]) + draw.of(0, 1, 3)
    pool = sum(counts) + draw.of(1, 3)
    places = torch.randperm(pool, generator=draw.generator)[: sum(counts)].int()
    if not cache.added and counts and draw.chance(0.2):  # shared prefixes
        places = torch.randint(pool, (sum(counts),), generator=draw.generator).int()
    cache.table = torch.full((batch, columns), draw.of(-1, -1, 2**31 - 1), dtype=torch.int32)
    for row, mine in zip(cache.table, places.split(counts), strict=True):
        row[: len(mine)] = mine
    cache.shape, cache.capacity = (pool, cache.page), columns * cache.page


def beams(draw: Draw, cache: Cache, batch: int) -> None:
    columns = max([*cache.lengths, 1]) + draw.of(0, 1, 5)
    cache.shape = (max(1, batch) + draw.of(0, 0, 2), max([*cache.lengths, 1]) + draw.of(0, 1, 9))
    cache.table = torch.randint(cache.shape[0], (batch, columns), generator=draw.generator).int()
    for b, n in enumerate(cache.lengths):
        cache.table[b, n - cache.added : n] = b  # new keys have places of their own
        cache.table[b, n:] = draw.of(-1, 2**31 - 1)
    cache.capacity = min(columns, cache.shape[1])


def filled(draw: Draw, cache: Cache, dim: int) -> Array:
    form = cache.kernel.format.partition(".")[0]
    dtype = FORMATS.get(form, DTYPES[cache.kernel.dtype])
    shape = (*cache.shape, cache.heads, dim)
    values = torch.full(shape, 127, dtype=dtype) if dtype is torch.int8 else torch.full(shape, torch.nan).to(dtype)
    for b, n in enumerate(cache.lengths):
        first, end = cache.pads[b] + cache.unseen[b], n - cache.added
        if end > first:
            rows = draw.numbers(end - first, cache.heads, dim)
            rows = (rows * 32).clamp(-127, 127) if dtype is torch.int8 else rows
            as_indexable(values)[cache.slots(b, first, end)] = as_indexable(rows.to(dtype))
    return draw.array(values, cached=True, distinct=True, written=cache.writable)


def scales(draw: Draw, cache: Cache, usual: float) -> Array:
    values = torch.full((*cache.shape, cache.heads), torch.nan)
    for b, n in enumerate(cache.lengths):
        first, end = cache.pads[b] + cache.unseen[b], n - cache.added
        if end > first:
            factors = torch.rand(end - first, cache.heads, generator=draw.generator) + 0.1
            values[cache.slots(b, first, end)] = factors * usual
    return draw.array(values, distinct=True, written=cache.writable)


# ---- flash_attn_with_kvcache --------------------------------------------------------------------


def flash_attn_with_kvcache(draw: Draw) -> Case:
    kernel, batch, (heads, heads_k) = draw.cache_kernel(), draw.batch(), draw.some_heads()
    rows = draw.rows(kernel)
    more = draw.of(1, 1, 2, 4, 0) if draw.chance(0.5) else None
    f, words = draw_features(draw, kernel, batch, heads, 64)
    left, right = words.get("window_size", (-1, -1))
    cache = draw_cache(draw, kernel, batch, heads_k, [rows] * batch, left, more)
    causal = words.get("causal", False)
    sides = [n if n < cache.capacity else -1 for n in (left, right)]
    f = f.with_(window=(min(sides[0], 2**31), 0 if causal else min(sides[1], 2**31)))
    q = draw.array(tensor(draw, kernel, batch, rows, heads, kernel.dim))
    before = [n - cache.added for n in cache.lengths]
    arguments = {"q": q, "k_cache": cache.k, "v_cache": cache.v, **cache.arguments}
    alike = len(set(before)) == 1
    if more is None and alike and batch and before[0] == cache.capacity and draw.chance(0.5):
        pass  # all of the cache
    else:
        arguments["cache_seqlens"] = before[0] if alike and draw.chance(0.5) else draw.int32(before)
    turned = None
    if more is not None:
        k, v = (draw.array(tensor(draw, kernel, batch, more, heads_k, dim)) for dim in (kernel.dim, kernel.dim_v))
        arguments |= {"k": k, "v": v}
        turned = k.values()
        if kernel.dim >= 16 and draw.chance(0.5):
            in_order = causal or left >= 0 or right >= 0
            turn, options = draw_rotary(draw, kernel, max([*cache.lengths, 0]) + rows + 1)
            arguments |= options
    q_seen = q.values()
    if "rotary_cos" in arguments:
        steps = torch.arange(rows) if in_order else torch.zeros(rows, dtype=torch.int64)
        q_seen = torch.stack([turn(x, n + steps) for x, n in zip(q_seen, before, strict=True)]) if batch else q_seen
    if draw.chance(0.3):
        arguments["num_splits"] = draw.of(1, 2, 3, 17, 128)
    if rows == 1 and draw.chance(0.2):
        arguments["unified_max"] = draw.of(0.0, 1, -5.5, 40.0)
    if want_lse := draw.chance(0.5):
        arguments["return_softmax_lse"] = True
    arguments |= renamed(words, FLASH_NAMES)
    written = {}
    if cache.added:
        index = cache.written()
        names = (name for name in ("k_cache", "v_cache", "k_scale", "v_scale") if name in arguments)
        written = {name: index for name in names if not is_number(name, arguments[name])}

    def check(result: Any) -> None:
        out, lse = parts((*result, None) if want_lse else result, want_lse, q.kind)
        assert out.shape == (batch, rows, heads, kernel.dim_v), f"out has shape {list(out.shape)}"
        assert lse is None or lse.shape == (batch, heads, rows), f"the LSE has shape {list(lse.shape)}"
        now, unit = cache.now(), ulp(1.0, str(q.dtype)[6:]) if "rotary_cos" in arguments else 0.0
        for b in range(batch if cache.added else 0):
            place = cache.slots(b, before[b], cache.lengths[b])
            at = before[b] + torch.arange(cache.added)
            new = turn(turned[b], at) if unit else turned[b], arguments["v"].values()[b]
            for side, rows_of in enumerate(new):
                what = f"{'kv'[side]}_cache of sequence {b}"
                for finding in now.judge_new(what, side, place, to_float64(rows_of), (unit, 0.0)[side]):
                    assert finding.ok, finding
        for b in range(batch):
            check_sequence(cache, b, q_seen[b], f, out[b], None if lse is None else lse[b], draw.on_gpu)

    facts = {"rows": rows, "batch": batch, "capacity": cache.capacity, "added": cache.added}
    facts |= {"places": cache.shape[0], "used": cache.used(), "appended": cache.written()[0]}
    operator = not any(is_number(name, x) for name, x in arguments.items())
    return Case("flash_attn_with_kvcache", arguments, check, way_of(draw, arguments, operator), written, facts=facts)


def draw_rotary(draw: Draw, kernel: CacheKernel, positions: int) -> tuple[Any, dict[str, Any]]:
    dims = draw.random.choice(range(16, kernel.dim + 1, 16))
    angles = torch.rand(positions + draw.of(0, 7), dims // 2, generator=draw.generator) * 7
    cos, sin = (draw.array(x.to(DTYPES[kernel.dtype])) for x in (angles.cos(), angles.sin()))
    pairs = draw.chance(0.5)
    options = {"rotary_cos": cos, "rotary_sin": sin}
    if not pairs or draw.chance(0.5):
        options["rotary_interleaved"] = pairs

    def turn(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return rotated(x, cos.values(), sin.values(), at, "pairs" if pairs else "halves")

    return turn, options


def check_sequence(
    cache: Cache, b: int, q: torch.Tensor, f: Features, out: torch.Tensor, lse: torch.Tensor | None, gpu: bool
) -> None:
    """q and out (rows, H, D), lse (H, rows). Keys out of sight are put before the others, as zeros."""
    place = cache.slots(b, cache.pads[b] + cache.unseen[b], cache.lengths[b])
    k, v = (torch.from_numpy(cache.now().held_by(side, place)) for side in (0, 1))
    if cache.unseen[b]:
        k, v = (torch.cat([x.new_zeros((cache.unseen[b], *x.shape[1:])), x]) for x in (k, v))
    slopes = f.alibi[b : b + 1] if f.alibi is not None and f.alibi.dim() == 2 else f.alibi
    q, k, v, out = (x.transpose(0, 1)[None] for x in (q, k, v, out))
    lse = None if lse is None else lse[None]
    if out.numel():
        check_attention(f"sequence {b}", q, k, v, f.with_(alibi=slopes, batch0=b), out, lse, gpu, drawn=True)


# ---- packed queries on pages --------------------------------------------------------------------


def flash_attn_varlen_paged(draw: Draw) -> Case:
    while (kernel := draw.cache_kernel()).place != "paged" or kernel.format.partition(".")[0] not in ("same", "e4m3"):
        pass
    kernel = CacheKernel(**{**vars(kernel), "format": kernel.format.partition(".")[0]})
    heads, heads_k = draw.some_heads()
    batch = draw.batch()
    lengths_q = [0 if draw.chance(0.1) else draw.rows(kernel) for _ in range(batch)]
    f, words = draw_features(draw, kernel, batch, heads, 64)
    left, right = words.get("window_size", (-1, -1))
    most_q = longest(draw, lengths_q)
    cache = draw_cache(draw, kernel, batch, heads_k, lengths_q, left)
    cache.scales, most_k = {}, longest(draw, cache.lengths)
    sides = [n if n < most_k else -1 for n in (left, right)]
    f = f.with_(window=(min(sides[0], 2**31), 0 if words.get("causal") else min(sides[1], 2**31)))
    q = draw.array(tensor(draw, kernel, sum(lengths_q), heads, kernel.dim))
    cu_q = starts(lengths_q)
    arguments = {"q": q, "k": cache.k, "v": cache.v, "cu_seqlens_q": draw.int32(cu_q), "cu_seqlens_k": None}
    arguments |= {"max_seqlen_q": most_q, "max_seqlen_k": most_k}
    if used := draw.chance(0.5):
        arguments["seqused_k"] = draw.int32(cache.lengths)
    if not used or draw.chance(0.5):
        room = [draw.random.randint(n, most_k) if used else n for n in cache.lengths]
        arguments["cu_seqlens_k"] = draw.int32(starts(room))
    arguments |= {"block_table": cache.arguments["block_table"], **renamed(words, FLASH_NAMES)}
    if want_lse := draw.chance(0.5):
        arguments["return_attn_probs"] = True

    def check(result: Any) -> None:
        out, lse = parts(result, want_lse, q.kind)
        assert out.shape == (sum(lengths_q), heads, kernel.dim_v), f"out has shape {list(out.shape)}"
        assert lse is None or lse.shape == (heads, sum(lengths_q)), f"the LSE has shape {list(lse.shape)}"
        for b in range(batch):
            rows = slice(cu_q[b], cu_q[b + 1])
            of_rows = None if lse is None else lse[:, rows]
            check_sequence(cache, b, q.values()[rows], f, out[rows], of_rows, draw.on_gpu)

    least = {"max_seqlen_q": max(lengths_q, default=0)}
    least["max_seqlen_k"] = 0 if used else max(cache.lengths, default=0)
    facts = {"longest": least, "places": cache.shape[0], "used": cache.used()}
    return Case("flash_attn_varlen_func", arguments, check, way_of(draw, arguments), facts=facts)
