"""Cases of linear: products of rows with weights that stand for themselves, or are quantised."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from xeflash.selftest.arrays import Arrays
from xeflash.selftest.prepared import DTYPES, Prepared, generator_of, normal
from xeflash.selftest.tolerance import Finding, compare, limit_of
from xeflash.selftest.values import Values

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class Linear:
    """A case of linear: x (rows, inputs) times a weight (outputs, inputs), transposed."""

    dtype: str = "bf16"
    weights: str = "same"  # the type of x; or int8, e4m3, e5m2, int4
    rows: int = 1
    outputs: int = 100
    inputs: int = 200
    group: int = 0  # inputs that share a scale; 0: all
    zeros: bool = False
    bias: bool = False
    checked: int = 0  # only so many outputs, the last ones: for large cases

    @property
    def name(self) -> str:
        """Returns the name of the case."""
        words = [f"linear {self.dtype} {self.rows}x{self.outputs}x{self.inputs}", self.weights]
        words += [f"groups of {self.group}"] if self.group else []
        return " ".join([*words, *["zeros"] * self.zeros, *["bias"] * self.bias])

    def prepare(self, arrays: Arrays) -> Prepared:
        """Draws the case's arrays."""
        xeflash: Any = importlib.import_module("xeflash")
        random, dtype = generator_of(self.name), DTYPES[self.dtype]
        x = normal(random, dtype, self.rows, self.inputs)
        bias = normal(random, dtype, self.outputs) if self.bias else None
        part = slice(-self.checked if self.checked else None, None)
        given, weight = self._weight(random, dtype, part)
        named = {name: arrays.put(v) if isinstance(v, Values) else v for name, v in given.items()}
        device_x, device_bias = arrays.put(x), None if bias is None else arrays.put(bias)

        def check(result: Any) -> list[Finding]:
            got = arrays.get(result)
            if got.dtype != dtype:
                raise TypeError(f"the result is of {got.dtype}, not {dtype}")
            rows, added = x.numbers, np.zeros(len(weight)) if bias is None else bias.numbers[part]
            want = rows @ weight.T + added
            other = rows.astype(np.float32) @ weight.astype(np.float32).T + added.astype(np.float32)
            size = float(np.max(np.abs(rows) @ np.abs(weight).T + np.abs(added)))
            limit = limit_of(want, Values.of(other, dtype).numbers, dtype, size)
            if got.numbers.shape != (self.rows, self.outputs):
                return [compare("out", got.numbers, want, limit)]
            return [compare("out", got.numbers[:, part], want, limit)]

        moved = sum(v.bits.nbytes for v in (x, *given.values()) if isinstance(v, Values))
        moved += self.rows * self.outputs * x.bits.itemsize
        return Prepared(
            lambda: xeflash.linear(device_x, bias=device_bias, **named),
            check,
            2.0 * self.rows * self.outputs * self.inputs,
            moved,
        )

    def _weight(self, random: np.random.Generator, dtype: str, part: slice) -> tuple[dict[str, Any], Array]:
        """Draws arguments of linear, and returns them with the weight (outputs, inputs) of a part of the outputs."""
        shape = (self.outputs, self.inputs)
        if self.weights == "same":
            weight = normal(random, dtype, *shape)
            return {"weight": weight}, Values(weight.bits[part], dtype).numbers
        group = self.group or self.inputs
        groups = -(-self.inputs // group)
        scales = Values.of(random.random((groups, self.outputs)) / 50 + 0.002, dtype)
        more: dict[str, Any] = {"scales": scales, "group": self.group or None}
        zero = np.full((groups, self.outputs), 8 if self.weights == "int4" else 0)
        if self.zeros:
            zero = random.integers(0, 17, (groups, self.outputs))
            more["zeros"] = Values.of(zero, "int8")
        if self.weights == "int4":
            q = np.resize(random.integers(0, 16, min(self.outputs * self.inputs, 1 << 20), np.int32), shape)
            more["weight"] = Values(_packed(q), "uint8")
        else:
            stored = normal(random, "float32", *shape).bits * (40 if self.weights == "int8" else 1)
            more["weight"] = Values.of(stored, DTYPES[self.weights])
            q = more["weight"].numbers
        spread = [np.repeat(v[:, part], group, axis=0)[: self.inputs].T for v in (scales.numbers, zero)]
        return more, (q[part] - spread[1]) * spread[0]


def _packed(q: Array) -> Array:
    """Packs numbers 0 to 15 in the form that linear takes.

    Dword d of a unit of 128 inputs has 32 m + 2 d in bits 4 m, and the next one 16 bits above.
    """
    outputs, inputs = q.shape
    units = -(-inputs // 128)
    padded = np.full((outputs, units * 128), 8, np.uint32)
    padded[:, :inputs] = q
    parts = padded.reshape(outputs, units, 4, 16, 2)  # m, d, odd
    shifts = 4 * np.arange(4, dtype=np.uint32)[:, None, None] + 16 * np.arange(2, dtype=np.uint32)
    dwords = np.bitwise_or.reduce(parts << shifts, axis=(2, 4))
    return dwords.astype("<u4").view(np.uint8).reshape(outputs, units * 64)
