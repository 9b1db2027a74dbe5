"""Weights quantised by rounding to nearest: with a scale per output and group of inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

import xeflash

LARGEST = {"int8": 127, "int4": 7}


@dataclass(frozen=True)
class Quantised:
    """A weight (N, K) that is q times the scale of its group; q is int8, for 4 bits from -8 to 7."""

    kind: str
    q: Tensor
    scales: Tensor  # (N, G)
    group: int

    def numbers(self) -> Tensor:
        """Returns the weight in the type of its scales; it is exact, as scales are powers of two."""
        spread = self.scales.repeat_interleave(self.group, 1)[:, : self.q.shape[1]]
        return self.q.to(self.scales.dtype) * spread

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of xeflash.linear from `weight` on."""
        scales = self.scales.T.contiguous()
        if self.kind == "int4":
            return xeflash.pack_int4(q=self.q + 8, scales=scales)._asdict()
        return {"weight": self.q, "scales": scales, "group": self.group if len(scales) > 1 else None}


def quantise(weight: Tensor, kind: str, group: int) -> Quantised:
    """Rounds a weight to int8 or int4, by scales that are powers of two."""
    outputs, inputs = weight.shape
    padded = pad(weight.detach().float(), (0, -inputs % group)).view(outputs, -1, group)
    largest = padded.abs().amax(-1, keepdim=True).clamp_min(1e-4) / LARGEST[kind]
    scales = torch.exp2(torch.ceil(torch.log2(largest)))
    q = (padded / scales).round_().view(outputs, -1)[:, :inputs].to(torch.int8)
    return Quantised(kind, q.contiguous(), scales[..., 0].to(weight.dtype), group)
