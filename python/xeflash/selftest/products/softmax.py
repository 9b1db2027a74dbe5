"""Cases of matmul_softmax: rows of a product become their softmax, or its logarithm."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from xeflash.selftest.arrays import Arrays
from xeflash.selftest.prepared import DTYPES, Prepared, generator_of, normal
from xeflash.selftest.tolerance import GPU_MATH, SCORES, Finding, compare, limit_of
from xeflash.selftest.values import Values

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class Softmax:
    """A case of matmul_softmax: a (rows, inputs) times b (columns, inputs), transposed."""

    dtype: str = "bf16"
    rows: int = 33
    columns: int = 63
    inputs: int = 64
    bias: bool = False
    log: bool = False

    @property
    def name(self) -> str:
        """Returns the name of the case."""
        words = [f"matmul_softmax {self.dtype} {self.rows}x{self.columns}x{self.inputs}"]
        return " ".join([*words, *["bias"] * self.bias, *["log"] * self.log])

    def prepare(self, arrays: Arrays) -> Prepared:
        """Draws the case's arrays."""
        xeflash: Any = importlib.import_module("xeflash")
        random, dtype = generator_of(self.name), DTYPES[self.dtype]
        a, b = normal(random, dtype, self.rows, self.inputs), normal(random, dtype, self.columns, self.inputs)
        bias = normal(random, dtype, self.columns) if self.bias else None
        scale = self.inputs**-0.5
        device_a, device_b = arrays.put(a), arrays.put(b)
        device_bias = None if bias is None else arrays.put(bias)
        added = 0.0 if bias is None else bias.numbers

        def softmax(work: Any) -> Array:
            scores = a.numbers.astype(work) @ b.numbers.astype(work).T * work(scale) + np.asarray(added, work)
            less = scores - scores.max(-1, keepdims=True)
            sums = np.exp(less).sum(-1, keepdims=True)
            return np.asarray(less - np.log(sums) if self.log else np.exp(less) / sums)

        def check(result: Any) -> list[Finding]:
            got, want = arrays.get(result), softmax(np.float64)
            other = Values.of(softmax(np.float32), dtype).numbers
            # Roundings of scores move each of them, and the sum of the row.
            d = SCORES * (np.abs(a.numbers) @ np.abs(b.numbers).T * scale + np.abs(added))
            p = np.exp(want) if self.log else want
            moved = d + np.sqrt(np.sum((p * d) ** 2, -1, keepdims=True))
            largest = float(np.max(np.abs(want)))
            math = GPU_MATH * (1 + 2 * largest) if arrays.on_gpu else 0.0
            limit = limit_of(want, other, dtype, largest, float(np.max(moved if self.log else p * moved))) + math
            return [compare("out", got.numbers, want, limit)]

        moved = a.bits.nbytes + b.bits.nbytes + self.rows * self.columns * a.bits.itemsize
        return Prepared(
            lambda: xeflash.matmul_softmax(device_a, device_b, bias=device_bias, scale=scale, log=self.log),
            check,
            2.0 * self.rows * self.columns * self.inputs,
            moved,
        )
