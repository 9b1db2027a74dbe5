"""Numbers of all types of kernels in numpy arrays, though numpy has neither bfloat16 nor floats of 8 bits."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"

_STORAGE: dict[str, type[np.generic]] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.uint16,
    "float8_e4m3fn": np.uint8,
    "float8_e5m2": np.uint8,
    "int8": np.int8,
    "uint8": np.uint8,
    "int32": np.int32,
    "int64": np.int64,
    "bool": np.bool_,
}
# Bits of the mantissa, and the least exponent.
_SPACED = {
    "float32": (23, -126),
    "float16": (10, -14),
    "bfloat16": (7, -126),
    "float8_e4m3fn": (3, -6),
    "float8_e5m2": (2, -14),
}

LARGEST = {
    "float32": (2 - 2.0**-23) * 2.0**127,
    "float16": 65504.0,
    "bfloat16": (2 - 2.0**-7) * 2.0**127,
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
    "int8": 127.0,
}


@dataclass(frozen=True)
class Values:
    """An array of a type: numbers where numpy has the type, else their bits."""

    bits: Array
    dtype: str

    @classmethod
    def of(cls, numbers: Any, dtype: str) -> Values:
        """Rounds numbers to the nearest of a type."""
        numbers = np.asarray(numbers)
        if dtype == "bfloat16":
            bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
            return cls(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16), dtype)
        if dtype.startswith("float8"):
            return cls(_nearest_of_8_bits(numbers, dtype), dtype)
        if dtype == "int8":
            numbers = np.rint(numbers).clip(-127, 127)
        return cls(np.ascontiguousarray(numbers, _STORAGE[dtype]), dtype)

    @classmethod
    def filled(cls, shape: tuple[int, ...], dtype: str) -> Values:
        """Returns values that nobody should read: NaN, or the largest number."""
        if dtype == "int8":
            return cls(np.full(shape, 127, np.int8), dtype)
        if dtype == "uint8":
            return cls(np.full(shape, 0xFF, np.uint8), dtype)
        if dtype.startswith("float8"):
            return cls(np.full(shape, 0x7F, np.uint8), dtype)
        return cls.of(np.full(shape, np.nan, np.float32), dtype)

    @property
    def numbers(self) -> Array:
        """Returns the numbers in float64; uint8, int32, int64 and bool stay."""
        if self.dtype in ("uint8", "int32", "int64", "bool"):
            return self.bits
        if self.dtype == "bfloat16":
            return (self.bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        if self.dtype.startswith("float8"):
            return _eight_bit_numbers(self.dtype)[self.bits]
        return self.bits.astype(np.float64)

    def part(self, index: Any) -> Array:
        """Returns the numbers at an index."""
        return Values(self.bits[index], self.dtype).numbers

    def spacing(self) -> Array:
        """Returns the spacing of the type's numbers at each value."""
        return spacing(self.numbers, self.dtype)


def spacing(numbers: Any, dtype: str) -> Array:
    """Returns the spacing of a type's numbers at each of these."""
    size = np.abs(numbers)
    if dtype == "int8":
        return np.ones(size.shape)
    mantissa, least = _SPACED[dtype]
    exponent = np.where(size == 0, least, np.maximum(np.frexp(size)[1] - 1, least))
    return np.ldexp(1.0, exponent - mantissa)


def from_storage(dtype: str) -> type[np.generic]:
    """Returns the numpy type that holds the bits."""
    return _STORAGE[dtype]


@functools.cache
def _eight_bit_numbers(dtype: str) -> Array:
    """Returns the number of each of 256 codes."""
    codes = np.arange(256, dtype=np.uint16)
    if dtype == "float8_e5m2":
        return (codes << 8).astype(np.uint16).view(np.float16).astype(np.float64)
    exponent, mantissa = (codes >> 3 & 15).astype(int), (codes & 7).astype(float)
    size = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(8 + mantissa, exponent - 10))
    size = np.where(codes & 127 == 127, np.nan, size)
    return np.where(codes & 128, -size, size)


def _nearest_of_8_bits(numbers: Array, dtype: str) -> Array:
    """Returns codes of the nearest finite numbers; of two equally near ones, the even one."""
    sizes = _eight_bit_numbers(dtype)[:128]
    sizes = sizes[np.isfinite(sizes)]
    middles = (sizes[:-1] + sizes[1:]) / 2
    middles[1::2] = np.nextafter(middles[1::2], 0)
    code = np.searchsorted(middles, np.abs(numbers)).astype(np.uint8)
    return np.asarray(code | np.signbit(numbers).astype(np.uint8) << 7)
