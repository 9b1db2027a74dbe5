"""What every kind of case becomes: a call that can be repeated, and a judge of what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from xeflash.selftest.arrays import Arrays
from xeflash.selftest.reference import Features, visible
from xeflash.selftest.tolerance import Finding
from xeflash.selftest.values import Values

Array: TypeAlias = "np.ndarray[Any, Any]"

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_DISTINCT = 1 << 20
DTYPES |= {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "int8": "int8"}


@dataclass(frozen=True)
class Prepared:
    """A case whose arrays are on the device."""

    call: Callable[[], Any]
    judge: Callable[[Any], list[Finding]]
    flops: float  # multiplications and additions of both products, of what is not hidden
    bytes: float  # Q, O, and K and V once


class Case(Protocol):
    """Something to try."""

    @property
    def name(self) -> str:
        """What it is, unique among all."""

    def prepare(self, arrays: Arrays) -> Prepared:
        """Draw its arrays; the same ones at each time."""


def generator_of(name: str) -> np.random.Generator:
    """Random numbers of a case: they do not depend on other cases."""
    return np.random.default_rng(list(name.encode()))


def draw(random: np.random.Generator, dtype: str, *shape: int) -> Values:
    """Standard normal numbers of a type; large arrays repeat them."""
    size = int(np.prod(shape))
    numbers = Values.of(random.standard_normal(min(size, _DISTINCT), np.float32), dtype)
    return Values(np.resize(numbers.bits, shape), dtype)


def result_of(arrays: Arrays, result: Any, dtype: str, has_lse: bool = True) -> tuple[Array, Array | None]:
    """The numbers of out and LSE, which have to be of their types."""
    found = [arrays.get(x) for x in (result[:2] if has_lse else (result,))]
    if [x.dtype for x in found] != [dtype, "float32"][: len(found)]:
        raise TypeError(f"results are of {', '.join(x.dtype for x in found)}, not {dtype} and float32")
    return found[0].numbers, found[1].numbers if has_lse else None


def work_of(rows: int, keys: int, heads: int, heads_k: int, dims: tuple[int, int], f: Features) -> tuple[float, int]:
    """(flops, elements of Q, O, K and V) of a sequence."""
    pairs = float(visible(rows, keys, f.window, f.top_left).sum())
    return 2 * pairs * heads * sum(dims), sum(dims) * (rows * heads + keys * heads_k)
