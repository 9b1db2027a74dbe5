"""The calls of a model's layers on arrays without memory, which tell the kernels that serving it takes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any

from xeflash import _core
from xeflash.call.schema import BSHD, THD
from xeflash.runtime.interop import Placeholder
from xeflash.tune.desc import DTYPE_NAMES
from xeflash.tune.models import CACHES, Features, ModelShape

_FP8 = "float8_e4m3fn"
# Queries of a sequence: each number of them whose heads may share a tile, and one for each height of tiles.
_MANY = (32, 64, 128, 1024)
_QUERIES = (*range(1, 18), *_MANY)
_KEYS = (256, 1 << 13)  # few, which are never split, and many
_TRAINED = (32, 64, 128)

Call = Callable[[], object]


def check_choices(function: str, dtypes: Collection[str], caches: Collection[str], page_size: int) -> None:
    """Raises a ValueError for a choice that no call has."""
    for name, given, allowed in (("dtype", dtypes, DTYPE_NAMES.values()), ("caches", caches, CACHES)):
        for one in given:
            if one not in allowed:
                raise ValueError(f"{function}: {name} must be of {', '.join(allowed)}, got {one!r}")
    if page_size <= 0 or page_size % 16:
        raise ValueError(f"{function}: page_size must be a multiple of 16, got {page_size}")


def shape_of_rank(function: str, shape: ModelShape, ranks: int) -> ModelShape:
    """Returns the shape that each rank of tensor parallelism has: a share of the heads, but at least one of keys."""
    heads, heads_k = shape.heads_q, shape.heads_k
    if ranks < 1 or heads % ranks or max(heads_k, ranks) % min(heads_k, ranks):
        rule = f"must divide the heads of queries ({heads}), and divide or be divided by those of keys ({heads_k})"
        raise ValueError(f"{function}: tensor_parallel_size {rule}, got {ranks}")
    return shape._replace(heads_q=heads // ranks, heads_k=max(1, heads_k // ranks))


def calls_of(
    function: str, shape: ModelShape, dtype: str, caches: Collection[str], page_size: int, training: bool
) -> Iterator[Call]:
    """Yields the calls of a model's layers: prompts and decoding with caches of these kinds, and gradients.

    A model without causal layers, such as one of images, has no new tokens, and no cache.
    """
    decodes = any(layer.causal for layer in shape.features)
    caches = caches if decodes else ("dense",)
    for layer in dict.fromkeys(one._replace(causal=True, window_size=(-1, -1)) for one in shape.features):
        make = _Calls(function, shape, layer, dtype, page_size)  # causality and windows change no kernel
        if "dense" in caches or shape.latents:
            yield from make.on_arrays(_QUERIES if decodes else _MANY)
        if "dense" in caches and decodes:
            yield make.appending(make.plain_cache())
        if "paged" in caches and not shape.latents:
            yield make.appending(make.pages(dtype, _KEYS[0]))
        for name, kept in (("paged", dtype), ("fp8", _FP8)):
            if name in caches:
                yield from make.on_pages(kept)
        if training:
            yield from make.gradients()


class _Calls:
    """The calls of one kind of layer."""

    def __init__(self, function: str, shape: ModelShape, layer: Features, dtype: str, page_size: int) -> None:
        self.shape, self.dtype, self.page_size = shape, dtype, page_size
        self.more: dict[str, Any] = {"function": function, "causal": layer.causal, "softcap": layer.softcap}
        for name, wanted in (("alibi_slopes", layer.alibi), ("s_aux", layer.sinks)):
            self.more[name] = Placeholder((shape.heads_q,), "float32") if wanted else None

    def arrays(self, queries: int, keys: int) -> dict[str, Any]:
        """Returns q, k and v of one sequence."""
        shape = self.shape
        sizes = {"q": (queries, shape.heads_q, shape.head_dim), "k": (keys, shape.heads_k, shape.head_dim)}
        sizes["v"] = (keys, shape.heads_k, shape.head_dim_v)
        return {name: Placeholder((1, *size), self.dtype) for name, size in sizes.items()}

    def plain_cache(self) -> dict[str, Any]:
        """Returns a cache in the order of the sequence."""
        there = self.arrays(1, _KEYS[0])
        return {"k_cache": there["k"], "v_cache": there["v"]}

    def pages(self, kept: str, keys: int) -> dict[str, Any]:
        """Returns a cache of pages in a dtype; that of MLA has one head."""
        shape, count = self.shape, -(-keys // self.page_size)
        heads, dims = (1, shape.latents) if shape.latents else (shape.heads_k, (shape.head_dim, shape.head_dim_v))
        names = ("k_cache", "v_cache")
        rows = {n: Placeholder((count, self.page_size, heads, d), kept) for n, d in zip(names, dims, strict=True)}
        scales = dict.fromkeys(("k_scale", "v_scale"), 1.0) if kept != self.dtype else {}
        return {**rows, **scales, "block_table": Placeholder((1, count), "int32")}

    def on_arrays(self, counts: tuple[int, ...]) -> Iterator[Call]:
        """Yields calls without a cache; MLA has prompts in parts, which are merged."""
        for queries in counts:
            for keys in (queries, *_KEYS):
                yield functools.partial(_core.forward, layout=BSHD, **self.arrays(queries, keys), **self.more)
        if self.shape.latents:
            heads = self.shape.heads_q
            part = Placeholder((64, heads, self.shape.head_dim_v), self.dtype), Placeholder((heads, 64), "float32")
            yield functools.partial(_core.merge_states, *([x, x] for x in part))

    def appending(self, cache: dict[str, Any]) -> Call:
        """Returns a call that appends the key of one query."""
        return functools.partial(_core.forward, layout=BSHD, **self.arrays(1, 1), **cache, cache_length=0, **self.more)

    def on_pages(self, kept: str) -> Iterator[Call]:
        """Yields calls of packed queries."""
        more: dict[str, Any] = {
            "layout": THD,
            "cu_seqlens_q": Placeholder((2,), "int32"),
            "seqused_k": Placeholder((1,), "int32"),
        }
        yield self.writing(kept)
        for keys in _KEYS:
            cache = self.pages(kept, keys)
            dim = cache["k_cache"].shape[3]
            for queries in _QUERIES:
                q = Placeholder((queries, self.shape.heads_q, dim), self.dtype)
                longest = {"max_seqlen_q": queries, "max_seqlen_k": keys}
                yield functools.partial(_core.forward, q=q, **cache, **longest, **more, **self.more)

    def writing(self, kept: str) -> Call:
        """Returns a call that writes keys and values to slots; of MLA, latents and the rotated columns beside them."""
        shape, heads = self.shape, 1 if self.shape.latents else self.shape.heads_k
        dims = (shape.head_dim, shape.head_dim_v)
        if shape.latents:
            dims = (shape.latents[1], shape.latents[0] - shape.latents[1])
        given: dict[str, Any] = {"slots": Placeholder((64,), "int64")}
        for name, dim in zip("kv", dims, strict=True):
            given[name] = Placeholder((64, heads, dim), self.dtype)
            given[f"{name}_cache"] = Placeholder((4, self.page_size, heads, dim), kept)
            given |= {f"{name}_factor": 1.0} if kept != self.dtype else {}
        return functools.partial(_core.write_to_cache, function=self.more["function"], **given)

    def gradients(self) -> Iterator[Call]:
        """Yields backward passes of prompts."""
        wanted = ("q", "k", "v", *(("s_aux",) if self.more["s_aux"] else ()))
        heads, dim = self.shape.heads_q, self.shape.head_dim_v
        for length in _TRAINED:
            given = self.arrays(length, length)
            given |= {name: Placeholder((1, length, heads, dim), self.dtype) for name in ("out", "dout")}
            given["lse"] = Placeholder((1, heads, length), "float32")
            yield functools.partial(_core.backward, layout=BSHD, wanted=wanted, **given, **self.more)
