"""V in 4 bits: units of 64 columns, each with a scale in fp16, as kernels/tile/quantised.hpp describes them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from xeflash.selftest.values import LARGEST

Array: TypeAlias = "np.ndarray[Any, Any]"

COLUMNS = 64  # of a unit


def packed(numbers: Array) -> tuple[Array, Array]:
    """Returns the bytes of rows, and the scales of their units: the number that is farthest from 0 is -8 times one."""
    units = np.asarray(numbers, np.float64).reshape(*numbers.shape[:-1], numbers.shape[-1] // COLUMNS, COLUMNS)
    most, least = units.max(-1, initial=0.0), units.min(-1, initial=0.0)
    largest = LARGEST["float16"]
    scales = (np.where(most >= -least, most, least) / -8).clip(-largest, largest).astype(np.float16)
    of = scales.astype(np.float64)[..., None]
    q = np.rint(np.divide(units, of, out=np.zeros_like(units), where=of != 0)).clip(-8, 7)
    columns = (q + 8).astype(np.uint16).reshape(*scales.shape, 4, COLUMNS // 4)
    words = (columns << np.arange(0, 16, 4, dtype=np.uint16)[:, None]).sum(-2, dtype=np.uint16)
    return words.astype("<u2").view(np.uint8).reshape(*numbers.shape[:-1], numbers.shape[-1] // 2), scales


def unpacked(of_rows: Array, scales: Array) -> Array:
    """Returns the numbers of rows."""
    words = np.ascontiguousarray(of_rows).view("<u2").reshape(*scales.shape, 1, COLUMNS // 4)
    q = (words >> np.arange(0, 16, 4, dtype=np.uint16)[:, None] & 15).astype(np.float64) - 8
    numbers = q.reshape(*scales.shape, COLUMNS) * np.asarray(scales, np.float64)[..., None]
    return numbers.reshape(*of_rows.shape[:-1], 2 * of_rows.shape[-1])
