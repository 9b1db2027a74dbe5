"""Cases of the backward pass: gradients of all that has one, and the probabilities that dropout left."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from xeflash.selftest.arrays import Arrays
from xeflash.selftest.prepared import DTYPES, Prepared, draw, generator_of, work_of
from xeflash.selftest.reference import Features, distance, weights_of
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

        window = (-1, 0) if self.causal else (-1, -1)
        bias, slopes, sinks = (given[name].numbers if name in given else None for name in _NAMES[3:])
        f = Features(window=window, mask=bias, alibi=slopes, sinks=sinks, dropout=self.dropout, rng=_RNG)

        def call() -> Any:
            out, lse = core.forward(**more, return_lse=True, rest=rest)
            if self.probs:
                return [core.probabilities(**more, out=out, lse=lse)]
            of_forward = {"out": out, "lse": lse, "rest": rest}
            found = core.backward(**more, **of_forward, dout=device_dout, dlse=None, wanted=tuple(given))
            return [x for x in found if x is not None]

        def check(results: Any) -> list[Finding]:
            want = self._by_the_book({name: x.numbers for name, x in given.items()}, f, dout.numbers)
            names = ["probabilities"] if self.probs else [f"d{name}" for name in _NAMES if name in given]
            found = []
            for name, x in zip(names, results, strict=True):
                got = arrays.get(x).numbers
                limit = _LIMITS[self.dtype] * float(np.max(np.abs(want[name])))
                found.append(compare(name, got.reshape(want[name].shape), want[name], limit))
            return found

        flops, elements = work_of(self.rows, self.keys, heads, heads_k, (self.dim, self.dim), f)
        return Prepared(call, check, 3.5 * batch * flops, 2 * batch * elements * dout.bits.itemsize)

    def _by_the_book(self, x: dict[str, Array], f: Features, dout: Array) -> dict[str, Array]:
        """dS = P (dP - sum P dP), with the dropped elements of dP = dO V^T."""
        (heads, heads_k), scale = self.heads, self.dim**-0.5
        q, k, v = x["q"], *(np.repeat(x[name], heads // heads_k, axis=1) for name in "kv")
        weights = weights_of(q, k, f)
        p, kept = weights.softmax, weights.kept
        if self.probs:
            return {"probabilities": np.where(kept > 0, p, -p)}
        p_dp = kept * (dout @ v.swapaxes(2, 3))
        row = p_dp.sum(-1, keepdims=True)
        ds = p_dp - p * row

        def shared(y: Array) -> Array:
            return y.reshape(y.shape[0], heads_k, heads // heads_k, *y.shape[2:]).sum(2)

        found = {"dq": scale * ds @ k, "dk": shared(scale * ds.swapaxes(2, 3) @ q)}
        found["dv"] = shared(kept.swapaxes(2, 3) @ dout)
        found["dattn_mask"] = ds.sum(0, keepdims=True)
        found["dalibi_slopes"] = -(ds * np.abs(distance(self.rows, self.keys, False))).sum((0, 2, 3))
        if self.sinks:
            found["ds_aux"] = -(np.exp(f.sinks[:, None] - weights.lse) * row[..., 0]).sum((0, 2))
        return found
