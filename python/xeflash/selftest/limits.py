"""Limits of devices by their makers' tables: nominal peaks, which no program reaches."""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class Limits:
    """TFLOP/s of products of 16 bits and of fp32, GB/s of memory, and MB that the last cache has at most."""

    tflops_16: float
    tflops_32: float
    gbytes_per_s: float
    cache_mbytes: float


# The name of the device; compute units tell the stacks of a Max 1550 that it consists of.
_DEVICES = (
    (r"Max 1100", Limits(355.5, 22.2, 1229, 108)),
    (r"Max 1550", Limits(419.4, 26.0, 1638, 204)),
    (r"\bB580\b", Limits(116.7, 14.6, 456, 18)),
    (r"\bB570\b", Limits(103, 12.9, 380, 18)),
    (r"\bB60\b", Limits(98.3, 12.3, 456, 18)),
    (r"\bB65\b", Limits(98, 12.3, 608, 32)),
    (r"\bB70\b", Limits(183.5, 22.9, 608, 32)),
    (r"\bA770\b", Limits(137.6, 17.2, 560, 16)),
    (r"\bA750\b", Limits(137, 17.2, 512, 16)),
    (r"\b140V\b", Limits(33.5, 4.2, 136, 16)),
)
_ENGINES_OF_STACK = 512


def limits_of(name: str, compute_units: int) -> Limits | None:
    """Returns the limits of a device by its name, or None where they are not known."""
    for pattern, limits in _DEVICES:
        if re.search(pattern, name):
            stacks = 2 if "1550" in pattern and compute_units > _ENGINES_OF_STACK else 1
            return Limits(*(stacks * limit for limit in astuple(limits)))
    return None
