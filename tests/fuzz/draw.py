"""What cases are drawn from: kernels, sizes, values, features."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from arrays import DTYPES
from xeflash.selftest.dense import PERIOD, Snippet
from xeflash.selftest.reference import Features

from .memory import Array, draw_layout, place

HOST = ("numpy", "torch")


@dataclass(frozen=True)
class Kernel:
    """What kernels are compiled for, beside the heights of tiles."""

    dtype: str
    dim: int
    dim_v: int
    variant: str = "plain"
    most_rows: int = 16


@dataclass(frozen=True)
class CacheKernel(Kernel):
    place: str = "plain"  # plain, paged, beams
    format: str = "same"  # e4m3, e5m2, int8; with .array of scales


# Few, as each is compiled for a second or more, and shared with other tests where they can be.
KERNELS = [
    Kernel("bf16", 64, 64, "plain", 127),
    Kernel("fp32", 64, 64),
    Kernel("fp16", 64, 64),
    Kernel("fp16", 40, 40, "softcap"),
    Kernel("fp16", 40, 40, "bias32"),
    Kernel("bf16", 64, 64, "alibi"),
    Kernel("bf16", 64, 64, "mask"),
    Kernel("fp32", 64, 64, "bias"),
    Kernel("fp32", 64, 64, "dropout"),
    Kernel("bf16", 64, 64, "snippet"),
    Kernel("bf16", 64, 40, "softcap-alibi-bias"),
    Kernel("fp32", 64, 64, "chunk"),
    Kernel("bf16", 64, 64, "documents"),
    Kernel("fp32", 64, 64, "picks"),
]
CACHE_KERNELS = [
    CacheKernel("bf16", 64, 64, place="paged"),
    CacheKernel("fp32", 64, 64, place="plain"),
    CacheKernel("fp16", 40, 40, place="beams"),
    CacheKernel("bf16", 64, 64, place="paged", format="e4m3"),
    CacheKernel("fp32", 64, 64, place="plain", format="int8.array"),
    CacheKernel("fp16", 40, 40, place="paged", format="e5m2.array"),
    CacheKernel("bf16", 64, 64, place="beams", format="int8"),
    CacheKernel("fp32", 64, 64, "softcap", place="paged"),
    CacheKernel("bf16", 64, 40, "alibi", place="plain"),
    CacheKernel("bf16", 64, 64, "snippet", place="paged"),
    CacheKernel("fp32", 64, 64, "chunk", place="paged"),
]
NARROW, NARROW_CACHE = [Kernel("bf16", 64, 64)], [CacheKernel("bf16", 64, 64, place="paged")]
SWEPT = (("bf16", 64, 64), ("fp32", 64, 64), ("fp16", 64, 64))  # in every size, fp32 with every variant; not on GPUs
DIMS = (8, 16, 24, 40, 64, 72, 80, 96, 128, 192, 256)
ODD_DIMS = (1, 2, 3, 15, 17, 23, 59, 111, 127)  # not on GPUs
VARIANTS = ("plain", "softcap", "alibi", "mask", "bias", "bias32", "dropout", "snippet", "softcap-alibi-bias32")
VARIANTS += ("chunk", "documents", "picks", "alibi-chunk", "softcap-documents", "softcap-picks")
VARIANTS_OF_SIZES = ("plain", "plain", "mask", "softcap", "alibi", "dropout", "chunk")

FAR = (2**31 - 2, 2**31 - 1, 2**31, 2**32, 2**40, 2**62)  # sides of windows that reach over any keys
ROWS = (1, 1, 1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 23, 31, 32, 33, 63, 64, 65, 127)
KEYS = (1, 2, 3, 7, 15, 16, 17, 23, 31, 32, 33, 47, 63, 64, 65, 100, 127, 128, 129, 0)
HEADS = (
    (1, 1),
    (2, 2),
    (2, 1),
    (4, 2),
    (3, 3),
    (3, 1),
    (6, 2),
    (4, 1),
    (5, 1),
    (12, 3),
)  # the first ones have few kernels


class Draw:
    """The choices of one case: all follow from the seed and the number."""

    def __init__(self, seed: int, number: int, kinds: tuple[str, ...], width: str = "usual") -> None:
        self.random = Random(f"{seed}/{number}")
        self.generator = torch.Generator().manual_seed(self.random.getrandbits(62))
        self.kinds, self.width = kinds, width
        self.kind = self.random.choice(kinds)
        self.mixed = self.kind in HOST and self.chance(0.1)
        self.on_gpu = self.kind in ("usm", "xpu")
        self.guised = True  # some arrays are of a subclass, or lazy views

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def of(self, *values: Any) -> Any:
        return self.random.choice(values)

    def kernel(self) -> Kernel:
        if self.width == "sweep":
            dtype, *dims = self.of(*SWEPT)
            return Kernel(dtype, *dims, self.of(*VARIANTS_OF_SIZES) if dtype == "fp32" else "plain", 300)
        if self.width != "wide":
            return self.random.choice(NARROW if self.width == "narrow" else KERNELS)
        return Kernel(self.of(*DTYPES), self.dim(), self.dim(), self.random.choice(VARIANTS), 127)

    def cache_kernel(self) -> CacheKernel:
        if self.width != "wide":
            return self.random.choice(CACHE_KERNELS if self.width == "usual" else NARROW_CACHE)
        variant = self.of("plain", "plain", "softcap", "alibi", "snippet", "chunk")
        place, form = self.of("plain", "paged", "beams"), self.of("same", "same", "e4m3", "e5m2", "int8")
        form += ".array" if form != "same" and self.chance(0.5) else ""
        return CacheKernel(self.of(*DTYPES), self.dim(), self.dim(), variant, self.of(16, 40), place, form)

    def dim(self) -> int:
        return self.random.choice(DIMS if self.on_gpu or self.chance(0.5) else DIMS + ODD_DIMS)

    def kernel_without(self, *variants: str) -> Kernel:
        """For a function that does not take them."""
        kernel = self.kernel()
        return self.kernel_without(*variants) if any(x in kernel.variant for x in variants) else kernel

    def rows(self, kernel: Kernel) -> int:
        if self.chance(0.02):
            return 0
        if self.width == "sweep":  # small tiles have kernels of their own: not for every variant
            least, most = self.of((1, 40), (1, 300)) if kernel.variant in ("plain", "mask") else (33, 150)
            return self.random.randint(least, most)
        return self.random.choice([n for n in ROWS if n <= kernel.most_rows])

    def keys(self) -> int:
        return self.random.randint(1, self.of(40, 300)) if self.width == "sweep" else self.random.choice(KEYS)

    def heads(self) -> tuple[int, int]:
        return (0, 0) if self.chance(0.005) else self.some_heads()

    def some_heads(self) -> tuple[int, int]:
        return self.random.choice(HEADS[: 4 if self.width == "narrow" else None])

    def batch(self) -> int:
        return self.random.choices((0, 1, 2, 3), (1, 40, 40, 19))[0]

    # ---- values ----

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    def numbers(self, *shape: int) -> torch.Tensor:
        """In fp32; of some kind that shows something."""
        kind = self.random.choices(("normal", "large", "small", "equal", "zero", "sparse"), (70, 8, 6, 6, 3, 7))[0]
        x = self.normal(*shape)
        if kind == "large":
            return x * 20
        if kind == "small":
            return x * 1e-3
        if kind == "equal":
            return torch.ones(shape)
        if kind == "zero":
            return torch.zeros(shape)
        return torch.where(x > 1, x * 4, 0) if kind == "sparse" else x

    def array(
        self, values: torch.Tensor, *, written: bool = False, cached: bool = False, packed: bool = False,
        distinct: bool = False, forward: bool = False, alike: tuple[int, ...] = (),
    ) -> Array:  # fmt: skip
        """`written`: a result; `cached`: used where it is; `packed`: the function wants it so; `distinct`: no two of
        its elements are one; `forward`: no stride is negative; `alike`: axes along which all is one element."""
        kind = self.random.choice(HOST) if self.mixed else self.kind
        # SYCL arrays are not copied, so all of them have a contiguous last axis.
        fixed = written or cached or kind.startswith("usm")
        layout = draw_layout(self.random, kind, contiguous_last=fixed, distinct=written or distinct)
        if forward:
            layout = replace(layout, flipped=0)
        if alike:
            layout = replace(layout, expanded=sum(1 << axis for axis in alike))
        if packed:
            layout = type(layout)(at_end=layout.at_end, shift=layout.shift)
        writable = written or kind != "numpy" or self.chance(0.7)
        guise = ""
        if self.guised and not self.mixed and not written and not cached and self.chance(0.04):
            floats = values.dtype in DTYPES.values()
            guise = {"numpy": "subclass", "torch": "parameter", "xpu": "parameter"}.get(kind, "")
            if guise == "parameter" and floats and self.chance(0.5):
                guise = "negated"
        return place(values, kind, layout, writable, guise)

    def int32(self, values: Any) -> Array:
        """One axis, packed."""
        return self.array(torch.as_tensor(values, dtype=torch.int32), packed=True)


# ---- features -----------------------------------------------------------------------------------


def draw_features(
    draw: Draw, kernel: Kernel, batch: int, heads: int, keys: int, scores: tuple[int, ...] | None = None
) -> tuple[Features, dict[str, Any]]:
    """What changes attention, for the reference, and as arguments of the public functions.

    `scores`: the shape that a mask is broadcast to, of the function that takes masks: attention.
    """
    sdpa = scores is not None
    variant, words = kernel.variant, {}
    f = Features(empty_lse=-torch.inf if sdpa else torch.inf)
    if draw.chance(0.3):
        least = -0.25 if draw.width in ("usual", "wide") else 0.0  # a sign is compiled in
        words["scale"] = draw.of(0.3, 1.0, 0.01, 0.8 * least, 0.0, 1, draw.random.uniform(least, 0.25))
        if words["scale"] == 0 and variant != "plain":
            words["scale"] = 0.5
        f = f.with_(scale=words["scale"])
    f, masking = draw_window(draw, f, keys, sdpa)
    words |= masking
    if "softcap" in variant:
        words["softcap"] = draw.of(3.0, 0.5, 30.0, 5, 50.0)
        f = f.with_(softcap=words["softcap"])
    if "alibi" in variant:
        slopes = draw.array(draw.normal(*((batch, heads) if draw.chance(0.4) else (heads,))) / 4)
        words["alibi_slopes"], f = slopes, f.with_(alibi=slopes.values())
    if draw.chance(0.25):
        sinks = draw.normal(heads) * 2
        if draw.chance(0.1):
            sinks[::2] = -torch.inf
        dtype = torch.float32 if draw.on_gpu or draw.kind.startswith("usm") else draw.of(*DTYPES.values())
        placed = draw.array(sinks.to(dtype))
        words["sinks"], f = placed, f.with_(sinks=placed.values())
    if scores is not None and ("mask" in variant or "bias" in variant):
        mask = draw_mask(draw, kernel, scores)
        words["attn_mask"], f = mask, f.with_(mask=mask.values().expand(scores).reshape(batch, heads, *scores[-2:]))
    if "snippet" in variant:
        kind = torch.randint(0, 5, (PERIOD,), generator=draw.generator, dtype=torch.int32)
        snippet = Snippet(kind, draw.normal(max(heads, 1), PERIOD).half())
        more = snippet.keywords(lambda x: draw.array(x, forward=True))
        captured = more["captures"]
        words, f = words | more, f.with_(score_mod=Snippet(captured["kind"].values(), captured["level"].values()))
    if variant == "dropout":
        words["dropout_p"] = draw.of(0.15, 0.5, 1.0, 0.001, 1e-4, 0.99)
        f = f.with_(dropout=words["dropout_p"])
    if "chunk" in variant:
        words["attention_chunk"] = draw.of(1, 3, 16, 40, 64, 100, max(keys, 1), keys + 1, 2**30)
        f = f.with_(chunk=words["attention_chunk"])
    return f, words


def draw_listed(
    draw: Draw, kernel: Kernel, lead: tuple[int, ...], rows: int, keys: int, f: Features
) -> tuple[Features, dict[str, Any]]:
    """What says which keys each row sees, of functions of dense arrays: documents, or lists of keys."""
    if "documents" in kernel.variant and rows <= keys:
        shape = (*lead, keys) if draw.chance(0.6) else (keys,)
        ids = torch.randint(-2, draw.of(-1, 0, 3, keys + 1), shape, generator=draw.generator, dtype=torch.int32)
        alike = tuple(range(len(shape) - 1)) if draw.chance(0.2) else ()  # the same for every sequence
        placed = draw.array(ids.sort().values if draw.chance(0.6) else ids, alike=alike)
        f = f.with_(top_left=False, documents=placed.values().reshape(math.prod(shape[:-1]), keys))
        return f, {"document_ids": placed}
    if "picks" in kernel.variant and draw.kind in ("torch", "xpu") and not draw.mixed:
        listed = min(keys, draw.of(0, 1, 5, 16, 33, keys))
        order = torch.rand((*lead, rows, keys), generator=draw.generator).argsort(-1)[..., :listed].int()
        order = order.masked_fill(torch.rand(order.shape, generator=draw.generator) < draw.of(0, 0.2, 1), -1)
        alike = tuple(axis for axis in range(order.dim() - 1) if draw.chance(0.1))  # but a list names a key once
        placed = draw.array(order, distinct=True, alike=alike)
        lists = placed.values()
        seen = torch.zeros((*lead, rows, keys + 1), dtype=torch.bool)
        seen.scatter_(-1, lists.masked_fill(lists < 0, keys).long(), True)
        f = f.with_(mask=seen[..., :keys].reshape(math.prod(lead), 1, rows, keys))
        return f, {"gather_kv_indices": placed}
    return f, {}


def draw_window(draw: Draw, f: Features, keys: int, sdpa: bool) -> tuple[Features, dict[str, Any]]:
    """flash-attn takes a side that reaches over all keys as unlimited, wherever the diagonal is."""
    causal = draw.chance(0.35)
    words: dict[str, Any] = {"causal": causal} if causal else {}
    sides = [-1, -1]
    if draw.chance(0.3):
        ends = (-1, 0, keys, keys + 1, max(keys - 1, 0), *FAR)
        sides = [
            draw.of(1, 5, 16, 40, *(draw.random.randint(0, max(keys - 1, 0)) for _ in range(2)), *ends)
            for _ in range(2)
        ]
        words["window_size"] = draw.of(tuple(sides), list(sides))
    seen = [n if sdpa or n < keys else -1 for n in sides]
    if causal:
        seen[1] = 0
    f = f.with_(window=tuple(min(n, 2**31) for n in seen))
    if sdpa:
        f = f.with_(top_left=not draw.chance(0.5))
        if not f.top_left or draw.chance(0.1):
            words["bottom_right"] = not f.top_left
    return f, words


def draw_mask(draw: Draw, kernel: Kernel, scores: tuple[int, ...]) -> Array:
    rank = draw.random.randint(1, len(scores)) if draw.chance(0.4) else len(scores)
    shape = tuple(1 if draw.chance(0.3) else n for n in scores[len(scores) - rank :])
    hidden = torch.rand(shape, generator=draw.generator) < draw.of(0.2, 0.2, 0.1, 0.9, 0.0, 1.0)
    if kernel.variant.endswith("mask"):
        return draw.array(~hidden)
    dtype = torch.float32 if kernel.variant.endswith("bias32") else DTYPES[kernel.dtype]
    least = draw.of(-torch.inf, -torch.inf, torch.finfo(dtype).min)
    return draw.array((draw.normal(*shape) * 2).to(dtype).masked_fill(hidden, least))
