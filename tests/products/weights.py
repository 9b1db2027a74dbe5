"""Weights of tests: as they are stored, and the numbers in float64 that they stand for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

EIGHT_BITS = {"int8": torch.int8, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
GROUPS = (32, 64, 128, 0)  # inputs that share a scale; 0: all


@dataclass(frozen=True)
class Stored:
    numbers: torch.Tensor  # (outputs, inputs), float64
    arguments: dict[str, Any] = field(default_factory=dict)  # of linear


def pack(q: torch.Tensor) -> torch.Tensor:
    """Numbers 0 to 15 in units of 64 bytes: dword d has inputs 32 m + 2 d in bits 4 m, the next ones 16 bits above."""
    outputs, inputs = q.shape
    units = -(-inputs // 128)
    padded = torch.full((outputs, units * 128), 8, dtype=torch.int64)
    padded[:, :inputs] = q
    dwords = torch.zeros(outputs, units, 16, dtype=torch.int64)
    for at in range(128):
        m, d, odd = at // 32, at % 32 // 2, at % 2
        dwords[:, :, d] |= padded[:, at::128] << (4 * m + 16 * odd)
    return torch.stack([dwords >> 8 * i & 255 for i in range(4)], -1).to(torch.uint8).reshape(outputs, units * 64)


def type_of_scales(seed: int) -> torch.dtype:
    return (torch.float32, torch.float16, torch.bfloat16)[seed % 3]


def stored(
    kind: str, outputs: int, inputs: int, dtype: torch.dtype, group: int = 0, zeros: bool = False, seed: int = 0
) -> Stored:
    """Of a kind: same (the type of x), int4, or one of 8 bits. Scales are of a type that depends on the seed."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(outputs, inputs, generator=generator)
    if kind == "same":
        weight = (normal / max(inputs, 1) ** 0.5).to(dtype)
        return Stored(weight.double(), {"weight": weight})
    groups = -(-inputs // group) if group else 1
    groups_of_inputs = torch.arange(inputs) // group if group else torch.zeros(inputs, dtype=torch.long)
    scales = (torch.rand(groups, outputs, generator=generator) / 50 + 0.002).to(type_of_scales(seed))
    bounds = (0, 17) if seed % 2 else (-128, 128)  # those that checkpoints have, and all
    drawn = torch.randint(*bounds, (groups, outputs), generator=generator).to(torch.int8)
    if kind == "int4":
        q = torch.randint(0, 16, (outputs, inputs), generator=generator)
        weight, zero = pack(q), drawn if zeros else torch.full_like(drawn, 8)
    else:
        weight = (normal * 40 if kind == "int8" else normal).to(EIGHT_BITS[kind])
        q, zero = weight, drawn if zeros else torch.zeros_like(drawn)
    numbers = (q.double() - zero.mT[:, groups_of_inputs].double()) * scales.mT[:, groups_of_inputs].double()
    arguments = {"weight": weight, "scales": scales, "group": group or None}
    return Stored(numbers, arguments | ({"zeros": zero} if zeros else {}))
