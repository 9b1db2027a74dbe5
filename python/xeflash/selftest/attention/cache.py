"""KV caches: places and formats of keys, and the judge of what a call leaves there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from xeflash.selftest.arrays import Arrays
from xeflash.selftest.attention.nibbles import COLUMNS, packed, unpacked
from xeflash.selftest.attention.spec import Spec
from xeflash.selftest.prepared import DTYPES, normal
from xeflash.selftest.tolerance import Finding, compare
from xeflash.selftest.values import LARGEST, Values, spacing

Array: TypeAlias = "np.ndarray[Any, Any]"
Place: TypeAlias = tuple[Array, Array]  # two indices of the cache for the keys of a sequence
Scale: TypeAlias = "Values | float | None"
Random: TypeAlias = np.random.Generator

_QUANTISED = ("float8_e4m3fn", "float8_e5m2", "int8")


@dataclass(frozen=True)
class Cache:
    """K and V and their places; all other elements are NaN, and no table names them."""

    places: list[Place]  # the place of each sequence
    capacity: int  # keys that a sequence may have
    tables: dict[str, Array]  # by their keywords
    arrays: tuple[Values, Values]
    scales: tuple[Scale, Scale]

    @classmethod
    def of(cls, spec: Spec, random: Random) -> Cache:
        """Draws the cache of a Spec, as it is before the call."""
        layout = _layout(spec, random)
        k, v = (_filled(spec, random, layout, side) for side in (0, 1))
        return cls(layout.places, layout.capacity, layout.tables, (k[0], v[0]), (k[1], v[1]))

    def before(self, spec: Spec) -> Array:
        """Returns the places at which sequences end before the call, which cache_seqlens says."""
        return np.array([n for _, n in spec.sequences]) - spec.new + self.tables.get("cache_leftpad", 0)

    def after(self, arrays: Arrays, put: Mapping[str, Any]) -> Cache:
        """Returns a cache with the same places, and with the arrays as they are after a call."""
        k, v = (arrays.get(put[f"{x}_cache"]) for x in "kv")
        scales = [
            arrays.get(put[f"{x}_scale"]) if f"{x}_scale" in put else scale
            for x, scale in zip("kv", self.scales, strict=True)
        ]
        return replace(self, arrays=(k, v), scales=(scales[0], scales[1]))

    def held_by(self, side: int, place: Place) -> Array:
        """Returns the keys or values at a place as numbers times their scale: (keys, Hk, D)."""
        x = self.arrays[side]
        if x.dtype == "uint8":
            return unpacked(x.bits[place], self._scales_of_units(place))
        numbers = x.part(place)
        return np.multiply(numbers, self.factors(side, place), out=numbers)

    def _scales_of_units(self, place: Place) -> Array:
        scale = self.scales[1]
        assert isinstance(scale, Values)
        return scale.bits[place]

    def factors(self, side: int, place: Place) -> Any:
        """Returns the factors of the numbers at a place."""
        scale = self.scales[side]
        return scale.numbers[place][..., None] if isinstance(scale, Values) else float(np.float32(scale or 1.0))

    def judge_new(self, what: str, side: int, place: Place, rows: Array, unit: float = 0.0) -> list[Finding]:
        """Judges rows appended at a place, which are rounded once, or once more to `unit` if they were rotated."""
        dtype, found = self.arrays[side].dtype, list[Finding]()
        if dtype == "uint8":
            got = (self.arrays[side].bits[place], self._scales_of_units(place))
            pairs = zip(("new bytes", "scale"), got, packed(rows), strict=True)
            return [compare(f"{what}: {name}", x.astype(float), y.astype(float), 0.0) for name, x, y in pairs]
        factors = self.factors(side, place)
        size = np.max(np.abs(rows), axis=-1, keepdims=True, initial=0.0)
        limit = unit * np.abs(rows) + (2.0**-21 * size if unit else 0.0)  # the products may be fused with the sum
        if dtype in _QUANTISED:
            largest = LARGEST[dtype]
            if isinstance(self.scales[side], Values):
                wanted = np.where(size > 0, size / largest, 1.0)
                found.append(compare(f"{what}: scale", factors, wanted, wanted * (2.0**-20 + 2 * unit)))
            rows = np.clip(rows, -largest * factors, largest * factors)
            limit = limit + 1.0001 * spacing(rows / factors, dtype) * factors / 2 + 2.0**-22 * size
        return [*found, compare(f"{what}: new", self.held_by(side, place), rows, limit)]

    def judge_after(self, before: Cache, new: list[Array], unit: float) -> list[Finding]:
        """Judges the cache after a call: `new` keys and values are there, rounded to its format; the others stay."""
        found: list[Finding] = []
        for side, letter in enumerate("kv"):
            x = self.arrays[side]
            mine = np.zeros(x.bits.shape[:2], bool)
            for b, (i, j) in enumerate(self.places if new else []):
                count = new[side].shape[1]
                slots = (i[len(i) - count :], j[len(j) - count :])
                mine[slots] = True
                rounded = unit if side == 0 else 0.0
                found += self.judge_new(f"sequence {b} {letter}_cache", side, slots, new[side][b], rounded)
            old, now = (y.bits.view(f"u{y.bits.itemsize}") for y in (before.arrays[side], x))
            changed = np.where(mine, 0.0, (old != now).sum((2, 3)))
            found.append(compare(f"changed elements of {letter}_cache", changed, np.zeros_like(changed), 0.0))
        return found


@dataclass(frozen=True)
class _Layout:
    """The places of each sequence's keys, the first two sizes of the cache, its capacity, and the call's tables."""

    places: list[Place]
    shape: tuple[int, int]
    capacity: int
    tables: dict[str, Array]


def _layout(spec: Spec, random: Random) -> _Layout:
    spare = 0 if spec.length == "all" else int(random.integers(0, 10))  # places beyond the longest sequence
    nowhere = random.choice([-1, 2**31 - 1])  # in a table: nobody may read it
    of = {"paged": _in_pages, "beams": _in_beams}.get(spec.place[:5], _in_rows)
    return of(spec, random, spare, nowhere)


def _in_pages(spec: Spec, random: Random, spare: int, nowhere: int) -> _Layout:
    page = int(spec.place.partition("+")[0][5:])
    counts = [-(-n // page) for _, n in spec.sequences]
    pool, used = sum(counts) + 1 + spare, sum(counts)
    pages = random.integers(0, pool, used) if _is_shared(spec) else random.permutation(pool)[:used]
    table = np.full((len(counts), max(counts, default=0) + spare % 4), nowhere)
    for row, count, end in zip(table, counts, np.cumsum(counts), strict=True):
        row[:count] = pages[end - count : end]
    places = [
        (row[np.arange(n) // page], np.arange(n) % page) for row, (_, n) in zip(table, spec.sequences, strict=True)
    ]
    if (left := spec.sides[0]) >= 0:
        for row, (rows, n) in zip(table, spec.sequences, strict=True):  # pages that nobody sees are given up
            row[: min(max(0, n - rows - left), n - spec.new) // page] = -1
    return _Layout(places, (pool, page), table.shape[1] * page, {"block_table": table})


def _in_beams(spec: Spec, random: Random, spare: int, nowhere: int) -> _Layout:
    """Places keys so that sequences share them: as many as the number behind the word says, or all."""
    batch, (keys, longest, tables) = len(spec.sequences), _padded(spec, random)
    width = int(spec.place.partition("+")[0][5:] or batch or 1)
    choice = np.arange(batch)[:, None] // width * width + random.integers(0, width, (batch, longest + spare % 3))
    choice = np.minimum(choice, batch - 1)
    for row, b, at in zip(choice, range(batch), keys, strict=True):
        end = at[-1] + 1 if len(at) else 0
        row[end - min(spec.new, len(at)) : end], row[end:] = b, nowhere  # new keys are a sequence's own
    places = [(row[at], at) for row, at in zip(choice, keys, strict=True)]
    return _Layout(
        places, (batch, longest + spare), min(choice.shape[1], longest + spare), {"beam_index": choice, **tables}
    )


def _in_rows(spec: Spec, random: Random, spare: int, _: int) -> _Layout:
    batch, (keys, longest, tables) = len(spec.sequences), _padded(spec, random)
    index, count = np.arange(batch), batch + ("index" in spec.place)
    if "index" in spec.place:
        index = random.integers(0, count, batch) if _is_shared(spec) else random.permutation(count)[:batch]
        tables |= {"cache_batch_idx": index}
    places = [(np.full(len(at), i), at) for i, at in zip(index, keys, strict=True)]
    return _Layout(places, (count, longest + spare), longest + spare, tables)


def _padded(spec: Spec, random: Random) -> tuple[list[Array], int, dict[str, Array]]:
    """Returns positions of each sequence's keys, the end of the longest one, and the table of padding on their left."""
    lengths, is_padded = np.array([n for _, n in spec.sequences], int), "pad" in spec.place
    pads = random.integers(0, 17, len(lengths)) if is_padded else 0 * lengths
    keys = [at + np.arange(n) for at, n in zip(pads, lengths, strict=True)]
    return keys, int(max([1, *(pads + lengths)])), {"cache_leftpad": pads} if is_padded else {}


def _is_shared(spec: Spec) -> bool:
    """Returns whether sequences share places, which none of them appends to."""
    return "shared" in spec.place and not spec.new


def _filled(spec: Spec, random: Random, layout: _Layout, side: int) -> tuple[Values, Scale]:
    """Draws K or V as the cache holds it before the call, and its scale."""
    form, _, arrays = spec.format.partition(".")
    heads_k, dim, stored = spec.heads[1], spec.dims[side], DTYPES[form or spec.dtype]
    if spec.has_nibbles and side == 1:
        return _filled_with_nibbles(spec, random, layout)
    cache = Values.filled((*layout.shape, heads_k, dim), stored)
    usual = 1 / 32 if stored == "int8" else 1.0
    scale: Scale = (0.75, 1.25)[side] * usual if form and arrays != "none" else None
    if arrays in ("array", "nibbles"):
        scale = Values.filled((*layout.shape, heads_k), "float32")
    for i, j in layout.places:
        old = (i[: len(i) - spec.new], j[: len(j) - spec.new])
        rows = normal(random, "float32", len(old[0]), heads_k, dim, kind=spec.values).numbers
        cache.bits[old] = Values.of(rows / usual, stored).bits
        if isinstance(scale, Values):
            scale.bits[old] = (random.random((len(old[0]), heads_k)) + 0.1) * usual
    return cache, scale


def _filled_with_nibbles(spec: Spec, random: Random, layout: _Layout) -> tuple[Values, Values]:
    shape, dim = (*layout.shape, spec.heads[1]), spec.dims[1]
    cache, scale = Values.filled((*shape, dim // 2), "uint8"), Values.filled((*shape, dim // COLUMNS), "float16")
    for i, j in layout.places:
        old = (i[: len(i) - spec.new], j[: len(j) - spec.new])
        rows = normal(random, "float32", len(old[0]), spec.heads[1], dim, kind=spec.values).numbers
        cache.bits[old], scale.bits[old] = packed(rows)
    return cache, scale


def rotated(x: Array, at: Array, cos: Array, sin: Array, style: str, dtype: str) -> Array:
    """Rotates the first dimensions of x (B, S, H, D) in fp32 by the positions `at` (B, S), and rounds to a type."""
    half = cos.shape[1]
    c, s = (y[at][:, :, None].astype(np.float32) for y in (cos, sin))
    one, two = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if style == "pairs" else (slice(half), slice(half, 2 * half))
    )
    y = x.astype(np.float32)
    a, b = y[..., one].copy(), y[..., two].copy()
    y[..., one], y[..., two] = a * c - b * s, a * s + b * c
    return Values.of(y, dtype).numbers
