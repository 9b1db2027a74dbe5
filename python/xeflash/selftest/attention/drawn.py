"""The arrays of a Spec, the call of the function that it names, and the judge of its results."""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from xeflash.selftest.arrays import Arrays
from xeflash.selftest.attention.blocks import blocks_in_words, blocks_of, draw_blocks, said_blocks
from xeflash.selftest.attention.cache import Cache, rotated
from xeflash.selftest.attention.snippets import (
    draw_captures,
    mask_mod_of,
    score_mod_of,
    snippets_in_core,
    snippets_in_words,
)
from xeflash.selftest.attention.spec import MEMORY, Spec
from xeflash.selftest.attention.trees import draw_trees, in_words, seen_nodes
from xeflash.selftest.prepared import DTYPES, Prepared, generator_of, normal, result_of
from xeflash.selftest.reference import Features, to_numpy, visible
from xeflash.selftest.tolerance import Finding, Judge, compare, judge, ulp
from xeflash.selftest.values import LARGEST, Values

Array: TypeAlias = "np.ndarray[Any, Any]"
Random: TypeAlias = np.random.Generator
Numbers: TypeAlias = Mapping[str, Any]  # arrays of numpy or torch, by their words
Sequence: TypeAlias = tuple[slice, Any, Any, Any, Features]

SOFTCAP, DROPOUT, CHUNK, PICKS = 3.0, 0.25, 50, 16  # numbers of variants that name none
SEED, OFFSET = 0x1234_5678_9ABC_DEF0, 0x1_0000_0003  # attention() alone takes an offset
_OF_ATTENTION = {"q": "query", "k": "key", "v": "value", "softmax_scale": "scale", "causal": "is_causal"}
_OF_ATTENTION |= {"s_aux": "sinks", "return_attn_probs": "return_lse"}
_IN_CORE = {
    "window_size",
    "score_mod",
    "mask_mod",
    "captures",
    "return_attn_probs",
    "return_softmax_lse",
    "max_seqlen",
    "cu_seqlens",
}


def draw(spec: Spec, random: Random | None = None) -> Drawn:
    """Draws the arrays of a Spec: the same ones each time, unless the caller gives its own generator."""
    random, dtype = random or generator_of(spec.name), DTYPES[spec.dtype]
    (heads, heads_k), batch, (rows, keys) = spec.heads, len(spec.sequences), spec.tokens
    found = dict[str, Values]()
    some = functools.partial(normal, random, dtype)
    cache = Cache.of(spec, random) if spec.place else None
    found["q"] = some(rows, heads, spec.dim, kind=spec.values, factor=spec.queries)
    if not cache or spec.new:
        count = batch * spec.new if cache else keys
        found |= {x: some(count, heads_k, dim, kind=spec.values) for x, dim in zip("kv", spec.dims, strict=True)}
        if spec.mean:
            found["v"] = Values.of(found["v"].numbers + spec.mean, dtype)
    if cache:
        found |= _cache_arrays(spec, cache, random)
    if spec.is_packed:
        found |= _packing(spec, found)
    if spec.has("alibi"):
        slopes = random.random((batch, heads) if spec.slopes == "bh" else heads) / 2
        found["alibi_slopes"] = Values.of(slopes, "float32")
    if spec.sinks:
        gone = spec.ends_of_sinks & (np.arange(heads) % 2 == 0)
        found["s_aux"] = Values.of(np.where(gone, -np.inf, random.standard_normal(heads) * 2), "float32")
    if spec.masks:
        found["attn_mask"] = _mask(spec, random)
    if spec.has("documents"):
        found["document_ids"] = Values.of(_documents(spec, random), "int32")
    if spec.has("tree") and cache:
        found |= draw_trees(spec, cache.before(spec), random)
    if spec.has("picks"):
        found["gather_kv_indices"] = Values.of(_picks(spec, random), "int32")
    longest = max([spec.sizes[0], *(n for n, _ in spec.sequences)]), max([spec.sizes[1], *spec.room])
    longest = (longest[0], cache.capacity if spec.entry == "kvcache" and cache else longest[1])
    found |= draw_captures(spec, random) | draw_blocks(spec, longest, random)
    if spec.grad or spec.probs:
        shape = rows, heads, spec.dims[1]
        found["dout"] = some(*((1, 1, 1) if spec.layout_of_dout == "expanded" else shape))
        found["dout"] = Values(np.broadcast_to(found["dout"].bits, shape), dtype)
    if spec.dlse:
        found["dlse"] = normal(random, "float32", heads, rows)
    return Drawn(spec, found, cache, longest, (SEED, OFFSET if spec.entry == "attention" else 0))


def _cache_arrays(spec: Spec, cache: Cache, random: Random) -> dict[str, Values]:
    """Returns the cache's own arrays, its tables and lengths, and the tables of the rotation."""
    found = {f"{x}_cache": values for x, values in zip("kv", cache.arrays, strict=True)}
    found |= {f"{x}_scale": scale for x, scale in zip("kv", cache.scales, strict=True) if isinstance(scale, Values)}
    found |= {name: Values.of(table, "int32") for name, table in cache.tables.items()}
    if spec.length == "array" and spec.entry == "kvcache":
        found["cache_seqlens"] = Values.of(cache.before(spec), "int32")
    if spec.rotary:
        turned = int(random.choice(range(16, spec.dim + 1, 16)))
        positions = max([0, *cache.before(spec)]) + max([spec.new, *(n for n, _ in spec.sequences)])
        angles = random.random((positions + random.integers(0, 7), turned // 2)) * 7
        pair = zip(("rotary_cos", "rotary_sin"), (np.cos(angles), np.sin(angles)), strict=True)
        found |= {name: Values.of(x, DTYPES[spec.dtype]) for name, x in pair}
    return found


def _packing(spec: Spec, found: dict[str, Values]) -> dict[str, Values]:
    """Returns the starts of packed sequences; fills keys that are not used with NaN."""
    starts = [np.cumsum([0, *side]) for side in ([n for n, _ in spec.sequences], spec.room)]
    names = ("cu_seqlens",) if "qkvpacked" in spec.entry else ("cu_seqlens_q", "cu_seqlens_k")
    packing = {name: Values.of(at, "int32") for name, at in zip(names, starts, strict=False)}
    if spec.entry.endswith(("used", "alone")):
        packing["seqused_k"] = Values.of(spec.used, "int32")
    if spec.entry.endswith("alone"):
        del packing["cu_seqlens_k"]
    for at, used, end in zip(starts[1], spec.used, starts[1][1:], strict=False):
        for name in "kv" * (not spec.place):
            found[name].bits[at + used : end] = Values.filled((), found[name].dtype).bits
    return packing


def _mask(spec: Spec, random: Random) -> Values:
    (rows, keys), heads = spec.sizes, spec.heads[0]
    sizes = {"b": len(spec.sequences), "h": heads, "q": rows, "k": keys, "1": 1}
    shape = [sizes[letter] for letter in spec.broadcast]
    share = random.choice([0.2, 0.2, 0.1, 0.9, 0.0, 1.0]) if spec.values == "any" else 0.2
    hidden = random.random(shape) < share
    if "q" in spec.broadcast and rows > 2 and share:
        hidden[..., 1, :] = True  # a row that sees nothing
    if spec.hidden_rows:
        hidden |= random.random((*shape[:-1], 1)) < 0.3
    if spec.masks == "bool":
        return Values.of(~hidden, "bool")
    lowest = -LARGEST[spec.masks]
    least = lowest if spec.hidden == "lowest" else float(spec.hidden)
    least = max(least, lowest) if math.isfinite(least) else least
    return Values.of(np.where(hidden, least, random.standard_normal(shape) * (1 if spec.grad else 2)), spec.masks)


def _documents(spec: Spec, random: Random) -> Array:
    """Draws the ids of all positions; by default some 50 positions share one."""
    shape = len(spec.sequences), spec.sizes[1]
    by_word = {"one": np.full(shape[1], -7), "different": random.permutation(shape[1])}
    by_word["random"] = random.integers(-2, 3, shape)
    ids = by_word.get(spec.word("documents") or "")
    return np.sort(random.integers(-1, max(1, shape[1] // 50), shape)) if ids is None else ids


def _picks(spec: Spec, random: Random) -> Array:
    """Draws lists of keys for each row, without duplicates; some places are empty."""
    rows, keys = spec.sizes
    order = random.random((len(spec.sequences), rows, keys)).argsort(-1)[..., : int(spec.number("picks", PICKS))]
    return np.where(random.random(order.shape) < random.choice([0, 0.2, 1]), -1, order)


@dataclass(frozen=True)
class Drawn:
    """Drawn arrays by the words of flash-attn; queries, keys and values are (tokens, heads, dim)."""

    spec: Spec
    values: dict[str, Values]
    cache: Cache | None
    longest: tuple[int, int]  # queries and keys of a sequence, as the call says it; of a cache what it has room for
    rng: tuple[int, int]  # seed and offset of dropout; functions without rng get the seed by manual_seed, offset 0

    # ---- the call ----

    def put(self, arrays: Arrays) -> dict[str, Any]:
        """Puts the arrays on the device, in the shapes that the function takes."""
        spec, batch, found = self.spec, len(self.spec.sequences), dict[str, Any]()
        rows: dict[str, Values] = {x: self.values[x] for x in (*"qkv", "dout") if x in self.values}
        for name, x in self.values.items():
            if name in rows:
                continue
            if name == "dlse" and not spec.is_packed:  # (heads, tokens)
                x = Values(np.stack(np.split(x.bits, batch, axis=1)), x.dtype)
            if name == "tree_mask" and (spec.word("tree") == "words" or spec.kind in MEMORY):
                x = Values.of(in_words(spec, x.bits), "int32")
            if name not in ("listed", "full"):
                found[name] = arrays.put(x, name)
        found |= {name: arrays.put(x, name) for name, x in said_blocks(spec, self.longest, self.values).items()}
        if not spec.is_packed:
            counts = {"k": spec.new, "v": spec.new} if self.cache else {"k": self.longest[1], "v": self.longest[1]}
            shapes = {name: (batch, counts.get(name, self.longest[0]), *x.bits.shape[1:]) for name, x in rows.items()}
            rows = {name: Values(x.bits.reshape(shapes[name]), x.dtype) for name, x in rows.items()}
        if together := {"qkvpacked": "qkv", "kvpacked": "kv"}.get(spec.entry.removeprefix("varlen-"), ""):
            packed = Values(np.concatenate([rows.pop(x).bits for x in together], -2), DTYPES[spec.dtype])
            found[together] = arrays.put_rows(packed, together, together=len(together))
        return found | {n: arrays.put_rows(x, n, heads_first=spec.entry == "attention") for n, x in rows.items()}

    def words(self, put: Numbers) -> dict[str, Any]:
        """Returns the call in the words of flash-attn's functions, with arrays that were put somewhere."""
        spec, cache = self.spec, self.cache
        said = {name: x for name, x in put.items() if name not in ("dout", "dlse")}
        said |= snippets_in_words(spec, said) | blocks_in_words(spec, said)
        said |= {"causal": True} if spec.is_causal else {}
        said |= {"window_size": spec.sides} if spec.sides != (-1, -1) else {}
        said |= {"softmax_scale": spec.scale} if spec.scale is not None else {}
        said |= {"softcap": spec.number("softcap", SOFTCAP)} if spec.has("softcap") else {}
        said |= {"dropout_p": spec.number("dropout", DROPOUT)} if spec.has("dropout") else {}
        said |= {"attention_chunk": int(spec.number("chunk", CHUNK))} if spec.has("chunk") else {}
        if spec.is_packed:
            said |= {"cu_seqlens_k": None} if spec.entry.endswith("alone") else {}
            names = ("max_seqlen",) if "cu_seqlens" in said else ("max_seqlen_q", "max_seqlen_k")
            said |= dict(zip(names, self.longest, strict=False))
        if cache and not spec.is_packed:
            said |= {"cache_seqlens": int(cache.before(spec)[0])} if spec.length == "number" else {}
            said |= {"num_splits": spec.splits} if spec.splits else {}
            said |= {"unified_max": spec.unified} if spec.unified is not None else {}
            said |= {"rotary_interleaved": spec.rotary == "pairs"} if spec.rotary else {}
        if cache:
            scales = zip("kv", cache.scales, strict=True)
            said |= {f"{x}_scale": scale for x, scale in scales if isinstance(scale, float)}
        if spec.returns_lse:
            said["return_softmax_lse" if spec.entry == "kvcache" else "return_attn_probs"] = True
        return said

    def arguments(self, put: Numbers) -> dict[str, Any]:
        """Returns the keywords of the function that the Spec names."""
        said = self.words(put)
        if self.spec.entry != "attention":
            return {(name.removesuffix("_cache") if self.spec.is_packed else name): x for name, x in said.items()}
        said = {_OF_ATTENTION.get(name, name): x for name, x in said.items()}
        said |= {"bottom_right": not self.spec.top_left, "enable_gqa": True}
        return said | ({"rng": self.rng} if self.spec.has("dropout") else {})

    def call(self, put: Numbers, function: Callable[..., Any] | None = None) -> Any:
        """Calls the function that the Spec names, or another one with its keywords."""
        xeflash: Any = importlib.import_module("xeflash")
        if "blocks" in put and not function:
            return xeflash._core.forward(**self.in_core(put), return_lse=self.spec.lse)
        if self.spec.has("dropout") and self.spec.entry != "attention":
            xeflash.manual_seed(self.rng[0])
        return (function or getattr(xeflash, self.spec.function))(**self.arguments(put))

    def in_core(self, put: Numbers) -> dict[str, Any]:
        """Returns the call in the words of _core.forward and _core.backward, which take no q, k and v in one array."""
        schema: Any = importlib.import_module("xeflash.call.schema")
        spec, said = self.spec, self.words(put)
        given = {name: x for name, x in said.items() if name not in _IN_CORE}
        layout = schema.BHSD if spec.entry == "attention" else schema.THD if spec.is_packed else schema.BSHD
        given |= {"function": spec.function, "layout": layout, "bottom_right": not spec.top_left}
        given["window_left"], given["window_right"] = spec.sides
        if spec.has("dropout"):
            given["seed"], given["offset"] = self.rng
        if isinstance(given.get("cache_seqlens"), int):
            given["cache_length"] = given.pop("cache_seqlens")
        return given | snippets_in_core(spec, said)

    # ---- what comes of it ----

    def numbers(self) -> dict[str, Any]:
        """Returns the arrays in float64, except those of all tokens, which are converted sequence by sequence."""
        return {
            name: x if name in (*"qkv", "dout") else x.numbers for name, x in self.values.items() if "cache" not in name
        }

    @property
    def window(self) -> tuple[int, int]:
        """Returns the keys that a row sees left and right of the diagonal.

        -1 is all of them, as it is for flash-attn with a side that reaches so far.
        """
        sides = [n if self.spec.entry == "attention" or n < self.longest[1] else -1 for n in self.spec.sides]
        return sides[0], 0 if self.spec.is_causal else sides[1]

    def features(self, b: int, given: Numbers) -> Features:
        """Returns the features of attention in sequence b."""
        spec, slopes, mask, ids = self.spec, *(given.get(x) for x in ("alibi_slopes", "attn_mask", "document_ids"))
        own = slice(b, b + 1)
        if (lists := given.get("gather_kv_indices")) is not None:
            mask = (to_numpy(lists[b])[..., None] == np.arange(spec.sizes[1])).any(-2)
        return Features(
            spec.scale, self.window, spec.top_left, spec.number("softcap", SOFTCAP),
            alibi=slopes[own] if slopes is not None and slopes.ndim > 1 else slopes,
            mask=mask[own] if mask is not None and spec.masks and spec.broadcast[0] == "b" else mask,
            score_mod=score_mod_of(spec, given), chunk=int(spec.number("chunk", CHUNK)),
            documents=ids[b] if ids is not None and ids.ndim > 1 else ids, tree=seen_nodes(spec, b, given),
            mask_mod=mask_mod_of(spec, given), blocks=blocks_of(spec, b, given),
            sinks=given.get("s_aux"), dropout=spec.number("dropout", DROPOUT), rng=self.rng, batch0=b,
            empty_lse=-math.inf if spec.entry == "attention" else math.inf,
        )  # fmt: skip

    def by_sequence(self, given: Numbers, cache: Cache | None = None) -> Iterator[Sequence]:
        """Yields for each sequence its rows among all, q, k and v (1, H, S, D), and its features.

        `given` are numbers of numpy or torch; keys and values are those that the cache holds, where there is one.
        """

        def part(name: str, tokens: slice) -> Any:
            x = given[name]
            return x.part(tokens) if isinstance(x, Values) else x[tokens]

        at = at_keys = 0
        for b, ((rows, keys), used) in enumerate(zip(self.spec.sequences, self.spec.used, strict=True)):
            mine, used_keys = slice(at, at + rows), slice(at_keys, at_keys + used)
            kv = [cache.held_by(i, cache.places[b]) if cache else part(x, used_keys) for i, x in enumerate("kv")]
            q, k, v = (x.swapaxes(0, 1)[None] for x in (part("q", mine), *kv))
            yield mine, q, k, v, self.features(b, given)
            at, at_keys = at + rows, at_keys + keys

    def check(self, arrays: Arrays, put: Numbers, result: Any, rule: Judge = judge) -> list[Finding]:
        """Judges out and LSE of each sequence, and the cache after the call."""
        spec, dtype, given, now = self.spec, DTYPES[self.spec.dtype], self.numbers(), self.cache
        out, row_lse = result_of(arrays, result, dtype, spec.returns_lse)
        out, lse = self.together(out), None if row_lse is None else self.together(row_lse)
        shape = (*self.values["q"].bits.shape[:2], spec.dims[1])
        if out.shape != shape or not out.size:
            return [compare("out", out, np.zeros(shape), 0.0)]
        found: list[Finding] = []
        if self.cache:
            given, new = self._rotated(given)
            now = self.cache.after(arrays, put)
            found += now.judge_after(self.cache, new, ulp(1.0, dtype) if spec.rotary else 0.0)
        of = slice(1 if spec.checked else None)
        for b, (rows, q, k, v, f) in enumerate(self.by_sequence(given, now)):
            part = slice(rows.stop - spec.checked, rows.stop) if spec.checked else rows
            qkv = q[:, of, part.start - rows.start :], k[:, of], v[:, of]
            got = out[part, of].swapaxes(0, 1)[None], None if lse is None else lse[None, of, part]
            found += rule(f"sequence {b} ", dtype, qkv, f, *got, arrays.on_gpu)
            if spec.checked:
                break
        return found

    def _rotated(self, given: dict[str, Any]) -> tuple[dict[str, Any], list[Array]]:
        """Returns the numbers with rotated queries, and the keys and values that each sequence appends."""
        spec, batch = self.spec, len(self.spec.sequences)
        new = [x.numbers.reshape(batch, spec.new, *x.bits.shape[1:]) for x in map(given.get, "kv") if x]
        if self.cache and spec.rotary:
            before, turn = self.cache.before(spec)[:, None], (given["rotary_cos"], given["rotary_sin"], spec.rotary)
            q = given["q"].numbers
            shape, q = q.shape, q.reshape(batch, self.longest[0], *q.shape[1:])
            in_order = np.arange(q.shape[1]) if spec.is_causal or spec.sides != (-1, -1) else 0
            of_q, of_new = before + in_order, before + np.arange(spec.new)
            if (positions := given.get("rotary_positions")) is not None:
                of_q = of_new = positions.astype(int)
            q = rotated(q, of_q, *turn, DTYPES[spec.dtype])
            new[0] = rotated(new[0], of_new, *turn, DTYPES[spec.dtype])
            given = given | {"q": q.reshape(shape)}
        return given, new

    def together(self, x: Array) -> Array:
        """Reshapes a result of all sequences to (tokens, heads, dim) or (heads, tokens)."""
        if self.spec.is_packed:
            return x
        if x.ndim == 3:  # (batch, heads, rows)
            return x.swapaxes(0, 1).reshape(x.shape[1], x.shape[0] * x.shape[2])
        x = x.swapaxes(1, 2) if self.spec.entry == "attention" else x
        return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])

    def work(self) -> tuple[float, float]:
        """Counts (operations of both products, without hidden scores; bytes of Q and O, and of K and V once)."""
        spec, flops, moved = self.spec, 0.0, 0.0
        (heads, heads_k), of_q = spec.heads, self.values["q"].bits.itemsize
        key_bytes = self.values["k_cache"].bits.itemsize if self.cache else of_q
        for rows, keys in spec.sequences:
            pairs = float(visible(rows, keys, self.window, spec.top_left).sum())
            flops += 2 * pairs * heads * sum(spec.dims)
            moved += sum(spec.dims) * (rows * heads * of_q + keys * heads_k * key_bytes)
        return flops, moved


def prepare(spec: Spec, arrays: Arrays, rule: Judge = judge) -> Prepared:
    """Draws a Spec's arrays, puts them on the device, and returns the call of its function and its judge."""
    drawn = draw(spec)
    put = drawn.put(arrays)
    return Prepared(lambda: drawn.call(put), lambda result: drawn.check(arrays, put, result, rule), *drawn.work())
