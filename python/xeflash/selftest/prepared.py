"""The common form of all kinds of cases: a call that can be repeated, and a judge of what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from xeflash.selftest.arrays import Arrays
from xeflash.selftest.tolerance import Finding
from xeflash.selftest.values import Values

Array: TypeAlias = "np.ndarray[Any, Any]"

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_DISTINCT = 1 << 20
_KINDS = {"normal": 0.7, "huge": 0.08, "small": 0.06, "equal": 0.06, "zero": 0.03, "sparse": 0.07}  # and their shares
DTYPES |= {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "int8": "int8"}


@dataclass(frozen=True)
class Prepared:
    """A case whose arrays are on the device."""

    call: Callable[[], Any]
    judge: Callable[[Any], list[Finding]]
    flops: float  # multiplications and additions of both products, of what is not hidden
    bytes: float  # Q, O, and K and V once


class Case(Protocol):
    """The protocol of cases: each has a name, and draws its arrays."""

    @property
    def name(self) -> str:
        """Returns the name of the case, unique among all."""

    def prepare(self, arrays: Arrays) -> Prepared:
        """Draws the case's arrays, the same ones each time."""


def generator_of(name: str) -> np.random.Generator:
    """Returns a generator of random numbers for a case, which do not depend on other cases."""
    return np.random.default_rng(list(name.encode()))


def normal(random: np.random.Generator, dtype: str, *shape: int, kind: str = "normal", factor: float = 1.0) -> Values:
    """Draws standard normal numbers of a type, times a factor; large arrays repeat them.

    Of a kind: large, huge, small, zero, sparse, equal (all are 1), any (of these).
    """
    if kind == "any":
        kind = random.choice([*_KINDS], p=[*_KINDS.values()])
    x = random.standard_normal(min(int(np.prod(shape)), _DISTINCT), np.float32) * np.float32(factor)
    if kind == "sparse":
        x = np.where(x > 1, x * 4, 0)
    elif kind == "equal":
        x = np.ones_like(x)
    else:
        x = x * np.float32({"large": 5.0, "huge": 20.0, "small": 1e-3, "zero": 0.0}.get(kind, 1.0))
    return Values(np.resize(Values.of(x, dtype).bits, shape), dtype)


def result_of(arrays: Arrays, result: Any, dtype: str, has_lse: bool = True) -> tuple[Array, Array | None]:
    """Returns the numbers of out and LSE; raises TypeError unless they have their types."""
    found = [arrays.get(x) for x in (result[:2] if has_lse else (result,))]
    if [x.dtype for x in found] != [dtype, "float32"][: len(found)]:
        raise TypeError(f"results are of {', '.join(x.dtype for x in found)}, not {dtype} and float32")
    return found[0].numbers, found[1].numbers if has_lse else None
