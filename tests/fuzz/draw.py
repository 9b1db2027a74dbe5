"""What cases are drawn from: kernels, sizes, values, arrays."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import torch
from arrays import DTYPES
from axes import ODD_DIMS, STEPS_OF_8
from memory import Array, draw_layout, place
from xeflash.selftest.attention.spec import Spec

HOST = ("numpy", "torch")


# Few, as each is compiled for a second or more, and shared with other tests where they can be.
KERNELS = [
    Spec("bf16"),
    Spec("fp32"),
    Spec("fp16"),
    Spec("fp16", 40, variant="softcap"),
    Spec("fp16", 40, variant="bias32"),
    Spec("bf16", variant="alibi"),
    Spec("bf16", variant="mask"),
    Spec("fp32", variant="bias"),
    Spec("fp32", variant="dropout"),
    Spec("bf16", variant="snippet"),
    Spec("bf16", 64, 40, variant="softcap+alibi+bias"),
    Spec("fp32", variant="chunk"),
    Spec("bf16", variant="documents"),
    Spec("fp32", variant="picks"),
    Spec("fp32", variant="blocks"),
    Spec("bf16", variant="mask_mod"),
    Spec("fp32", variant="blocks+mask_mod"),
]
CACHE_KERNELS = [
    Spec("bf16", place="paged"),
    Spec("fp32", place="plain"),
    Spec("fp16", 40, place="beams"),
    Spec("bf16", place="paged", format="e4m3"),
    Spec("fp32", place="plain", format="int8.array"),
    Spec("fp16", 40, place="paged", format="e5m2.array"),
    Spec("bf16", place="beams", format="int8"),
    Spec("bf16", 128, place="paged", format="int8.nibbles"),
    Spec("fp16", place="plain", format="e4m3.nibbles"),
    Spec("fp32", variant="softcap", place="paged"),
    Spec("bf16", 64, 40, variant="alibi", place="plain"),
    Spec("bf16", variant="snippet", place="paged"),
    Spec("fp32", variant="chunk", place="paged"),
    Spec("fp32", variant="tree", place="paged"),
]
NARROW, NARROW_CACHE = KERNELS[:1], CACHE_KERNELS[:1]
SWEPT = KERNELS[:3]  # in every size, fp32 with every variant; not on GPUs
VARIANTS = ("plain", "softcap", "alibi", "mask", "bias", "bias32", "dropout", "snippet", "softcap+alibi+bias32")
VARIANTS += ("chunk", "documents", "picks", "alibi+chunk", "softcap+documents", "softcap+picks")
VARIANTS += ("blocks", "mask_mod", "softcap+blocks", "snippet+blocks+mask_mod", "bias+dropout+blocks")
VARIANTS_OF_SIZES = ("plain", "plain", "mask", "softcap", "alibi", "dropout", "chunk")

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
        self.numpy = np.random.default_rng([seed, number])
        self.kinds, self.width = kinds, width
        self.kind = self.random.choice(kinds)
        self.mixed = self.kind in HOST and self.chance(0.1)
        self.on_gpu = self.kind in ("usm", "xpu")
        self.guised = True  # some arrays are of a subclass, or lazy views

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def of(self, *values: Any) -> Any:
        return self.random.choice(values)

    def kernel(self) -> Spec:
        if self.width == "sweep":
            kernel = self.of(*SWEPT)
            return replace(kernel, variant=self.of(*VARIANTS_OF_SIZES)) if kernel.dtype == "fp32" else kernel
        if self.width != "wide":
            return self.random.choice(NARROW if self.width == "narrow" else KERNELS)
        return Spec(self.of(*DTYPES), self.dim(), self.dim(), variant=self.random.choice(VARIANTS))

    def cache_kernel(self) -> Spec:
        if self.width != "wide":
            return self.random.choice(CACHE_KERNELS if self.width == "usual" else NARROW_CACHE)
        variant = self.of("plain", "plain", "softcap", "alibi", "snippet", "chunk", "tree", "softcap+tree")
        place, form = self.of("plain", "paged", "beams"), self.of("", "", "e4m3", "e5m2", "int8")
        form += ".array" if form and self.chance(0.5) else ""
        return Spec(self.of(*DTYPES), self.dim(), self.dim(), variant=variant, place=place, format=form)

    def dim(self) -> int:
        return self.random.choice(STEPS_OF_8 if self.on_gpu or self.chance(0.5) else STEPS_OF_8 + ODD_DIMS)

    def kernel_without(self, *variants: str) -> Spec:
        """For a function that does not take them."""
        kernel = self.kernel()
        return self.kernel_without(*variants) if any(x in kernel.variant for x in variants) else kernel

    def rows(self, kernel: Spec) -> int:
        if self.chance(0.02):
            return 0
        if self.width == "sweep":  # small tiles have kernels of their own: not for every variant
            least, most = self.of((1, 40), (1, 300)) if kernel.variant in ("plain", "mask") else (33, 150)
            return self.random.randint(least, most)
        many = self.width == "wide" or ((kernel.variant, kernel.place) == ("plain", "") and kernel.dtype == "bf16")
        return self.random.choice([n for n in ROWS if n <= (127 if many else 16)])

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
