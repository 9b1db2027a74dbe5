"""What attention kernels should compute, in float64, and the number formats they compute with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Bits = np.ndarray[Any, Any]


@cache
def fp8_values(name: str) -> Floats:
    """The value of each byte of e4m3 (no infinity, one NaN) or e5m2."""
    exponent_bits, bias = (4, 7) if name == "e4m3" else (5, 15)
    mantissa_bits = 7 - exponent_bits
    code = np.arange(256)
    exponent = code >> mantissa_bits & (1 << exponent_bits) - 1
    fraction = (code & (1 << mantissa_bits) - 1) / (1 << mantissa_bits)
    value = np.where(exponent == 0, np.ldexp(fraction, 1 - bias), np.ldexp(1 + fraction, exponent - bias))
    special = code & 0x7F == 0x7F if name == "e4m3" else exponent == 31  # NaN, or infinity and NaN
    values: Floats = np.where(special, np.nan, np.where(code >= 128, -value, value))
    return values


def encode(name: str, values: Floats) -> Bits:
    """The nearest numbers of a format, as their bits."""
    bits: Bits
    if name == "fp16":
        bits = values.astype(np.float16).view(np.uint16)
    elif name == "bf16":
        wide: Bits = values.astype(np.float32).view(np.uint32)
        nearest = (wide + 0x7FFF + (wide >> 16 & 1)) >> 16
        bits = np.where(np.isnan(values), 0x7FC0, nearest).astype(np.uint16)
    else:
        table = fp8_values(name)
        codes = np.argsort(table)[: np.count_nonzero(~np.isnan(table))]
        middles = (table[codes][1:] + table[codes][:-1]) / 2
        bits = np.where(np.isnan(values), 0x7F, codes[np.searchsorted(middles, values)]).astype(np.uint8)
    return bits


def decode(name: str, bits: Bits) -> Floats:
    """The values of bits."""
    values: Floats
    if name == "fp16":
        values = bits.view(np.float16).astype(np.float64)
    elif name == "bf16":
        values = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    else:
        values = fp8_values(name)[bits]
    return values


@dataclass
class Result:
    """O[query, head, d], P|V| (what bounds the rounding of P) and the log of the sum of exponentials[head, query]."""

    O: Floats
    PV: Floats
    lse: Floats


Window = tuple[int, int]  # how many keys to the left and to the right of a query's own it sees


def visible(queries: int, keys: int, window: Window) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which keys a query sees: the last query stands at the last key."""
    distance = np.arange(keys)[None, :] - (np.arange(queries)[:, None] + keys - queries)
    seen: np.ndarray[Any, np.dtype[np.bool_]] = (distance >= -window[0]) & (distance <= window[1])
    return seen


def attention(Q: Floats, K: Floats, V: Floats, scale: float, window: Window, sink: Floats | None) -> Result:
    """One sequence; Q[query, head, d], K and V[key, head, d], sink[head] one more score that has no value."""
    group = Q.shape[1] // K.shape[1]
    K, V = np.repeat(K, group, axis=1), np.repeat(V, group, axis=1)
    S = np.einsum("qhd,khd->hqk", Q, K) * scale
    S = np.where(visible(Q.shape[0], K.shape[0], window), S, -np.inf)
    lse = np.logaddexp.reduce(S, axis=2)
    if sink is not None:
        lse = np.logaddexp(lse, sink[:, None])
    P = np.exp(S - lse[:, :, None])
    return Result(np.einsum("hqk,khd->qhd", P, V), np.einsum("hqk,khd->qhd", P, np.abs(V)), lse)


def merged(partial: Floats, lse: Floats) -> Result:
    """Splits joined: partial[split, head, d], lse[head, split]."""
    total = np.logaddexp.reduce(lse, axis=1)
    weight = np.exp(lse - total[:, None]).T[:, :, None]
    return Result((weight * partial).sum(0)[None], (weight * np.abs(partial)).sum(0)[None], total[:, None])


def joined(results: Sequence[Result]) -> Result:
    """The sequences of a batch."""
    return Result(
        np.concatenate([r.O for r in results]),
        np.concatenate([r.PV for r in results]),
        np.concatenate([r.lse for r in results], axis=1),
    )
