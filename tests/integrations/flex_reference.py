"""What torch's flex_attention says, in any type of floats, with gradients of all that functions capture.

Functions are called on numbers, as torch calls them: `vmap` makes them see one batch, head, row and key at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flex_examples import Captures, Example, Sizes
from torch import Tensor
from torch.overrides import TorchFunctionMode
from xeflash.selftest.reference import to_float64
from xeflash.selftest.tolerance import (
    GPU_MATH,
    SCORES,
    compare,
    limit_of,
    limit_of_probability,
    limits_of_math,
    size_of_lse,
)

DRAWS = 3


class _IndicesStayTensors(TorchFunctionMode):
    """`bias[q]` is a gather of an element, not a slice at a number, which `vmap` has none of."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.__getitem__:
            x, index = args
            index = index if isinstance(index, tuple) else (index,)
            if any(isinstance(i, Tensor) for i in index):
                places = [torch.tensor(i, device=x.device) if isinstance(i, int) else i for i in index]
                return torch.ops.aten.index.Tensor(x, places)
        return function(*args, **(kwargs or {}))


@contextmanager
def floats_are(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def by_element(function: Callable[..., Tensor], shape: tuple[int, ...], scores: Tensor | None = None) -> Tensor:
    """The function's values for all batches, heads, rows and keys."""
    score = () if scores is None else (scores,)
    of_scores = (0,) * len(score)
    for axis in (3, 2, 1, 0):
        function = torch.vmap(function, in_dims=(*of_scores, *(0 if i == axis else None for i in range(4))))
    device = None if scores is None else scores.device
    with _IndicesStayTensors():
        return function(*score, *(torch.arange(n, device=device) for n in shape)).expand(shape)


class Exact:
    """What is done to steps of the formula: nothing."""

    def probabilities(self, p: Tensor) -> Tensor:
        return p

    def scores(self, s: Tensor, size: Tensor) -> Tensor:
        """Of scores, with their size before cancellation."""
        return s

    def gradients(self, s: Tensor, p: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> None:
        """Of what the results come from."""


@dataclass
class InType(Exact):
    """Probabilities are rounded to a type."""

    dtype: torch.dtype

    def probabilities(self, p: Tensor) -> Tensor:
        return p.to(self.dtype).to(p.dtype)


@dataclass
class Moved(Exact):
    """Scores are off by what fp32 makes them off, and so are, in gradients, dP, Delta and the LSE that P is made from.

    Delta is off by O's rounding to its type, too.
    """

    dout: Tensor
    part: float
    directions: torch.Generator

    def off(self, size: Tensor) -> Tensor:
        signs = 2 * torch.randint(0, 2, size.shape, generator=self.directions, device="cpu", dtype=size.dtype) - 1
        return (signs * size.detach() * self.part).nan_to_num(0.0, posinf=0.0, neginf=0.0)

    def scores(self, s: Tensor, size: Tensor) -> Tensor:
        return s + self.off(size)

    def gradients(self, s: Tensor, p: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> None:
        if not out.requires_grad:
            return
        dout = self.dout.to(out.dtype)
        rounding = (2 * torch.rand(out.shape, generator=self.directions, dtype=out.dtype) - 1) * off_by(
            out.detach(), self.dout.dtype
        )
        delta = self.off((out * dout).abs().sum(-1, keepdim=True)) + (rounding * dout).sum(-1, keepdim=True)
        off = p.detach() * (self.off(dout.abs() @ v.abs().mT) + delta)
        kept = 1 + self.off(lse.abs().masked_fill(lse.isinf(), 0.0))
        out.register_hook(lambda g: g * kept[..., None])
        lse.register_hook(lambda g: g * kept)
        if s.requires_grad:
            s.register_hook(lambda g: g + off)


def off_by(out: Tensor, dtype: torch.dtype) -> Tensor:
    """What elements of an output are off by at most: an ulp in fp32, else half of one, as P is rounded to it, too."""
    ulps = torch.finfo(dtype).eps * torch.ldexp(torch.ones_like(out), torch.frexp(out).exponent - 1)
    return ulps if dtype == torch.float32 else ulps / 2


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    score_mod: Any = None,
    mask_mod: Any = None,
    scale: float | None = None,
    dtype: torch.dtype = torch.float64,
    step: Exact = Exact(),
) -> tuple[Tensor, Tensor]:
    """Out (B, H, Sq, Dv) and LSE (B, H, Sq), on the CPU; rows that see nothing give 0 and -inf."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = (x.to(dtype) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    with floats_are(dtype):
        s = step.scores(q @ k.mT * scale, (q.abs() @ k.abs().mT) * abs(scale))
        shape = tuple(s.shape)
        if score_mod is not None:
            s = by_element(score_mod, shape, s).to(dtype)
            s = step.scores(s, s.abs())
        changed = s
        if mask_mod is not None:
            s = s.masked_fill(~by_element(mask_mod, shape), -torch.inf)
    largest = s.detach().amax(-1, keepdim=True)
    p = torch.exp(s - largest.masked_fill(largest == -torch.inf, 0.0))
    sums = p.sum(-1, keepdim=True)
    is_empty = sums == 0
    sums = sums.masked_fill(is_empty, 1.0)
    p = p / sums
    lse = (largest.masked_fill(is_empty, 0.0) + sums.log()).masked_fill(is_empty, -torch.inf)[..., 0]
    out = step.probabilities(p) @ v
    step.gradients(changed, p, v, out, lse)
    return out, lse


# ---- an example with numbers --------------------------------------------------------------------


@dataclass
class Case:
    """Inputs of a call of an example, and what a loss is made of."""

    example: Example
    z: Sizes = field(default_factory=Sizes)
    dtype: torch.dtype = torch.float32
    scale: float | None = None

    def __post_init__(self) -> None:
        z, numbers = self.z, torch.Generator().manual_seed(7)
        shapes = ((z.heads, z.rows), (z.heads_k, z.keys), (z.heads_k, z.keys), (z.heads, z.rows))
        drawn = [torch.randn(z.batch, h, n, z.dim, generator=numbers, device="cpu") for h, n in shapes]
        self.q, self.k, self.v, self.dout = (x.to(self.dtype) for x in drawn)
        self.dlse = torch.randn(z.batch, z.heads, z.rows, generator=numbers, device="cpu")

    def by(self, attend: Callable[..., tuple[Tensor, Tensor]], of: Captures, grad: bool = False) -> dict[str, Tensor]:
        """Out, LSE and gradients of what `attend` computes from q, k, v and the example's functions."""
        mods = self.example(self.z, of)
        given = [x.to(of.device, copy=True).requires_grad_(grad) for x in (self.q, self.k, self.v)]
        out, lse = attend(*given, *mods, scale=self.scale)
        found = {"out": out, "lse": lse}
        if grad:
            learned = dict(zip("qkv", given, strict=True)) | of.learned
            seen = torch.where(lse.detach().isfinite(), self.dlse.to(of.device), 0.0)
            loss = (out * self.dout.to(of.device)).sum(dtype=lse.dtype) + (lse.nan_to_num(neginf=0.0) * seen).sum()
            found |= dict(zip(learned, torch.autograd.grad(loss, list(learned.values())), strict=True))
        return {name: x.detach().cpu() for name, x in found.items()}

    def wanted(self, grad: bool = False, on_gpu: bool = False) -> tuple[dict[str, Tensor], dict[str, Tensor], Any]:
        """In float64; as PyTorch computes it in q's type; in float64 with scores that are off by their roundings."""

        def by(dtype: torch.dtype, step: Exact) -> dict[str, Tensor]:
            return self.by(functools.partial(reference, dtype=dtype, step=step), Captures(dtype, grad=grad), grad)

        moved = Moved(self.dout, GPU_MATH if on_gpu else SCORES, torch.Generator().manual_seed(3))
        want, torchs = by(torch.float64, Exact()), by(torch.float32, InType(self.dtype))
        return want, torchs, [by(torch.float64, moved) for _ in range(DRAWS)]


def check(name: str, case: Case, got: dict[str, Tensor], on_gpu: bool = False) -> dict[str, float]:
    """Fails where a result is beyond its limit; errors, as parts of PyTorch's."""
    grad = len(got) > 2
    want, torchs, moved = case.wanted(grad, on_gpu)
    assert list(got) == list(want)
    assert got["out"].dtype == case.dtype and got["lse"].dtype == torch.float32
    math = limits_of_math(0.0, float(case.v.abs().max()), case.z.keys) if on_gpu else (0.0, 0.0)
    ratios = {}
    for what, x in got.items():
        exact, by_torch = to_float64(want[what]), to_float64(torchs[what])
        off = max(_difference(to_float64(other[what]), exact) for other in moved)
        size, more = 0.0, 0.0
        dtype = str(case.dtype).removeprefix("torch.") if what in ("out", "q", "k", "v") else "float32"
        if what == "lse":
            size, more = size_of_lse(exact, case.z.keys), limit_of_probability("float32") + math[1]
        elif what == "out":
            more = math[0]
        limit = limit_of(exact, by_torch, dtype, size, off) + more
        finding = compare(f"{name}: {what}", to_float64(x), exact, limit)
        assert finding.ok, finding
        ratios[what] = finding.error / max(_difference(by_torch, exact), 2.0**-126)
    return ratios


def _difference(a: Any, b: Any) -> float:
    finite = np.isfinite(b)
    return float(np.abs(a[finite] - b[finite]).max(initial=0.0))
