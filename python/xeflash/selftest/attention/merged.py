"""Cases of merge_states: attention over parts of the keys, put together."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from xeflash.selftest.arrays import Arrays
from xeflash.selftest.prepared import DTYPES, Prepared, generator_of, normal
from xeflash.selftest.reference import merged_reference
from xeflash.selftest.tolerance import Finding, compare
from xeflash.selftest.values import Values


@dataclass(frozen=True)
class Merge:
    """A case that merges `parts` results of `rows` rows; some rows saw no key of a part."""

    dtype: str = "bf16"
    dim: int = 64
    rows: int = 23
    parts: int = 2

    @property
    def name(self) -> str:
        """Returns the name of the case."""
        return f"merge {self.dtype} d{self.dim} {self.parts} parts of {self.rows} rows"

    def prepare(self, arrays: Arrays) -> Prepared:
        """Draws the case's arrays."""
        xeflash: Any = importlib.import_module("xeflash")
        random, heads = generator_of(self.name), 4
        outs = [normal(random, DTYPES[self.dtype], 1, self.rows, heads, self.dim) for _ in range(self.parts)]
        lses = [Values.of(random.standard_normal((1, heads, self.rows)) * 3, "float32") for _ in outs]
        for lse in lses:
            lse.bits[random.random(lse.bits.shape) < 0.2] = np.inf
        device = [arrays.put(x) for pair in zip(outs, lses, strict=True) for x in pair]

        def check(result: Any) -> list[Finding]:
            o, l = (np.stack([x.numbers for x in part]) for part in (outs, lses))
            want, want_lse, _ = merged_reference(o, l)
            got, got_lse = (arrays.get(x) for x in result)
            # The rounding of the result, and that of fp32 and of the hardware's exp2 before it.
            half = Values.of(want, got.dtype).spacing() / 2
            before = 2.0**-20 * np.max(np.abs(o))
            scale = 1 + np.max(np.abs(want_lse[np.isfinite(want_lse)]))
            return [
                compare("out", got.numbers, want, half + before),
                compare("lse", got_lse.numbers, want_lse, 2.0**-20 * scale),
            ]

        moved = (self.parts + 1) * (outs[0].bits.nbytes + lses[0].bits.nbytes)
        return Prepared(lambda: xeflash.merge_states(*device), check, 0.0, moved)
