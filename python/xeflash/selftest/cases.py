"""The list: every algorithm, type, feature and kind of cache at least once. Cases that share a kernel stand together.

A new kernel takes a GPU some seconds to compile, a case that shares one next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from xeflash.selftest.cached import Cached
from xeflash.selftest.dense import Dense
from xeflash.selftest.gradients import Gradient
from xeflash.selftest.heads import Loss, Sample, TopK
from xeflash.selftest.linear import Linear
from xeflash.selftest.merged import Merge
from xeflash.selftest.prepared import Case
from xeflash.selftest.softmax import Softmax

_CAUSAL = (-1, 0)


def all_cases() -> dict[str, Case]:
    """By their names."""
    groups = (_plain(), _features(), _head_dims(), _decode(), _caches(), _merge(), _gradients(), _linear(), _softmax())
    return {case.name: case for group in (*groups, _heads()) for case in group}


def large_cases(on_gpu: bool) -> dict[str, Case]:
    """What shows the speed of a device: prefill is bound by arithmetic, one row by memory; on GPUs beyond caches."""
    rows, heads, batch, keys = (4096, 16, 16, 8192) if on_gpu else (1024, 8, 1, 4096)
    cases: list[Case] = [
        Dense(dtype, dim, rows, rows, (heads, heads), 1, window=_CAUSAL, checked=32)
        for dtype, dim in (("bf16", 64), ("bf16", 128), ("fp16", 128), ("fp32", 128))
    ]
    cases += [Dense("bf16", dim, 1, keys, (32, 8), batch, checked=1) for dim in (64, 128)]
    size = 8192 if on_gpu else 4096
    layers = [Linear("bf16", kind, 1, size, size, group, checked=256) for kind, group in (("same", 0), ("int4", 128))]
    return {case.name: case for case in (*cases, *layers)}


def _plain() -> Iterator[Case]:
    """What needs no other code: masks by position, grouped heads, packed sequences, sinks, lengths."""
    for dtype in ("fp32", "bf16", "fp16"):
        yield Dense(dtype)
        yield Dense(dtype, window=_CAUSAL, heads=(4, 2))
        yield Dense(dtype, rows=70, keys=131, window=_CAUSAL)
        yield Dense(dtype, rows=131, keys=70, window=_CAUSAL, top_left=True, entry="attention")
        yield Dense(dtype, window=(31, 5), heads=(3, 1))
        yield Dense(dtype, rows=65, keys=257, window=(50, -1), sinks=True)
        yield Dense(dtype, entry="varlen")
        yield Dense(dtype, entry="varlen", window=_CAUSAL, heads=(4, 1), sinks=True)
    yield Dense(rows=128, keys=1, scale=0.3)


def _features() -> Iterator[Case]:
    """What changes the code of the kernel."""
    yield Dense(softcap=3.0)
    yield Dense(softcap=3.0, window=_CAUSAL, heads=(4, 2), sinks=True)
    yield Dense(softcap=3.0, entry="varlen", window=(20, 0))
    yield Dense("fp16", softcap=3.0)
    yield Dense(alibi=True)
    yield Dense(alibi=True, window=_CAUSAL, heads=(4, 2))
    yield Dense(alibi=True, entry="varlen")
    yield Dense(mask="bool", entry="attention")
    yield Dense(mask="bool", rows=70, keys=200, heads=(4, 2), entry="attention")
    yield Dense("fp32", mask="bool", window=_CAUSAL, entry="attention")
    yield Dense(mask="float", entry="attention")
    yield Dense(mask="float32", sinks=True, entry="attention")
    yield Dense(softcap=3.0, alibi=True, mask="float32", entry="attention")
    yield Dense(score_mod=True)
    yield Dense(score_mod=True, window=_CAUSAL, heads=(4, 2))
    yield Dense("fp32", score_mod=True, entry="varlen")
    yield Dense(rows=200, keys=300, documents=True, heads=(4, 2))
    yield Dense("fp32", documents=True, window=_CAUSAL)
    yield Dense(chunk=50, window=_CAUSAL, heads=(4, 2), entry="varlen")
    yield Dense(rows=1, keys=300, documents=True, heads=(4, 2))
    yield Dense(dropout=0.15, entry="attention")
    yield Dense(dropout=0.15, window=_CAUSAL, heads=(4, 2), entry="attention")
    yield Dense("fp32", dropout=0.5, entry="attention")
    yield Dense(scale=-0.2)
    yield Dense("fp16", scale=-0.2, window=_CAUSAL)
    yield Dense(rows=5, keys=200, heads=(8, 2))  # few queries: heads that share keys share a tile
    yield Dense(rows=5, keys=200, heads=(8, 2), window=_CAUSAL)
    yield Dense(rows=16, keys=600, heads=(2, 2), batch=1)  # few tiles, many keys: threads take turns at these
    yield Dense(rows=16, keys=600, heads=(2, 2), batch=1, window=_CAUSAL)


def _head_dims() -> Iterator[Case]:
    """Narrow and wide heads, and V of another width."""
    for dtype, dim, dim_v in (
        ("bf16", 128, 0), ("fp16", 128, 0), ("fp32", 128, 0), ("fp16", 40, 0), ("bf16", 96, 0), ("bf16", 192, 128),
        ("bf16", 256, 0), ("bf16", 576, 512),
    ):  # fmt: skip
        yield Dense(dtype, dim, dim_v=dim_v, rows=67, keys=67, window=_CAUSAL)
        if dim == 128:
            yield Dense(dtype, dim, rows=67, keys=130, heads=(4, 2))


def _decode() -> Iterator[Case]:
    """One query."""
    for dtype, dim, heads in (
        ("bf16", 64, (2, 2)), ("bf16", 64, (8, 2)), ("bf16", 128, (8, 1)), ("fp16", 128, (8, 2)), ("fp32", 64, (4, 2)),
    ):  # fmt: skip
        yield Dense(dtype, dim, 1, 600, heads)
        yield Dense(dtype, dim, 1, 129, heads, window=(100, 0), sinks=True)
    yield Dense(rows=1, keys=333, heads=(8, 2), entry="varlen")
    yield Dense(rows=1, keys=333, heads=(8, 2), softcap=3.0)
    yield Dense("bf16", 576, 1, 333, (16, 1), dim_v=512)


def _caches() -> Iterator[Case]:
    """KV caches of every kind and format, with what is appended and rotated."""
    yield Cached()
    yield Cached(splits=3)
    yield Cached(place="index", new=1)
    yield Cached(place="pad", new=1, window=_CAUSAL, rotary="halves")
    yield Cached(rows=4, new=4, window=_CAUSAL, rotary="pairs")
    yield Cached("fp32", new=1, rotary="halves", sinks=True)
    for page in (16, 64):
        yield Cached(place=f"paged{page}")
        yield Cached(place=f"paged{page}", new=1, rotary="halves", window=_CAUSAL)
        yield Cached(place=f"paged{page}", splits=2, sinks=True)
    yield Cached(place="paged16", rows=20, new=20, lengths=(129, 40, 300), window=_CAUSAL)
    yield Cached(place="beams")
    yield Cached(place="beams", new=1, window=_CAUSAL)
    for name in ("e4m3", "e5m2", "int8"):
        yield Cached(format=name, scales="number")
        yield Cached(format=name, scales="number", new=1, rotary="halves", window=_CAUSAL)
    for name in ("e4m3", "int8"):
        yield Cached(format=name, scales="array", place="paged16", new=1)
    yield Cached("fp16", format="e4m3", scales="number", place="paged16", new=1, splits=2)
    yield Cached(softcap=3.0)


def _merge() -> Iterator[Case]:
    for dtype in ("fp32", "bf16"):
        yield Merge(dtype)
        yield Merge(dtype, parts=5)


def _gradients() -> Iterator[Case]:
    """The kernels of the backward pass."""
    yield Gradient("fp32")
    yield Gradient("bf16", window=_CAUSAL, dropout=0.2)
    yield Gradient("fp16", sinks=True)
    yield Gradient("fp32", mask="float32")
    yield Gradient("fp32", mask="float32", lowest=True)
    yield Gradient("bf16", alibi=True, window=_CAUSAL)
    yield Gradient("fp32", documents=True)
    yield Gradient("bf16", dropout=0.2, probs=True)


def _linear() -> Iterator[Case]:
    """Weights of every kind, by one row, a few and many."""
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
    """Scores that are kept, and that are made twice."""
    for dtype in ("fp32", "bf16", "fp16"):
        yield Softmax(dtype, log=dtype == "fp32")
    yield Softmax("bf16", rows=7, columns=16, inputs=32, bias=True)
    yield Softmax("fp16", rows=70, columns=1000, inputs=160, bias=True)


def _heads() -> Iterator[Case]:
    """What a language model's head makes of its logits."""
    for dtype in ("fp32", "bf16", "fp16"):
        yield Loss(dtype, smoothing=0.1 if dtype == "fp32" else 0.0)
    yield Loss("bf16", rows=70, vocabulary=1000, features=160, softcap=3.0, reduction="mean")
    yield TopK("fp32", k=1)
    yield TopK("bf16", rows=5, vocabulary=1000, features=96, k=20)
    yield Sample("fp32")
    yield Sample("bf16", vocabulary=3001, top_k=40, temperature=0.7)
