"""A language model's head in the tests: cases, the formula in any type, and how far roundings of logits may move it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from arrays import DTYPES
from xeflash.selftest.tolerance import SCORES

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

    @property
    def changes(self) -> dict[str, float]:
        """What changes logits, by the functions' names."""
        return {"softcap": self.softcap, "logit_scale": self.scale}

    @property
    def of_loss(self) -> dict[str, Any]:
        """What changes a loss."""
        return {"reduction": self.reduction, "label_smoothing": self.smoothing, "z_loss": self.z_loss, **self.changes}


def name_of(head: Head) -> str:
    words = [f"{head.dtype}-{head.rows}x{head.vocabulary}x{head.features}"]
    words += [f"{name}{x}" for name, x in head._asdict().items() if name in head._field_defaults and name not in
              ("dtype", "rows", "vocabulary", "features") and x != head._field_defaults[name]]  # fmt: skip
    return "-".join(words)


def lay_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The values of x in other memory; around sliced ones is NaN."""
    if layout == "turned":
        return x.mT.contiguous().mT
    if layout == "packed":
        return x.contiguous()
    around = torch.full((x.shape[0] + 3, x.shape[1] + 5), float("nan"), dtype=x.dtype)
    return around[1:-2, 1:-4].copy_(x)


def make(head: Head, spread: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """input, linear_weight, target (a third is ignored, if there are three rows) and linear_bias."""
    generator = torch.Generator().manual_seed(head.rows + head.vocabulary + head.features)
    dtype = DTYPES[head.dtype]
    x = (torch.randn(head.rows, head.features, generator=generator) * (spread * head.features**-0.5)).to(dtype)
    w = torch.randn(head.vocabulary, head.features, generator=generator).to(dtype)
    target = torch.randint(head.vocabulary, (head.rows,), generator=generator)
    target[2::3] = IGNORED
    bias = torch.randn(head.vocabulary, generator=generator).to(dtype) if head.bias else None
    return lay_out(x, head.layout), lay_out(w, head.layout), target, bias


def logits(head: Head, x: Any, w: Any, bias: Any, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    z = x.to(dtype) @ w.to(dtype).mT
    z = (z if bias is None else z + bias.to(dtype)) * head.scale
    return head.softcap * torch.tanh(z / head.softcap) if head.softcap else z


def sizes(head: Head, x: Any, w: Any, bias: Any) -> torch.Tensor:
    """Of logits before cancellation; a softcap only makes them smaller."""
    z = x.double().abs() @ w.double().abs().mT
    return (z if bias is None else z + bias.double().abs()) * abs(head.scale)


def losses(head: Head, z: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Of each row."""
    found = F.cross_entropy(z, target, reduction="none", label_smoothing=head.smoothing)
    return found + head.z_loss * z.logsumexp(-1).square() * (target != IGNORED)


def reduced(head: Head, found: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if head.reduction == "none":
        return found
    return found.sum() if head.reduction == "sum" else found.sum() / (target != IGNORED).sum()


def moved(head: Head, z: torch.Tensor, size: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """How far roundings of logits move the loss of each row, see xeflash.selftest.tolerance."""
    d = SCORES * size
    lse = z.logsumexp(-1)
    of_lse = (z.softmax(-1) * d).square().sum(-1).sqrt() + SCORES * lse.abs()
    at_target = d.gather(1, target.clamp(min=0)[:, None])[:, 0]
    far = of_lse * (1 + 2 * head.z_loss * lse.abs()) + at_target + d.mean(-1)
    return far * (target != IGNORED)
