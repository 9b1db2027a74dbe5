"""A language model's head in the tests: cases, the formula in any type, and how far roundings of logits may move it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from arrays import DTYPES, is_on_gpu
from memory import lay_out
from tolerance import assert_close
from xeflash.selftest.tolerance import GPU_MATH, SCORES

IGNORED = -100


class Head(NamedTuple):
    """What a test asks for."""

    dtype: str = "fp32"
    rows: int = 23
    vocabulary: int = 200
    features: int = 48
    bias: bool = False
    softcap: float = 0.0
    scale: float = 1.0
    smoothing: float = 0.0
    z_loss: float = 0.0
    reduction: str = "mean"
    layout: str = "packed"
    kind: str = "torch"
    divisor: float = 0.0  # of the sum, with "mean"; 0: the rows that count
    drawn: bool = False  # nobody has looked at the values: a sum of n terms has 1 + sqrt(n) roundings

    @property
    def changes(self) -> dict[str, float]:
        """What changes logits, by the functions' names."""
        return {"softcap": self.softcap, "logit_scale": self.scale}

    @property
    def loss_options(self) -> dict[str, Any]:
        """What changes a loss."""
        return {"reduction": self.reduction, "label_smoothing": self.smoothing, "z_loss": self.z_loss, **self.changes}


def name_of(head: Head) -> str:
    words = [f"{head.dtype}-{head.rows}x{head.vocabulary}x{head.features}"]
    words += [f"{name}{x}" for name, x in head._asdict().items() if name in head._field_defaults and name not in
              ("dtype", "rows", "vocabulary", "features") and x != head._field_defaults[name]]  # fmt: skip
    return "-".join(words)


def make(head: Head, spread: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """input, linear_weight, target (a third is ignored, if there are three rows) and linear_bias."""
    generator = torch.Generator().manual_seed(head.rows + head.vocabulary + head.features)
    dtype = DTYPES[head.dtype]
    x = (torch.randn(head.rows, head.features, generator=generator) * (spread * head.features**-0.5)).to(dtype)
    w = torch.randn(head.vocabulary, head.features, generator=generator).to(dtype)
    target = torch.randint(head.vocabulary, (head.rows,), generator=generator)
    target[2::3] = IGNORED
    bias = torch.randn(head.vocabulary, generator=generator).to(dtype) if head.bias else None
    layout = {"sliced": "odd"}.get(head.layout, head.layout)
    return lay_out(x, layout), lay_out(w, layout), target, bias


def logits(head: Head, x: Any, w: Any, bias: Any, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    z = x.to(dtype) @ w.to(dtype).mT
    z = (z if bias is None else z + bias.to(dtype)) * head.scale
    return head.softcap * torch.tanh(z / head.softcap) if head.softcap else z


def sizes(head: Head, x: Any, w: Any, bias: Any) -> torch.Tensor:
    """Of logits before cancellation; a softcap only makes them smaller."""
    z = x.double().abs() @ w.double().abs().mT
    z = z if bias is None else z + bias.double().abs().nan_to_num(0.0, 0.0)
    return z * (abs(head.scale) * (1 + math.sqrt(head.features) if head.drawn else 1.0))


def summed(head: Head, largest: float) -> float:
    """The size of a logarithm of a sum, and of what is made of it."""
    return (1 + largest) * (1 + math.sqrt(head.vocabulary)) if head.drawn else largest


def math_of(head: Head, z: torch.Tensor) -> float:
    """What a GPU's functions add."""
    return GPU_MATH * (1 + float(z.abs().max())) if is_on_gpu(head.kind) else 0.0


def losses(head: Head, z: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Of each row."""
    found = F.cross_entropy(z, target, reduction="none", label_smoothing=head.smoothing)
    return found + head.z_loss * z.logsumexp(-1).square() * (target != IGNORED)


def reduced(head: Head, found: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if head.reduction == "none":
        return found
    return found.sum() if head.reduction == "sum" else found.sum() / (head.divisor or (target != IGNORED).sum())


def moved(head: Head, z: torch.Tensor, size: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """How far roundings of logits move the loss of each row, see xeflash.selftest.tolerance."""
    d = SCORES * size
    lse = z.logsumexp(-1)
    lse_error = (z.softmax(-1) * d).square().sum(-1).sqrt() + SCORES * lse.abs()
    at_target = d.gather(1, target.clamp(min=0)[:, None])[:, 0]
    far = lse_error * (1 + 2 * head.z_loss * lse.abs()) + at_target + d.mean(-1)
    return far * (target != IGNORED)


# ---- what is judged -----------------------------------------------------------------------------


def check_loss(
    head: Head, loss: torch.Tensor, lse: torch.Tensor | None, x: Any, w: Any, target: torch.Tensor, bias: Any
) -> None:
    z, size = logits(head, x, w, bias), sizes(head, x, w, bias)
    want = losses(head, z, target)
    other = losses(head, logits(head, x, w, bias, torch.float32), target)
    far = moved(head, z, size, target)
    gpu_error = math_of(head, z)
    assert loss.dtype == torch.float32
    several = 1 if head.reduction == "none" else head.rows if head.reduction == "sum" else 1
    far = reduced(head, far, target) if head.reduction != "none" else far.max()
    largest = reduced(head, want.abs(), target) if head.reduction != "none" else want.abs().max()
    assert_close(
        name_of(head), loss, reduced(head, want, target).numpy(), reduced(head, other, target).double().numpy(),
        summed(head, float(largest)), float(far), gpu_error * several,
    )  # fmt: skip
    if lse is not None:
        most = float(z.abs().max()) + float(np.log(head.vocabulary))
        off = float(moved(head, z, size, torch.zeros_like(target)).max())
        by_torch = z.float().logsumexp(-1).double().numpy()
        assert_close("lse", lse, z.logsumexp(-1).numpy(), by_torch, summed(head, most), off, gpu_error)


def check_top_k(head: Head, values: torch.Tensor | None, tokens: torch.Tensor, x: Any, w: Any, bias: Any) -> None:
    """tokens (rows, k), and their logits, if they are told."""
    k = tokens.shape[1]
    z = logits(head, x, w, bias).nan_to_num(-torch.inf, neginf=-torch.inf)
    want = z.topk(k).values
    by_torch = logits(head, x, w, bias, torch.float32).nan_to_num(-torch.inf, neginf=-torch.inf)
    other = by_torch.topk(k).values.double().numpy()
    off = SCORES * float(sizes(head, x, w, bias).max())
    size = float(z.abs().nan_to_num(posinf=0.0).max())
    gpu_error = GPU_MATH * (1 + head.softcap) if is_on_gpu(head.kind) else 0.0
    assert tokens.dtype == torch.int64
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < head.vocabulary
    if values is not None:
        assert values.dtype == torch.float32
        assert_close(name_of(head), values, want.numpy(), other, size, off, gpu_error)
    # Each token's logit is the one that is told, and no token comes twice.
    assert_close("tokens", z.gather(1, tokens).float(), want.numpy(), other, size, off, gpu_error)
    assert all(len(set(row)) == k for row in tokens.tolist())


def check_gradients(
    head: Head, found: Any, x: Any, w: Any, target: torch.Tensor, bias: Any, dloss: Any = 1.0, dlse: Any = None
) -> None:
    """Those of the sum of dloss times the loss, and dlse times the LSE."""
    wide = [t.double().requires_grad_() for t in (x, w, bias) if t is not None]

    def total(given: Any, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        z = logits(head, given[0], given[1], given[2] if bias is not None else None, dtype)
        row_losses = losses(head, z, target)
        loss = (reduced(head, row_losses, target) * dloss).sum()
        return z, row_losses, loss if dlse is None else loss + (z.logsumexp(-1) * dlse).sum()

    z, row_losses, loss = total(wide, torch.float64)
    want = torch.autograd.grad(loss, wide, retain_graph=True)
    slopes = torch.autograd.grad(loss, z, retain_graph=True)[0].abs()
    same = [t.float().requires_grad_() for t in (x, w, bias) if t is not None]
    torchs = torch.autograd.grad(total(same, torch.float32)[2], same)
    # P is off by what its logits are, and rounded to the type of input before it is summed.
    size = sizes(head, x, w, bias)
    of_p = z.softmax(-1) * (slopes.sum(-1, keepdim=True) + slopes) * size.max() * SCORES * 4
    info = torch.finfo(x.dtype)
    lost = info.tiny * info.eps if head.drawn else 0.0  # slopes that are next to nothing
    off = (slopes * info.eps + of_p + lost).detach() * abs(head.scale)
    if head.drawn:
        # P is off by roundings of its sum, too, however small its difference from the target is.
        each = torch.autograd.grad(loss, row_losses, retain_graph=True)[0].abs() * (
            1 + 2 * head.z_loss * z.logsumexp(-1).abs()
        )
        each = each if dlse is None else each + dlse.abs()
        gpu_error = 2 * GPU_MATH if is_on_gpu(head.kind) else 0.0
        relative = SCORES * (1 + math.sqrt(head.vocabulary)) + gpu_error
        off = off + (z.softmax(-1) * each[:, None] * relative).detach() * abs(head.scale)
        off = off * (1 + math.sqrt(max(head.rows, head.vocabulary)) * SCORES / info.eps)
    offs = [off @ w.double().abs(), off.mT @ x.double().abs(), off.sum(0)]
    found = [t for t in found if t is not None]
    assert len(found) == len(want)
    for name, got, exact, other, far in zip(("input", "weight", "bias"), found, want, torchs, offs, strict=False):
        assert got.dtype == x.dtype
        assert_close(
            f"d{name}", got, exact.numpy(), other.to(x.dtype).double().numpy(), scores=float(far.detach().max())
        )
