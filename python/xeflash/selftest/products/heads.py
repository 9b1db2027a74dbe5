"""Cases of a language model's head: the loss of tokens, the largest logits, and sampled tokens."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from xeflash.selftest.arrays import Arrays
from xeflash.selftest.prepared import DTYPES, Prepared, generator_of, normal
from xeflash.selftest.reference import philox
from xeflash.selftest.tolerance import GPU_MATH, SCORES, Finding, compare, limit_of
from xeflash.selftest.values import Values

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class _Head:
    """The arrays of a head: input (rows, features) and linear_weight (vocabulary, features)."""

    dtype: str = "bf16"
    rows: int = 33
    vocabulary: int = 200
    features: int = 64
    softcap: float = 0.0

    @property
    def size(self) -> str:
        return f"{self.dtype} {self.rows}x{self.vocabulary}x{self.features}"

    def drawn(self, name: str) -> tuple[Any, Values, Values]:
        """Draws input and linear_weight; returns the generator and both."""
        random, dtype = generator_of(name), DTYPES[self.dtype]
        return (
            random,
            normal(random, dtype, self.rows, self.features),
            normal(random, dtype, self.vocabulary, self.features),
        )

    def logits(self, x: Values, w: Values, work: Any) -> Array:
        scale = work(self.features**-0.5)
        z = x.numbers.astype(work) @ w.numbers.astype(work).T * scale
        return np.asarray(self.softcap * np.tanh(z / self.softcap) if self.softcap else z)

    def off(self, x: Values, w: Values) -> Array:
        """Returns how far roundings may move logits."""
        sizes: Array = SCORES * (np.abs(x.numbers) @ np.abs(w.numbers).T * self.features**-0.5)
        return sizes

    def prepared(self, call: Any, check: Any, x: Values, w: Values) -> Prepared:
        return Prepared(call, check, 2.0 * self.rows * self.vocabulary * self.features, x.bits.nbytes + w.bits.nbytes)


@dataclass(frozen=True)
class Loss(_Head):
    """A case of linear_cross_entropy."""

    smoothing: float = 0.0
    reduction: str = "none"

    @property
    def name(self) -> str:
        """Returns the name of the case."""
        words = ["softcap"] * (self.softcap > 0) + ["smoothing"] * (self.smoothing > 0)
        return " ".join(["loss", self.size, self.reduction, *words])

    def prepare(self, arrays: Arrays) -> Prepared:
        """Draws the case's arrays."""
        xeflash: Any = importlib.import_module("xeflash")
        random, x, w = self.drawn(self.name)
        tokens = random.integers(0, self.vocabulary, self.rows).astype(np.int32)
        tokens[1::4] = -100
        counts, at = tokens >= 0, np.maximum(tokens, 0)[:, None]
        device = [arrays.put(value) for value in (x, w, Values(tokens, "int32"))]
        e = self.smoothing

        def losses(work: Any) -> Array:
            z = self.logits(x, w, work)
            most = z.max(-1, keepdims=True)
            lse = (most + np.log(np.exp(z - most).sum(-1, keepdims=True)))[:, 0]
            loss = (1 - e) * (lse - np.take_along_axis(z, at, 1)[:, 0]) + e * (lse - z.mean(-1))
            return np.where(counts, loss, 0)

        def check(result: Any) -> list[Finding]:
            got, want, other = arrays.get(result).numbers, losses(np.float64), losses(np.float32).astype(np.float64)
            moved = float(np.max(2 * self.off(x, w)))
            largest = float(np.max(want) + np.log(self.vocabulary))
            math = GPU_MATH * (1 + largest + self.softcap) if arrays.on_gpu else 0.0
            if self.reduction == "mean":
                want, other = np.asarray(want.sum() / counts.sum()), np.asarray(other.sum() / counts.sum())
            limit = limit_of(want, other, "float32", largest, moved) + math
            return [compare("loss", got.reshape(want.shape), want, limit)]

        def call() -> Any:
            return xeflash.linear_cross_entropy(
                *device, reduction=self.reduction, label_smoothing=e, softcap=self.softcap,
                logit_scale=self.features**-0.5,
            )  # fmt: skip

        return self.prepared(call, check, x, w)


@dataclass(frozen=True)
class TopK(_Head):
    """A case of linear_top_k or linear_argmax."""

    k: int = 1

    @property
    def name(self) -> str:
        """Returns the name of the case."""
        return f"top_k {self.size} k{self.k}"

    def prepare(self, arrays: Arrays) -> Prepared:
        """Draws the case's arrays."""
        xeflash: Any = importlib.import_module("xeflash")
        _, x, w = self.drawn(self.name)
        device = [arrays.put(value) for value in (x, w)]

        def check(result: Any) -> list[Finding]:
            got = [arrays.get(value).numbers for value in result]
            z, other = self.logits(x, w, np.float64), self.logits(x, w, np.float32).astype(np.float64)
            want, others = (-np.sort(-values, axis=-1)[:, : self.k] for values in (z, other))
            limit = limit_of(want, others, "float32", float(np.max(np.abs(z))), float(np.max(self.off(x, w))))
            tokens = np.clip(got[1].astype(np.int64), 0, self.vocabulary - 1)
            found = np.take_along_axis(z, tokens, 1)
            return [compare("values", got[0], want, limit), compare("tokens", found, want, limit)]

        return self.prepared(
            lambda: xeflash.linear_top_k(*device, self.k, logit_scale=self.features**-0.5), check, x, w
        )


@dataclass(frozen=True)
class Sample:
    """A case of sample: each token is the winner of its race, among those that stay."""

    dtype: str = "fp32"
    rows: int = 5
    vocabulary: int = 1000
    top_k: int = 0
    temperature: float = 1.0

    @property
    def name(self) -> str:
        """Returns the name of the case."""
        return f"sample {self.dtype} {self.rows}x{self.vocabulary}" + f" k{self.top_k}" * (self.top_k > 0)

    def prepare(self, arrays: Arrays) -> Prepared:
        """Draws the case's arrays."""
        xeflash: Any = importlib.import_module("xeflash")
        z = normal(generator_of(self.name), DTYPES[self.dtype], self.rows, self.vocabulary)
        seeds = np.arange(self.rows, dtype=np.int64) * 2**40 + 3
        logits, row_seeds = arrays.put(z), arrays.put(Values(seeds, "int64"))
        p = np.exp(z.numbers / self.temperature)
        if self.top_k:
            p[z.numbers < np.sort(z.numbers, -1)[:, -self.top_k, None]] = 0

        def check(result: Any) -> list[Finding]:
            tokens = np.clip(arrays.get(result).numbers.astype(np.int64), 0, self.vocabulary - 1)
            race = p / np.stack([exponentials(self.vocabulary, int(seed)) for seed in seeds])
            won = np.take_along_axis(race, tokens[:, None], 1)[:, 0] / race.max(-1)
            return [compare("tokens", won, np.ones(self.rows), np.full(self.rows, 1e-4))]

        def call() -> Any:
            return xeflash.sample(logits, seed=row_seeds, position=9, top_k=self.top_k, temperature=self.temperature)

        return Prepared(call, check, 0.0, z.bits.nbytes)


def exponentials(vocabulary: int, seed: int, position: int = 9, row: int = 0) -> Array:
    """Returns the numbers that sample divides probabilities by: see kernels/sample_tokens.hpp."""
    counter = np.arange(-(-vocabulary // 64) * 16, dtype=np.uint32)
    others = [np.full_like(counter, x) for x in (position & 0xFFFFFFFF, position >> 32, 0x544F4B45 + row)]
    words = np.stack(philox([counter, *others], (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)))
    drawn = words.reshape(4, -1, 16).transpose(1, 0, 2).reshape(-1)[:vocabulary]
    return np.asarray(-np.log1p(-(drawn + 0.5) * 2.0**-32))
