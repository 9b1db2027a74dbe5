"""Exact real numbers and the machine's float formats: slow and plain, on integers and fractions.

A Real is finite, infinite or not a number; zeros and infinities have a sign. Rounding happens once, in `encode`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

RNE, RU, RD, RTZ = 0, 1, 2, 3  # cr0[5:4]

# type -> stored mantissa bits, exponent bits, position of the lowest bit
FORMATS = {"hf": (10, 5, 0), "f": (23, 8, 0), "df": (52, 11, 0), "bf": (7, 8, 0), "tf32": (10, 8, 13), "bf8": (2, 5, 0)}


@dataclass(frozen=True)
class Real:
    value: Fraction = Fraction(0)
    negative: bool = False  # of zeros and infinities too
    kind: str = "finite"  # or "inf", "nan"

    @property
    def is_nan(self) -> bool:
        return self.kind == "nan"

    @property
    def is_zero(self) -> bool:
        return self.kind == "finite" and self.value == 0

    def __neg__(self) -> Real:
        return Real(-self.value, not self.negative, self.kind)

    def __abs__(self) -> Real:
        return -self if self.negative else self


NAN = Real(kind="nan")


def infinity(negative: bool) -> Real:
    return Real(negative=negative, kind="inf")


def real(number: int | Fraction, negative_zero: bool = False) -> Real:
    return Real(Fraction(number), number < 0 or (number == 0 and negative_zero))


def decode(bits: int, kind: str) -> Real:
    mantissa_bits, exponent_bits, shift = FORMATS[kind]
    bits >>= shift
    mantissa = bits & (1 << mantissa_bits) - 1
    top = (1 << exponent_bits) - 1
    exponent = bits >> mantissa_bits & top
    negative = bits >> (mantissa_bits + exponent_bits) & 1 == 1
    if exponent == top:
        return NAN if mantissa else infinity(negative)
    if exponent:
        mantissa |= 1 << mantissa_bits
    else:
        exponent = 1
    value = Fraction(mantissa) * Fraction(2) ** (exponent - (top >> 1) - mantissa_bits)
    return Real(-value if negative else value, negative)


def round_quotient(value: Fraction, negative: bool, mode: int) -> int:
    """|value| as an integer, rounded as `value` with that sign would be."""
    whole, rest = divmod(value, 1)
    up = {
        RNE: rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1),
        RU: rest > 0 and not negative,
        RD: rest > 0 and negative,
        RTZ: False,
    }[mode]
    return int(whole) + up


def encode(x: Real, kind: str, mode: int = RNE) -> int:
    mantissa_bits, exponent_bits, shift = FORMATS[kind]
    top = (1 << exponent_bits) - 1
    bias = top >> 1
    sign = int(x.negative) << (mantissa_bits + exponent_bits)
    if x.is_nan:
        return (top << mantissa_bits | 1 << (mantissa_bits - 1)) << shift
    if x.kind == "inf":
        return (sign | top << mantissa_bits) << shift
    if x.value == 0:
        return sign << shift
    magnitude = abs(x.value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > magnitude
    quantum = max(exponent, 1 - bias) - mantissa_bits
    steps = round_quotient(magnitude / Fraction(2) ** quantum, x.negative, mode)
    # A carry out of the mantissa moves on into the exponent by itself.
    bits = steps + ((quantum + mantissa_bits + bias - 1) << mantissa_bits)
    if bits >= top << mantissa_bits:
        to_infinity = mode == RNE or (mode == RU and not x.negative) or (mode == RD and x.negative)
        bits = top << mantissa_bits if to_infinity else (top << mantissa_bits) - 1
    return (sign | bits) << shift


def add(a: Real, b: Real, mode: int = RNE) -> Real:
    if a.is_nan or b.is_nan:
        return NAN
    if a.kind == "inf" or b.kind == "inf":
        if a.kind == b.kind and a.negative != b.negative:
            return NAN
        return a if a.kind == "inf" else b
    total = a.value + b.value
    if total == 0:
        return real(0, a.negative if a.negative == b.negative and a.is_zero else mode == RD)
    return real(total)


def mul(a: Real, b: Real) -> Real:
    negative = a.negative != b.negative
    if a.is_nan or b.is_nan or (a.kind == "inf" and b.is_zero) or (b.kind == "inf" and a.is_zero):
        return NAN
    if a.kind == "inf" or b.kind == "inf":
        return infinity(negative)
    return real(a.value * b.value, negative)


def compare(a: Real, b: Real) -> int | None:
    """-1, 0, 1, or None if unordered."""
    if a.is_nan or b.is_nan:
        return None

    def key(x: Real) -> tuple[int, Fraction]:
        return (0 if x.kind == "finite" else -1 if x.negative else 1, x.value if x.kind == "finite" else Fraction(0))

    return (key(a) > key(b)) - (key(a) < key(b))


def to_integer(x: Real, rounding: str) -> Real:
    """rndd, rndu, rnde, rndz: the sign of a zero is that of the argument."""
    if x.kind != "finite":
        return x
    value = {"rndd": math.floor, "rndu": math.ceil, "rnde": round, "rndz": math.trunc}[rounding](x.value)
    return real(value, x.negative)


def fraction_part(x: Real) -> Real:
    return real(x.value - math.floor(x.value))


def as_float(x: Real) -> float:
    if x.is_nan:
        return math.nan
    if x.kind == "inf":
        return -math.inf if x.negative else math.inf
    return -0.0 if x.is_zero and x.negative else float(x.value)
