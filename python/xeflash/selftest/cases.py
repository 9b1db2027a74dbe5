"""The list of cases: every algorithm, type, feature and kind of cache at least once.

Cases that share a kernel stand together.

A new kernel takes a GPU some seconds to compile, a case that shares one next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from xeflash.selftest.arrays import Arrays
from xeflash.selftest.attention import drawn, gradients
from xeflash.selftest.attention.merged import Merge
from xeflash.selftest.attention.spec import Spec
from xeflash.selftest.prepared import Case, Prepared
from xeflash.selftest.products.heads import Loss, Sample, TopK
from xeflash.selftest.products.linear import Linear
from xeflash.selftest.products.softmax import Softmax

_attention = partial(Spec, entry="attention")
_cache = partial(Spec, entry="kvcache", place="plain", heads=(8, 2), rows=1, keys=(129, 5, 300))
_gradient = partial(Spec, entry="attention", grad=True, heads=(4, 2), rows=70, keys=131)


@dataclass(frozen=True)
class Attention:
    """A case that calls attention, or computes its gradients."""

    spec: Spec

    @property
    def name(self) -> str:
        """Returns the name of the case."""
        return self.spec.name

    def prepare(self, arrays: Arrays) -> Prepared:
        """Draws the case's arrays."""
        if self.spec.grad or self.spec.probs:
            return gradients.prepare(self.spec, arrays)
        return drawn.prepare(self.spec, arrays)


def all_cases() -> dict[str, Case]:
    """Returns all small cases by name."""
    attention_specs = (_plain(), _features(), _head_dims(), _decode(), _caches(), _gradients())
    cases: list[Case] = [Attention(spec) for group in attention_specs for spec in group]
    cases += [case for group in (_merge(), _linear(), _softmax(), _heads()) for case in group]
    cases += map(Attention, (*_trees(), *_blocks()))
    return {case.name: case for case in cases}


def large_cases(on_gpu: bool) -> dict[str, Case]:
    """Returns cases that show a device's speed: prefill is bound by arithmetic, one row by memory.

    On GPUs they are larger than caches.
    """
    rows, heads, batch, keys = (4096, 16, 16, 8192) if on_gpu else (1024, 8, 1, 4096)
    cases: list[Case] = [
        Attention(Spec(dtype, dim, heads=(heads, heads), rows=rows, keys=rows, batch=1, window="-1,0", checked=32))
        for dtype, dim in (("bf16", 64), ("bf16", 128), ("fp16", 128), ("fp32", 128))
    ]
    one = partial(Spec, heads=(32, 8), rows=1, keys=keys, batch=batch, checked=1)
    cases += [Attention(one("bf16", dim)) for dim in (64, 128)]
    size = 8192 if on_gpu else 4096
    layers = [Linear("bf16", kind, 1, size, size, group, checked=256) for kind, group in (("same", 0), ("int4", 128))]
    return {case.name: case for case in (*cases, *layers)}


def _plain() -> Iterator[Spec]:
    """Yields cases that need no other code: masks by position, grouped heads, packed sequences, sinks, lengths."""
    for dtype in ("fp32", "bf16", "fp16"):
        yield Spec(dtype)
        yield Spec(dtype, window="causal", heads=(4, 2))
        yield Spec(dtype, rows=70, keys=131, window="causal")
        yield _attention(dtype, rows=131, keys=70, window="causal-tl")
        yield Spec(dtype, window="31,5", heads=(3, 1))
        yield Spec(dtype, rows=65, keys=257, window="50,-1", sinks=True)
        yield Spec(dtype, entry="varlen")
        yield Spec(dtype, entry="varlen", window="causal", heads=(4, 1), sinks=True)
    yield Spec(rows=128, keys=1, scale=0.3)


def _features() -> Iterator[Spec]:
    """Yields cases that change the code of the kernel."""
    yield Spec(variant="softcap")
    yield Spec(variant="softcap", window="causal", heads=(4, 2), sinks=True)
    yield Spec(variant="softcap", entry="varlen", window="20,0")
    yield Spec("fp16", variant="softcap")
    yield Spec(variant="alibi")
    yield Spec(variant="alibi", window="causal", heads=(4, 2))
    yield Spec(variant="alibi", entry="varlen")
    yield _attention(variant="mask", broadcast="b1qk")
    yield _attention(variant="mask", broadcast="b1qk", rows=70, keys=200, heads=(4, 2))
    yield _attention("fp32", variant="mask", broadcast="b1qk", window="causal")
    yield _attention(variant="bias", broadcast="b1qk")
    yield _attention(variant="bias32", broadcast="b1qk", sinks=True)
    yield _attention(variant="softcap+alibi+bias32", broadcast="b1qk")
    yield Spec(variant="snippet")
    yield Spec(variant="snippet", window="causal", heads=(4, 2))
    yield Spec("fp32", variant="snippet", entry="varlen")
    yield Spec(rows=200, keys=300, variant="documents", heads=(4, 2))
    yield Spec("fp32", variant="documents", window="causal")
    yield Spec(variant="chunk", window="causal", heads=(4, 2), entry="varlen")
    yield Spec(rows=1, keys=300, variant="documents", heads=(4, 2))
    yield _attention(variant="dropout=0.15")
    yield _attention(variant="dropout=0.15", window="causal", heads=(4, 2))
    yield _attention("fp32", variant="dropout=0.5")
    yield Spec(scale=-0.2)
    yield Spec("fp16", scale=-0.2, window="causal")
    yield Spec(rows=5, keys=200, heads=(8, 2))  # few queries: heads that share keys share a tile
    yield Spec(rows=5, keys=200, heads=(8, 2), window="causal")
    yield Spec(rows=16, keys=600, heads=(2, 2), batch=1)  # few tiles, many keys: threads take turns at these
    yield Spec(rows=16, keys=600, heads=(2, 2), batch=1, window="causal")


def _head_dims() -> Iterator[Spec]:
    """Yields cases of narrow and wide heads, and of a V of another width."""
    for dtype, dim, dim_v in (
        ("bf16", 128, 0), ("fp16", 128, 0), ("fp32", 128, 0), ("fp16", 40, 0), ("bf16", 96, 0), ("bf16", 192, 128),
        ("bf16", 256, 0), ("bf16", 576, 512),
    ):  # fmt: skip
        yield Spec(dtype, dim, dim_v, rows=67, keys=67, window="-1,0")
        if dim == 128:
            yield Spec(dtype, dim, rows=67, keys=130, heads=(4, 2))


def _decode() -> Iterator[Spec]:
    """Yields cases of one query."""
    for dtype, dim, heads in (
        ("bf16", 64, (2, 2)), ("bf16", 64, (8, 2)), ("bf16", 128, (8, 1)), ("fp16", 128, (8, 2)), ("fp32", 64, (4, 2)),
    ):  # fmt: skip
        yield Spec(dtype, dim, heads=heads, rows=1, keys=600)
        yield Spec(dtype, dim, heads=heads, rows=1, keys=129, window="100,0", sinks=True)
    yield Spec(rows=1, keys=333, heads=(8, 2), entry="varlen")
    yield Spec(rows=1, keys=333, heads=(8, 2), variant="softcap")
    yield Spec("bf16", 576, 512, (16, 1), 1, 333)


def _caches() -> Iterator[Spec]:
    """Yields KV caches of every kind and format, some with appended and rotated keys."""
    yield _cache()
    yield _cache(splits=3)
    yield _cache(place="index", new=1)
    yield _cache(place="pad", new=1, window="causal", rotary="halves")
    yield _cache(rows=4, new=4, window="causal", rotary="pairs")
    yield _cache("fp32", new=1, rotary="halves", sinks=True)
    for page in (16, 64):
        yield _cache(place=f"paged{page}")
        yield _cache(place=f"paged{page}", new=1, rotary="halves", window="causal")
        yield _cache(place=f"paged{page}", splits=2, sinks=True)
    yield _cache(place="paged16", rows=20, new=20, keys=(129, 40, 300), window="causal")
    yield _cache(place="beams")
    yield _cache(place="beams", new=1, window="causal")
    for name in ("e4m3", "e5m2", "int8"):
        yield _cache(format=name)
        yield _cache(format=name, new=1, rotary="halves", window="causal")
    for name in ("e4m3", "int8"):
        yield _cache(format=f"{name}.array", place="paged16", new=1)
    yield _cache(format="int8.nibbles", place="paged16", new=1, splits=2)
    yield _cache(variant="softcap")


def _trees() -> Iterator[Spec]:
    """Yields trees of guesses on a cache."""
    yield _cache(place="paged16", rows=33, keys=(129, 40, 300), variant="tree=words", sinks=True)
    yield _cache("fp32", rows=8, new=8, keys=(129, 40, 300), variant="tree=words", rotary="pairs")


def _blocks() -> Iterator[Spec]:
    """Yields blocks that are left out, and conditions of a row and a key, whose blocks are found before."""
    yield Spec("fp32", rows=200, keys=300, heads=(4, 2), variant="blocks=64.words")
    yield Spec(rows=200, keys=300, window="causal", variant="blocks=16x32.words+mask_mod", sinks=True)
    yield Spec(entry="varlen", window="causal", variant="mask_mod")
    yield _cache(place="paged16", variant="blocks=32.words")
    yield _gradient(variant="blocks=32.words+mask_mod")


def _merge() -> Iterator[Case]:
    for dtype in ("fp32", "bf16"):
        yield Merge(dtype)
        yield Merge(dtype, parts=5)


def _gradients() -> Iterator[Spec]:
    """Yields cases of the backward pass."""
    yield _gradient("fp32")
    yield _gradient("bf16", window="causal", variant="dropout=0.2")
    yield _gradient("fp16", sinks=True)
    yield _gradient("fp32", variant="bias32", broadcast="1hqk")
    yield _gradient("fp32", variant="bias32", broadcast="1hqk", hidden="lowest")
    yield _gradient("bf16", variant="alibi", window="causal")
    yield _gradient("fp32", variant="documents")
    yield _gradient("bf16", variant="dropout=0.2", grad=False, probs=True)


def _linear() -> Iterator[Case]:
    """Yields weights of every kind, multiplied by one row, a few and many."""
    for dtype in ("fp32", "bf16", "fp16"):
        yield Linear(dtype)
        yield Linear(dtype, "int4", group=32, zeros=True)
    yield Linear(rows=5, outputs=33, inputs=257, bias=True)
    yield Linear("fp16", rows=70, outputs=97, inputs=63)
    yield Linear("fp16", "int4", rows=16, group=128, bias=True)
    yield Linear("bf16", "int4", rows=70, group=64)
    yield Linear("bf16", "int8")
    yield Linear("fp16", "int8", rows=3, group=128, zeros=True)
    yield Linear("fp32", "int8", rows=33, group=32)
    yield Linear("bf16", "e4m3", rows=2)
    yield Linear("fp16", "e5m2", rows=20, group=64, bias=True)


def _softmax() -> Iterator[Case]:
    """Yields cases whose scores are kept, and cases whose scores are computed twice."""
    for dtype in ("fp32", "bf16", "fp16"):
        yield Softmax(dtype, log=dtype == "fp32")
    yield Softmax("bf16", rows=7, columns=16, inputs=32, bias=True)
    yield Softmax("fp16", rows=70, columns=1000, inputs=160, bias=True)


def _heads() -> Iterator[Case]:
    """Yields cases of a language model's head."""
    for dtype in ("fp32", "bf16", "fp16"):
        yield Loss(dtype, smoothing=0.1 if dtype == "fp32" else 0.0)
    yield Loss("bf16", rows=70, vocabulary=1000, features=160, softcap=3.0, reduction="mean")
    yield TopK("fp32", k=1)
    yield TopK("bf16", rows=5, vocabulary=1000, features=96, k=20)
    yield Sample("fp32")
    yield Sample("bf16", vocabulary=3001, top_k=40, temperature=0.7)
