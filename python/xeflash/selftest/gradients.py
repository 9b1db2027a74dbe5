"""Cases of the backward pass: gradients of all that has one, and the probabilities that dropout left."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from xeflash.selftest.arrays import Arrays
from xeflash.selftest.dense import Dense
from xeflash.selftest.prepared import DTYPES, Prepared, draw, generator_of, work_of
from xeflash.selftest.reference import Features, distance, weights_of
from xeflash.selftest.tolerance import Finding, Judge, compare, judge

Array: TypeAlias = "np.ndarray[Any, Any]"

_LIMITS = {"fp32": 2.0**-17, "fp16": 2.0**-8, "bf16": 2.0**-5}  # of the largest element
_NAMES = ("q", "k", "v", "attn_mask", "alibi_slopes", "s_aux")  # the order of _core.backward's results
_BHSD = 2


@dataclass(frozen=True)
class Gradient(Dense):
    """Gradients of dense attention; with `probs` the probabilities in their place, negative where dropped."""

    rows: int = 70
    keys: int = 131
    heads: tuple[int, int] = (4, 2)
    entry: str = "attention"
    broadcast: str = "1hqk"
    probs: bool = False

    @property
    def name(self) -> str:
        """What it is."""
        return f"{'probabilities' if self.probs else 'gradient'} {super().name.partition(' ')[2]}"

    def prepare(self, arrays: Arrays, rule: Judge = judge) -> Prepared:  # noqa: ARG002  its limits are its own
        """Draw its arrays."""
        importlib.import_module("xeflash").attention  # noqa: B018  loads the extension and its kernels
        core: Any = importlib.import_module("xeflash._core")
        random, dtype = generator_of(self.name), DTYPES[self.dtype]
        heads, heads_k = self.heads
        given = {
            "q": draw(random, dtype, self.batch, heads, self.rows, self.dim),
            "k": draw(random, dtype, self.batch, heads_k, self.keys, self.dim),
            "v": draw(random, dtype, self.batch, heads_k, self.keys, self.dim),
        }
        dout = draw(random, dtype, self.batch, heads, self.rows, self.dim)
        f, more = self._features(random, arrays, self.batch)
        device, device_dout = more | {name: arrays.put(x) for name, x in given.items()}, arrays.put(dout)
        rest = None if self.dtype == "fp32" else arrays.put(dout)  # written by the forward pass
        learned = tuple(name for name in _NAMES if name in device)
        more = {
            **device, "function": "attention", "layout": _BHSD, "causal": f.window == (-1, 0), "bottom_right": True,
            "enable_gqa": True, "dropout_p": self.dropout, "seed": f.rng[0], "offset": f.rng[1],
        }  # fmt: skip

        def call() -> Any:
            out, lse = core.forward(**more, return_lse=True, rest=rest)
            if self.probs:
                return [core.probabilities(**more, out=out, lse=lse)]
            of_forward = {"out": out, "lse": lse, "rest": rest}
            found = core.backward(**more, **of_forward, dout=device_dout, dlse=None, wanted=learned)
            return [x for x in found if x is not None]

        def check(results: Any) -> list[Finding]:
            want = self._by_the_book({name: x.numbers for name, x in given.items()}, f, dout.numbers)
            names = ["probabilities"] if self.probs else [f"d{name}" for name in learned]
            found = []
            for name, x in zip(names, results, strict=True):
                got = arrays.get(x).numbers
                limit = _LIMITS[self.dtype] * float(np.max(np.abs(want[name])))
                found.append(compare(name, got.reshape(want[name].shape), want[name], limit))
            return found

        flops, elements = work_of(self.rows, self.keys, heads, heads_k, (self.dim, self.dim), f)
        return Prepared(call, check, 3.5 * self.batch * flops, 2 * self.batch * elements * dout.bits.itemsize)

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
