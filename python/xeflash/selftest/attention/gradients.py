"""The backward pass by the book: all gradients, and the probabilities that dropout left."""

from __future__ import annotations

import importlib
from typing import Any, TypeAlias

import numpy as np

from xeflash.selftest.arrays import Arrays
from xeflash.selftest.attention.drawn import Drawn, draw
from xeflash.selftest.attention.spec import Spec
from xeflash.selftest.prepared import Prepared
from xeflash.selftest.reference import distance, formula, per_head
from xeflash.selftest.tolerance import Finding, compare

Array: TypeAlias = "np.ndarray[Any, Any]"

_LIMITS = {"fp32": 2.0**-17, "fp16": 2.0**-8, "bf16": 2.0**-5}  # limits relative to the largest element
_NAMES = ("q", "k", "v", "attn_mask", "alibi_slopes", "s_aux")  # the order of _core.backward's results


def prepare(spec: Spec, arrays: Arrays) -> Prepared:
    """Prepares the backward pass without torch's autograd; with `probs`, probabilities, negative where dropped."""
    importlib.import_module("xeflash").attention  # noqa: B018  loads the extension and its kernels
    core: Any = importlib.import_module("xeflash._core")
    drawn = draw(spec)
    put = drawn.put(arrays)
    given, residual = drawn.in_core(put), None
    if spec.dtype != "fp32":
        residual = drawn.put(arrays)["dout"]  # of its shape, written by the forward pass
    learned = tuple(name for name in _NAMES if name in given and not (name == "attn_mask" and spec.masks == "bool"))

    def call() -> Any:
        out, lse = core.forward(**given, return_lse=True, residual=residual)
        if spec.probs:
            return [core.probabilities(**given, out=out, lse=lse)]
        results = {"out": out, "lse": lse, "residual": residual, "dout": put["dout"], "dlse": put.get("dlse")}
        return [x for x in core.backward(**given, **results, wanted=learned) if x is not None]

    def check(results: Any) -> list[Finding]:
        want = _by_the_book(drawn)
        names = ["probabilities"] if spec.probs else [f"d{name}" for name in learned]
        found = []
        for name, x in zip(names, results, strict=True):
            got = arrays.get(x).numbers
            got = drawn.together(got) if name in ("dq", "dk", "dv") else got.reshape(want[name].shape)
            found.append(compare(name, got, want[name], _LIMITS[spec.dtype] * float(np.max(np.abs(want[name])))))
        return found

    flops, moved = drawn.work()
    return Prepared(call, check, 3.5 * flops, 2 * moved)


def _by_the_book(drawn: Drawn) -> dict[str, Array]:
    """Computes all gradients by name: dS = P (dP - sum P dP), with the dropped elements of dP = dO V^T."""
    spec, given, parts = drawn.spec, drawn.numbers(), list[dict[str, Array]]()
    for rows, q, k, v, f in drawn.by_sequence(given):
        (heads, count), heads_k, dout = q.shape[1:3], k.shape[1], given["dout"].part(rows).swapaxes(0, 1)[None]
        scale = spec.dim**-0.5 if f.scale is None else f.scale
        r = formula(q, k, v, f)
        p_dp = r.kept * (dout @ per_head(v, heads).swapaxes(2, 3))
        row = p_dp.sum(-1, keepdims=True)
        ds = p_dp - r.softmax * row
        far = np.abs(distance(count, k.shape[2], f.top_left))
        by_head = {"dk": scale * ds.swapaxes(2, 3) @ q, "dv": r.kept.swapaxes(2, 3) @ dout}
        found = {name: x.reshape(heads_k, -1, *x.shape[2:]).sum(1)[None] for name, x in by_head.items()}
        found = {name: x[0].swapaxes(0, 1) for name, x in {"dq": scale * ds @ per_head(k, heads), **found}.items()}
        found |= {"dattn_mask": ds, "dalibi_slopes": -(ds * far).sum((0, 2, 3))}
        found["probabilities"] = np.where(r.kept > 0, r.softmax, -r.softmax)
        if f.sinks is not None:
            found["ds_aux"] = -(np.exp(f.sinks[:, None] - r.lse) * row[..., 0]).sum((0, 2))
        parts.append(found)
    want = {
        name: np.concatenate([part[name] for part in parts])
        for name in ("dq", "dk", "dv", "dattn_mask", "probabilities")
    }
    want |= {name: sum(part[name] for part in parts) for name in ("dalibi_slopes", "ds_aux") if name in parts[0]}
    axes = tuple(axis for axis, letter in enumerate(spec.broadcast.rjust(4, "1")) if letter == "1")
    return want | {"dattn_mask": want["dattn_mask"].sum(axes, keepdims=True)}
