"""Cases of attention on a KV cache: where keys lie, in which format, with what is rotated and appended."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from xeflash.selftest.arrays import Arrays
from xeflash.selftest.prepared import DTYPES, Prepared, draw, generator_of, result_of, work_of
from xeflash.selftest.reference import Features
from xeflash.selftest.tolerance import Finding, Judge, compare, judge, ulp
from xeflash.selftest.values import Values, spacing

Array: TypeAlias = "np.ndarray[Any, Any]"
Place: TypeAlias = tuple[Array, Array]  # of the keys of a sequence, two indices of the cache
Scale: TypeAlias = "Values | float | None"


_LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "int8": 127.0}


@dataclass(frozen=True)
class Cache:
    """K and V, and where they are."""

    places: list[Place]  # of each sequence
    tables: dict[str, Array]  # by their keywords
    arrays: tuple[Values, Values]
    scales: tuple[Scale, Scale]

    def held_by(self, side: int, place: Place) -> Array:
        """Some keys, or values, as they are there now, without their scale: (keys, Hk, D)."""
        x = self.arrays[side]
        numbers = Values(x.bits[place], x.dtype).numbers
        return np.multiply(numbers, self.factors(side, place), out=numbers)

    def factors(self, side: int, place: Place) -> Any:
        """What the numbers there are multiplied by."""
        scale = self.scales[side]
        return scale.numbers[place][..., None] if isinstance(scale, Values) else float(np.float32(scale or 1.0))

    def judge_new(self, what: str, side: int, place: Place, rows: Array, unit: float = 0.0) -> list[Finding]:
        """Rows that were appended there, rounded once, or once more, to `unit`, if they were rotated before."""
        dtype, factors, found = self.arrays[side].dtype, self.factors(side, place), list[Finding]()
        size = np.max(np.abs(rows), axis=-1, keepdims=True, initial=0.0)
        limit = unit * np.abs(rows) + (2.0**-21 * size if unit else 0.0)  # the products may be fused with the sum
        if largest := _LARGEST.get(dtype):
            if isinstance(self.scales[side], Values):
                wanted = np.where(size > 0, size / largest, 1.0)
                found.append(compare(f"{what}: scale", factors, wanted, wanted * (2.0**-20 + 2 * unit)))
            rows = np.clip(rows, -largest * factors, largest * factors)
            limit = limit + 1.0001 * spacing(rows / factors, dtype) * factors / 2 + 2.0**-22 * size
        return [*found, compare(f"{what}: new", self.held_by(side, place), rows, limit)]


@dataclass(frozen=True)
class Cached:
    """Queries on sequences of `lengths` keys, of which the last `new` are appended by the call."""

    dtype: str = "bf16"
    dim: int = 64
    lengths: tuple[int, ...] = (129, 5, 300)
    rows: int = 1
    heads: tuple[int, int] = (8, 2)
    place: str = "plain"  # index, pad, paged16 ..., beams: all sequences share what they hold, beams2 ...: so many do
    format: str = ""  # of the cache, if it is not dtype: e4m3, e5m2, int8
    scales: str = ""  # of such a cache: number, array
    new: int = 0
    rotary: str = ""  # pairs, halves
    window: tuple[int, int] = (-1, -1)  # (-1, 0) is causal
    splits: int = 0
    sinks: bool = False
    softcap: float = 0.0
    dim_v: int = 0  # 0: as dim
    turned: int = 0  # dimensions that rotate; 0: half of them
    alibi: bool = False
    scale: float | None = None
    unified: float | None = None  # the maximum to assume
    same_length: bool = False  # of all sequences, as a number
    lse: bool = True

    @property
    def name(self) -> str:
        """What it is."""
        shape = f"{self.heads[0]}/{self.heads[1]} {self.rows}x{max(self.lengths)}"
        words = [f"cache {self.dtype} d{self.dim} {shape}", self.place]
        words += [f"{self.format}, scale{'s' if self.scales == 'array' else ''}"] if self.format else []
        words += [f"{self.new} new"] if self.new else []
        words += [f"rotary {self.rotary}"] if self.rotary else []
        words += [f"{self.splits} splits"] if self.splits else []
        flags = {"causal": self.window == (-1, 0), "sinks": self.sinks, "softcap": self.softcap > 0}
        return " ".join([*words, *(word for word, is_so in flags.items() if is_so)])

    def prepare(self, arrays: Arrays, rule: Judge = judge) -> Prepared:
        """Draw its arrays."""
        xeflash: Any = importlib.import_module("xeflash")
        random, dtype = generator_of(self.name), DTYPES[self.dtype]
        batch, (heads, heads_k), dims = len(self.lengths), self.heads, (self.dim, self.dim_v or self.dim)
        cache = self.cache(random)
        f = Features(self.scale, self.window, softcap=self.softcap)
        before = np.asarray(self.lengths) - self.new + cache.tables.get("cache_leftpad", 0)
        q = draw(random, dtype, batch, self.rows, heads, self.dim)
        q_seen = q.numbers
        new: list[Array] = []
        tables = {name: Values.of(table, "int32") for name, table in cache.tables.items()}
        named: dict[str, Any] = {name: arrays.put(table) for name, table in tables.items()}
        named["cache_seqlens"] = int(before[0]) if self.same_length else arrays.put(Values.of(before, "int32"))
        if self.alibi:
            slopes = Values.of(random.random((batch, heads)) / 2, "float32")
            f, named["alibi_slopes"] = f.with_(alibi=slopes.numbers), arrays.put(slopes)
        if self.sinks:
            sinks = Values.of(random.standard_normal(heads) * 2, "float32")
            f, named["s_aux"] = f.with_(sinks=sinks.numbers), arrays.put(sinks)
        if self.new:
            appended = [draw(random, dtype, batch, self.new, heads_k, dim) for dim in dims]
            named |= {name: arrays.put(x) for name, x in zip("kv", appended, strict=True)}
            new = [x.numbers for x in appended]
        if self.rotary:
            turned = self.turned or self.dim // 2
            angles = random.random((max(self.lengths) + self.rows + 20, turned // 2)) * 7
            cos, sin = (Values.of(x, dtype) for x in (np.cos(angles), np.sin(angles)))
            named |= {"rotary_cos": arrays.put(cos), "rotary_sin": arrays.put(sin)}
            named["rotary_interleaved"] = self.rotary == "pairs"
            turn = (cos.numbers, sin.numbers, self.rotary, dtype)
            in_order = np.arange(self.rows) if self.window != (-1, -1) else 0
            q_seen = rotated(q_seen, before[:, None] + in_order, *turn)
            new[0] = rotated(new[0], before[:, None] + np.arange(self.new), *turn)
        there = [arrays.put(x) for x in cache.arrays]
        scales = [arrays.put(x) if isinstance(x, Values) else x for x in cache.scales]
        named |= {"k_scale": scales[0], "v_scale": scales[1]}
        device_q, causal = arrays.put(q), self.window == (-1, 0)

        def call() -> Any:
            return xeflash.flash_attn_with_kvcache(
                device_q, *there, **named, softmax_scale=self.scale, causal=causal, softcap=self.softcap,
                window_size=(-1, -1) if causal else self.window, num_splits=self.splits, unified_max=self.unified,
                return_softmax_lse=self.lse,
            )  # fmt: skip

        def check(result: Any) -> list[Finding]:
            out, lse = result_of(arrays, result, dtype, self.lse)
            k, v = (arrays.get(x) for x in there)
            factors = [arrays.get(x) if self.scales == "array" else x for x in scales]
            now = replace(cache, arrays=(k, v), scales=(factors[0], factors[1]))
            found = [finding for side in (0, 1) for finding in self._judge_cache(side, cache, now, new)]
            for b in range(batch):
                f_b = f.with_(alibi=None if f.alibi is None else f.alibi[b : b + 1])
                lse_b = None if lse is None else lse[b : b + 1]
                found += self.judge(b, now, q_seen[b], f_b, out[b], lse_b, arrays.on_gpu, rule)
            return found

        work = [work_of(self.rows, n, heads, heads_k, dims, f) for n in self.lengths]
        of_kv = sum(self.lengths) * heads_k * sum(dims) * cache.arrays[0].bits.itemsize
        of_q = batch * self.rows * heads * sum(dims) * q.bits.itemsize
        return Prepared(call, check, sum(w[0] for w in work), of_q + of_kv)

    def judge(
        self, b: int, cache: Cache, q: Array, f: Features, out: Array, lse: Any, on_gpu: bool, rule: Judge = judge
    ) -> list[Finding]:
        """A sequence, q and out (rows, H, D), lse (1, H, rows), for the keys that are in the cache."""
        k, v = (cache.held_by(side, cache.places[b]) for side in (0, 1))
        q_b, k_b, v_b, got = (x.swapaxes(0, 1)[None] for x in (q, k, v, out))
        return rule(f"sequence {b} ", DTYPES[self.dtype], (q_b, k_b, v_b), f, got, lse, on_gpu)

    def cache(self, random: np.random.Generator) -> Cache:
        """As it is before the call; what is not a key is NaN, and no table names it."""
        places, shape, tables = self._places(random)
        k, v = (self._fill(random, shape, places, side) for side in (0, 1))
        return Cache(places, tables, (k[0], v[0]), (k[1], v[1]))

    def _places(self, random: np.random.Generator) -> tuple[list[Place], tuple[int, int], dict[str, Array]]:
        """For each sequence where its keys are, the first two sizes of the cache, and the tables of the call."""
        batch, longest = len(self.lengths), max(*self.lengths, 1) + 9
        keys = [np.arange(n) for n in self.lengths]
        if self.place.startswith("paged"):
            page = int(self.place[5:])
            counts = [-(-n // page) for n in self.lengths]
            pages = random.permutation(sum(counts) + 3)[: sum(counts)]
            table = np.full((batch, max(counts) + 1), -1)
            for row, mine in zip(table, np.split(pages, np.cumsum(counts)[:-1]), strict=True):
                row[: len(mine)] = mine
            places = [(table[b][i // page], i % page) for b, i in enumerate(keys)]
            if self.window[0] >= 0:  # pages that nobody sees are given up
                for row, n in zip(table, self.lengths, strict=True):
                    row[: max(0, n - self.rows - self.window[0]) // page] = -1
            return places, (sum(counts) + 3, page), {"block_table": table}
        if self.place.startswith("beams"):
            width = int(self.place[5:] or batch)
            group = np.arange(batch)[:, None] // width * width
            choice = np.minimum(group + random.integers(0, width, (batch, longest)), batch - 1)
            for b, n in enumerate(self.lengths):
                choice[b, n - self.new : n] = b  # what is new is a sequence's own
            return [(choice[b][i], i) for b, i in enumerate(keys)], (batch, longest), {"beam_index": choice}
        if self.place == "index":
            index = random.permutation(batch + 1)[:batch]
            places = [(np.full(len(i), index[b]), i) for b, i in enumerate(keys)]
            return places, (batch + 1, longest), {"cache_batch_idx": index}
        pads = random.integers(0, 9, batch) if self.place == "pad" else np.zeros(batch, int)
        places = [(np.full(len(i), b), i + pads[b]) for b, i in enumerate(keys)]
        return places, (batch, longest), {"cache_leftpad": pads} if self.place == "pad" else {}

    def _fill(
        self, random: np.random.Generator, shape: tuple[int, int], places: list[Place], side: int
    ) -> tuple[Values, Scale]:
        """K or V with what is in it before the call, and its scale."""
        heads_k, dim, stored = (
            self.heads[1],
            (self.dim, self.dim_v or self.dim)[side],
            DTYPES[self.format or self.dtype],
        )
        cache = Values.filled((*shape, heads_k, dim), stored)
        usual = 1 / 32 if stored == "int8" else 1.0
        scale: Scale = (0.75, 1.25)[side] * usual if self.scales == "number" else None
        if self.scales == "array":
            scale = Values.filled((*shape, heads_k), "float32")
        for i, j in places:
            old = (i[: len(i) - self.new], j[: len(j) - self.new])
            rows = random.standard_normal((len(old[0]), heads_k, dim), np.float32)
            cache.bits[old] = Values.of(rows / usual, stored).bits
            if isinstance(scale, Values):
                scale.bits[old] = (random.random((len(old[0]), heads_k)) + 0.1) * usual
        return cache, scale

    def _judge_cache(self, side: int, before: Cache, after: Cache, new: list[Array]) -> list[Finding]:
        """What was appended, to the rounding of its format; the rest byte by byte."""
        x, letter = after.arrays[side], "kv"[side]
        found: list[Finding] = []
        mine = np.zeros(x.bits.shape[:2], bool)
        for b, (i, j) in enumerate(after.places if new else []):
            slots = (i[len(i) - self.new :], j[len(j) - self.new :])
            mine[slots] = True
            unit = ulp(1.0, DTYPES[self.dtype]) if self.rotary and side == 0 else 0.0
            found += after.judge_new(f"sequence {b} {letter}_cache", side, slots, new[side][b], unit)
        old, now = (y.bits.view(f"u{y.bits.itemsize}") for y in (before.arrays[side], x))
        changed = np.where(mine, 0.0, (old != now).sum((2, 3)))
        return [*found, compare(f"changed elements of {letter}_cache", changed, np.zeros_like(changed), 0.0)]


def rotated(x: Array, at: Array, cos: Array, sin: Array, style: str, dtype: str) -> Array:
    """x (B, S, H, D) whose first dimensions are rotated in fp32 by the positions `at` (B, S), rounded to a type."""
    half = cos.shape[1]
    c, s = (y[at][:, :, None].astype(np.float32) for y in (cos, sin))
    one, two = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if style == "pairs" else (slice(half), slice(half, 2 * half))
    )
    y = x.astype(np.float32)
    a, b = y[..., one].copy(), y[..., two].copy()
    y[..., one], y[..., two] = a * c - b * s, a * s + b * c
    return Values.of(y, dtype).numbers
