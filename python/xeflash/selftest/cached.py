"""Cases of attention on a KV cache: where keys lie, in which format, with what is rotated and appended."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from xeflash.selftest.arrays import Arrays
from xeflash.selftest.prepared import DTYPES, Prepared, draw, generator_of, work_of
from xeflash.selftest.reference import Features
from xeflash.selftest.tolerance import Finding, compare, judge
from xeflash.selftest.values import Values

Array: TypeAlias = "np.ndarray[Any, Any]"
Places: TypeAlias = "list[tuple[Array, Array]]"  # of each sequence's keys, two indices of the cache


@dataclass(frozen=True)
class Cached:
    """Queries on sequences of `lengths` keys, of which the last `new` are appended by the call."""

    dtype: str = "bf16"
    dim: int = 64
    lengths: tuple[int, ...] = (129, 5, 300)
    rows: int = 1
    heads: tuple[int, int] = (8, 2)
    place: str = "plain"  # index, pad, paged16 ..., beams
    format: str = ""  # of the cache, if it is not dtype: e4m3, e5m2, int8
    scales: str = ""  # of such a cache: number, array
    new: int = 0
    rotary: str = ""  # pairs, halves
    causal: bool = False
    splits: int = 0
    sinks: bool = False
    softcap: float = 0.0

    @property
    def name(self) -> str:
        """What it is."""
        shape = f"{self.heads[0]}/{self.heads[1]} {self.rows}x{max(self.lengths)}"
        words = [f"cache {self.dtype} d{self.dim} {shape}", self.place]
        words += [f"{self.format}, scale{'s' if self.scales == 'array' else ''}"] if self.format else []
        words += [f"{self.new} new"] if self.new else []
        words += [f"rotary {self.rotary}"] if self.rotary else []
        words += [f"{self.splits} splits"] if self.splits else []
        flags = {"causal": self.causal, "sinks": self.sinks, "softcap": self.softcap > 0}
        return " ".join([*words, *(word for word, is_so in flags.items() if is_so)])

    def prepare(self, arrays: Arrays) -> Prepared:
        """Draw its arrays."""
        xeflash: Any = importlib.import_module("xeflash")
        random, dtype = generator_of(self.name), DTYPES[self.dtype]
        batch, (heads, heads_k), dims = len(self.lengths), self.heads, (self.dim, self.dim)
        places, shape, options = self._places(random)
        stored = DTYPES[self.format or self.dtype]
        f = Features(window=(-1, 0) if self.causal else (-1, -1), softcap=self.softcap)
        before = [n - self.new for n in self.lengths]
        caches, scales = zip(*(self._fill(random, shape, places, stored, side) for side in (0, 1)), strict=True)
        q = draw(random, dtype, batch, self.rows, heads, self.dim)
        q_seen = q.numbers
        new_rows: list[Array] = []
        pads = np.asarray(options.get("cache_leftpad", np.zeros(batch, int)))
        tables = {name: Values.of(table, "int32") for name, table in options.items()}
        tables["cache_seqlens"] = Values.of(np.asarray(before) + pads, "int32")
        named: dict[str, Any] = {name: arrays.put(table) for name, table in tables.items()}
        if self.sinks:
            sinks = Values.of(random.standard_normal(heads) * 2, "float32")
            f, named["s_aux"] = f.with_(sinks=sinks.numbers), arrays.put(sinks)
        if self.new:
            k_new, v_new = (draw(random, dtype, batch, self.new, heads_k, self.dim) for _ in range(2))
            named |= {"k": arrays.put(k_new), "v": arrays.put(v_new)}
            new_rows = [k_new.numbers, v_new.numbers]
        if self.rotary:
            angles = random.random((max(self.lengths) + 20, self.dim // 4)) * 7
            cos, sin = (Values.of(x, dtype) for x in (np.cos(angles), np.sin(angles)))
            named |= {"rotary_cos": arrays.put(cos), "rotary_sin": arrays.put(sin)}
            named["rotary_interleaved"] = self.rotary == "pairs"
            at = np.asarray(before)[:, None] + pads[:, None]
            turn = (cos.numbers, sin.numbers, self.rotary, dtype)
            q_seen = rotated(q_seen, at + (np.arange(self.rows) if self.causal else 0), *turn)
            new_rows[0] = rotated(new_rows[0], at + np.arange(self.new), *turn)
        device_caches = [arrays.put(x) for x in caches]
        device_scales = [arrays.put(x) if isinstance(x, Values) else x for x in scales]
        named |= {"k_scale": device_scales[0], "v_scale": device_scales[1]}
        device_q = arrays.put(q)

        def call() -> Any:
            return xeflash.flash_attn_with_kvcache(
                device_q, *device_caches, **named, causal=self.causal, num_splits=self.splits, softcap=self.softcap,
                return_softmax_lse=True,
            )  # fmt: skip

        def check(result: Any) -> list[Finding]:
            out, lse = (arrays.get(x).numbers for x in result)
            held = [arrays.get(x) for x in device_caches]
            factors = [arrays.get(x).numbers[..., None] if isinstance(s, Values) else s or 1.0
                       for s, x in zip(scales, device_scales, strict=True)]  # fmt: skip
            found = []
            for side, letter in enumerate("kv"):
                found += self._judge_cache(letter, caches[side], held[side], factors[side], places,
                                           new_rows[side] if self.new else None)  # fmt: skip
            for b, place in enumerate(places):
                k, v = (np.asarray(x.numbers * factor)[place].swapaxes(0, 1)[None]
                        for x, factor in zip(held, factors, strict=True))  # fmt: skip
                got, got_lse = out[b].swapaxes(0, 1)[None], lse[b : b + 1]
                seen = q_seen[b].swapaxes(0, 1)[None]
                found += judge(f"sequence {b} ", dtype, (seen, k, v), f, got, got_lse, arrays.on_gpu)
            return found

        work = [work_of(self.rows, n, heads, heads_k, dims, f) for n in self.lengths]
        of_q = 2 * q.bits.nbytes
        of_kv = sum(self.lengths) * heads_k * sum(dims) * caches[0].bits.itemsize
        return Prepared(call, check, sum(w[0] for w in work), of_q + of_kv)

    def _places(self, random: np.random.Generator) -> tuple[Places, tuple[int, int], dict[str, Array]]:
        """For each sequence two indices of its keys, the first two sizes of the cache, and the tables of the call."""
        batch, longest = len(self.lengths), max(self.lengths) + 9
        keys = [np.arange(n) for n in self.lengths]
        if self.place.startswith("paged"):
            page = int(self.place[5:])
            counts = [-(-n // page) for n in self.lengths]
            pages = random.permutation(sum(counts) + 3)[: sum(counts)]
            table = np.full((batch, max(counts) + 1), -1)
            for row, mine in zip(table, np.split(pages, np.cumsum(counts)[:-1]), strict=True):
                row[: len(mine)] = mine
            places = [(table[b][i // page], i % page) for b, i in enumerate(keys)]
            return places, (sum(counts) + 3, page), {"block_table": table}
        if self.place == "beams":  # what is new is a sequence's own
            choice = random.integers(0, batch, (batch, longest))
            for b, n in enumerate(self.lengths):
                choice[b, n - self.new : n] = b
                choice[b] = np.where(np.asarray(self.lengths)[choice[b]] > np.arange(longest), choice[b], b)
            return [(choice[b][i], i) for b, i in enumerate(keys)], (batch, longest), {"beam_index": choice}
        if self.place == "index":
            index = random.permutation(batch + 1)[:batch]
            places = [(np.full(len(i), index[b]), i) for b, i in enumerate(keys)]
            return places, (batch + 1, longest), {"cache_batch_idx": index}
        pads = random.integers(1, 9, batch) if self.place == "pad" else np.zeros(batch, int)
        places = [(np.full(len(i), b), i + pads[b]) for b, i in enumerate(keys)]
        return places, (batch, longest), {"cache_leftpad": pads} if self.place == "pad" else {}

    def _fill(
        self, random: np.random.Generator, shape: tuple[int, int], places: Places, stored: str, side: int
    ) -> tuple[Values, Values | float | None]:
        """K or V with what is in it before the call, and its scale."""
        heads_k = self.heads[1]
        cache = Values.filled((*shape, heads_k, self.dim), stored)
        usual = 1 / 32 if stored == "int8" else 1.0
        scale: Values | float | None = (0.75, 1.25)[side] * usual if self.scales == "number" else None
        if self.scales == "array":
            scale = Values.filled((*shape, heads_k), "float32")
        for i, j in places:
            old = (i[: len(i) - self.new], j[: len(j) - self.new])
            rows = random.standard_normal((len(old[0]), heads_k, self.dim), np.float32)
            cache.bits[old] = Values.of(rows / usual, stored).bits
            if isinstance(scale, Values):
                scale.bits[old] = (random.random((len(old[0]), heads_k)) + 0.1) * usual
        if stored == "int8" and isinstance(scale, float):
            scale = float(np.float32(scale))
        return cache, scale

    def _judge_cache(
        self, letter: str, before: Values, after: Values, factor: Any, places: Places, new: Array | None
    ) -> list[Finding]:
        """What was appended, to the rounding of its format; the rest byte by byte."""
        mine = np.zeros(before.bits.shape[:2], bool)
        found = []
        for b, (i, j) in enumerate(places):
            if new is not None:
                slots = (i[len(i) - self.new :], j[len(j) - self.new :])
                mine[slots] = True
                factors = np.broadcast_to(factor, after.bits.shape)[slots]
                held = Values(after.bits[slots], after.dtype)
                want = Values.of(new[b] / factors, after.dtype).numbers * factors  # no further than the type reaches
                limit = held.spacing() * factors + 2.0**-22 * np.max(np.abs(new[b]))  # rotating adds, in fp32
                found.append(compare(f"sequence {b} {letter}_cache, new", held.numbers * factors, want, limit))
        bits = [x.bits.view(np.dtype(f"u{x.bits.itemsize}")) for x in (before, after)]
        old = [np.where(mine[..., None, None], 0, x) for x in bits]
        return [*found, compare(f"bytes of {letter}_cache", old[1].astype(float), old[0].astype(float), 0.0)]


def rotated(x: Array, at: Array, cos: Array, sin: Array, style: str, dtype: str) -> Array:
    """x (B, S, H, D) whose first dimensions are rotated by the positions `at` (B, S), rounded to a type."""
    half = cos.shape[1]
    c, s = cos[at][:, :, None], sin[at][:, :, None]
    one, two = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if style == "pairs" else (slice(half), slice(half, 2 * half))
    )
    y = x.copy()
    y[..., one], y[..., two] = x[..., one] * c - x[..., two] * s, x[..., one] * s + x[..., two] * c
    return Values.of(y, dtype).numbers
