"""Cases of the backward pass: gradients of all that has one, and the probabilities that dropout left."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from xeflash.selftest.arrays import Arrays
from xeflash.selftest.prepared import DTYPES, Prepared, draw, generator_of, work_of
from xeflash.selftest.reference import Features, distance, dropout_scale, visible
from xeflash.selftest.tolerance import Finding, compare
from xeflash.selftest.values import Values

Array: TypeAlias = "np.ndarray[Any, Any]"

_LIMITS = {"fp32": 2.0**-17, "fp16": 2.0**-8, "bf16": 2.0**-5}  # of the largest element
_NAMES = ("q", "k", "v", "attn_mask", "alibi_slopes", "s_aux")  # the order of _core.backward's results
_BHSD, _RNG = 2, (7, 1 << 33)


@dataclass(frozen=True)
class Gradient:
    """Gradients of dense attention; with `probs` the probabilities in their place, negative where dropped."""

    dtype: str = "bf16"
    dim: int = 64
    rows: int = 70
    keys: int = 131
    heads: tuple[int, int] = (4, 2)
    causal: bool = False
    bias: str = ""  # learned; "hidden": a row of it is the smallest number of its type
    slopes: bool = False
    sinks: bool = False
    dropout: float = 0.0
    probs: bool = False

    @property
    def name(self) -> str:
        """What it is."""
        kind = "probabilities" if self.probs else "gradient"
        shape = f"{self.heads[0]}/{self.heads[1]} {self.rows}x{self.keys}"
        words = {
            "causal": self.causal, f"{self.bias} bias": bool(self.bias), "alibi": self.slopes, "sinks": self.sinks,
            "dropout": self.dropout > 0,
        }  # fmt: skip
        return " ".join([kind, self.dtype, f"d{self.dim}", shape, *(word for word, is_so in words.items() if is_so)])

    def prepare(self, arrays: Arrays) -> Prepared:
        """Draw its arrays."""
        importlib.import_module("xeflash").attention  # noqa: B018  loads the extension and its kernels
        core: Any = importlib.import_module("xeflash._core")
        random, dtype, batch = generator_of(self.name), DTYPES[self.dtype], 2
        heads, heads_k = self.heads
        given = {
            "q": draw(random, dtype, batch, heads, self.rows, self.dim),
            "k": draw(random, dtype, batch, heads_k, self.keys, self.dim),
            "v": draw(random, dtype, batch, heads_k, self.keys, self.dim),
        }
        if self.bias:
            bias = random.standard_normal((1, heads, self.rows, self.keys)).astype(np.float32)
            if self.bias == "hidden":
                bias[:, :, 3] = np.finfo(np.float32).min
            given["attn_mask"] = Values.of(bias, "float32")
        if self.slopes:
            given["alibi_slopes"] = Values.of(random.random(heads) / 4, "float32")
        if self.sinks:
            given["s_aux"] = Values.of(random.standard_normal(heads) * 2, "float32")
        dout = draw(random, dtype, batch, heads, self.rows, self.dim)
        device, device_dout = {name: arrays.put(x) for name, x in given.items()}, arrays.put(dout)
        rest = None if self.dtype == "fp32" else arrays.put(dout)  # written by the forward pass
        more = {
            **device, "function": "attention", "layout": _BHSD, "causal": self.causal, "bottom_right": True,
            "enable_gqa": True, "dropout_p": self.dropout, "seed": _RNG[0], "offset": _RNG[1],
        }  # fmt: skip

        def call() -> Any:
            out, lse = core.forward(**more, return_lse=True, rest=rest)
            if self.probs:
                return [core.probabilities(**more, out=out, lse=lse)]
            of_forward = {"out": out, "lse": lse, "rest": rest}
            found = core.backward(**more, **of_forward, dout=device_dout, dlse=None, wanted=tuple(given))
            return [x for x in found if x is not None]

        def check(results: Any) -> list[Finding]:
            numbers = {name: x.numbers.astype(np.float64) for name, x in given.items()}
            want = self._by_the_book(numbers, dout.numbers.astype(np.float64))
            names = ["probabilities"] if self.probs else [f"d{name}" for name in _NAMES if name in given]
            found = []
            for name, x in zip(names, results, strict=True):
                got = arrays.get(x).numbers
                limit = _LIMITS[self.dtype] * float(np.max(np.abs(want[name])))
                found.append(compare(name, got.reshape(want[name].shape), want[name], limit))
            return found

        f = Features(window=(-1, 0) if self.causal else (-1, -1))
        flops, elements = work_of(self.rows, self.keys, heads, heads_k, (self.dim, self.dim), f)
        return Prepared(call, check, 3.5 * batch * flops, 2 * batch * elements * dout.bits.itemsize)

    def _by_the_book(self, x: dict[str, Array], dout: Array) -> dict[str, Array]:
        """dS = P (dP - sum P dP), with the dropped elements of dP = dO V^T."""
        (heads, heads_k), scale = self.heads, self.dim**-0.5
        q, k, v = x["q"], *(np.repeat(x[name], heads // heads_k, axis=1) for name in "kv")
        s = scale * q @ k.swapaxes(2, 3)
        away = np.abs(distance(self.rows, self.keys, False))
        if self.slopes:
            s = s - x["alibi_slopes"][:, None, None] * away
        if self.bias:  # a sum in fp32: beside its smallest number nothing of s is left
            s = (s.astype(np.float32) + x["attn_mask"].astype(np.float32)).astype(np.float64)
        if self.causal:
            s = np.where(visible(self.rows, self.keys, (-1, 0), False), s, -np.inf)
        most = s.max(-1, keepdims=True)
        if self.sinks:
            most = np.maximum(most, x["s_aux"][:, None, None])
        p = np.exp(s - most)
        of_sink = np.exp(x["s_aux"][:, None, None] - most) if self.sinks else np.zeros_like(most)
        total = p.sum(-1, keepdims=True) + of_sink
        p, of_sink = p / total, of_sink / total
        shape = (p.shape[0], heads, self.rows, self.keys)
        kept = dropout_scale(shape, self.dropout, _RNG) if self.dropout else np.ones(shape)
        if self.probs:
            return {"probabilities": np.where(kept > 0, p, -p)}
        dp = dout @ v.swapaxes(2, 3) * kept
        row = (p * dp).sum(-1, keepdims=True)
        ds = p * (dp - row)

        def shared(y: Array) -> Array:
            return y.reshape(y.shape[0], heads_k, heads // heads_k, *y.shape[2:]).sum(2)

        found = {"dq": scale * ds @ k, "dk": shared(scale * ds.swapaxes(2, 3) @ q)}
        found["dv"] = shared((p * kept).swapaxes(2, 3) @ dout)
        found["dattn_mask"] = ds.sum(0, keepdims=True)
        found["dalibi_slopes"] = -(ds * away).sum((0, 2, 3))
        found["ds_aux"] = -(of_sink * row).sum((0, 2, 3))
        return found
