"""References for the peers' kernels: the selftest's reference, in their layouts and number formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from xeflash.selftest.reference import Features, formula, merged_reference, per_head
from xeflash.selftest.values import Values

Floats = np.ndarray[Any, np.dtype[np.float64]]
Bits = np.ndarray[Any, Any]
Window = tuple[int, int]  # how many keys to the left and to the right of a query's own it sees
FORMATS = {"fp16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}


def _bits_of(values: Values) -> Bits:
    return values.bits.view(np.uint16) if values.bits.dtype == np.float16 else values.bits


def encode(name: str, numbers: Floats) -> Bits:
    """Rounds numbers to the nearest of a format, and returns their bits."""
    return _bits_of(Values.of(numbers, FORMATS[name]))


def nan_bits(name: str, shape: tuple[int, ...]) -> Bits:
    """Returns the bits of NaN in a format."""
    return _bits_of(Values.filled(shape, FORMATS[name]))


def decode(name: str, bits: Bits) -> Floats:
    """Returns the values of bits."""
    return Values(bits.view(np.float16) if name == "fp16" else bits, FORMATS[name]).numbers


@dataclass
class Result:
    """The results O[query, head, d], P|V| (which bounds the rounding of P) and LSE[head, query]."""

    O: Floats
    PV: Floats
    lse: Floats


def attention(Q: Floats, K: Floats, V: Floats, scale: float, window: Window, sink: Floats | None) -> Result:
    """Computes one sequence; Q[query, head, d], K and V[key, head, d], sink[head] one more score that has no value."""
    Q, K, V = (x.swapaxes(0, 1)[None] for x in (Q, K, V))
    found = formula(Q, K, V, Features(scale, window, sinks=sink))
    PV = found.softmax @ per_head(np.abs(V), Q.shape[1])
    return Result(found.out[0].swapaxes(0, 1), PV[0].swapaxes(0, 1), found.lse[0])


def merged(partial: Floats, lse: Floats) -> Result:
    """Merges splits: partial[split, head, d], lse[head, split]."""
    O, lse_of_all, PV = merged_reference(partial[:, None], lse.T[:, :, None])
    return Result(O, PV, lse_of_all)


def joined(results: Sequence[Result]) -> Result:
    """Joins the sequences of a batch."""
    O, PV = (np.concatenate([getattr(r, name) for r in results]) for name in ("O", "PV"))
    return Result(O, PV, np.concatenate([r.lse for r in results], axis=1))
