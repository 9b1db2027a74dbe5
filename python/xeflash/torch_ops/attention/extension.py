"""Operators of attention as the extension runs them, with what autograd keeps of a call."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from xeflash import _core
from xeflash.call.call import Call
from xeflash.call.ready import SNIPPETS, ready
from xeflash.call.schema import LEARNED
from xeflash.torch_ops.attention.words import as_int64
from xeflash.torch_ops.library import Pair, Results


def pair_of(call: Call) -> Pair:
    """Runs a call; returns (out, LSE)."""
    out, lse = _core.forward(**ready(call).arguments, words=call.words)
    return out, call["q"].new_empty(0, dtype=torch.float32) if lse is None else lse


def results_of(call: Call) -> Results:
    """Runs a call; returns (out, LSE, state of dropout, residual of out).

    The argument `residual` is True, or None if nobody wants it.
    """
    given = call.arguments
    if "dropout_p" in given or not SNIPPETS.isdisjoint(given):
        given = ready(call).arguments
    q, state, residual = given["q"], _nothing(), None
    if given.get("dropout_p"):
        numbers = [as_int64(given["seed"]), as_int64(given.get("offset", 0))]
        state = torch.tensor(numbers, dtype=torch.int64, device="cpu")
    if given.get("residual"):
        residual = residual_of(q, given["v"])
        given = {**given, "residual": residual}  # the extension writes it
    out, lse = _core.forward(**given, words=call.words)
    lse = q.new_empty(0, dtype=torch.float32) if lse is None else lse
    return out, lse, state, q.new_empty(0) if residual is None else residual


def residual_of(q: Tensor, v: Tensor) -> Tensor | None:
    """Allocates room for what rounding takes from the output, or returns None for float32, which is not rounded."""
    return q.new_empty((*q.shape[:-1], v.shape[-1])) if q.dtype.itemsize == 2 and v.dim() else None


def gradients_of(call: Call, rng: Tensor) -> list[Tensor]:
    """Computes the gradients that `wanted` names, of a call with its results and their gradients."""
    given = call.arguments
    arrays = {f"captures[{name!r}]": x for name, x in (given.get("captures") or {}).items() if isinstance(x, Tensor)}
    asked = [(name, given_as(given, arrays, name)) for name in given["wanted"]]
    if given.get("dropout_p"):
        seed, offset = rng.tolist()
        call = call.with_(seed=seed % 2**64, offset=offset % 2**64)
    *gradients, capture_gradients = _core.backward(**ready(call).arguments, words=call.words)
    found = dict(zip(LEARNED, gradients, strict=True))
    if learned := [name for name in arrays if name in given["wanted"]]:
        parts = capture_gradients.split([arrays[name].numel() for name in learned])
        found |= {name: part.view(arrays[name].shape) for name, part in zip(learned, parts, strict=True)}
    return [found[name].sum_to_size(x.shape).to(x.dtype) for name, x in asked]


def given_as(given: dict[str, Any], captured: dict[str, Tensor], name: str) -> Tensor:
    """Returns the tensor of which a gradient is wanted by this name."""
    x = captured.get(name) if name.startswith("captures[") else given.get(name) if name in LEARNED else None
    if x is None:
        raise ValueError(
            f"attention_backward: wanted must be names of {LEARNED} or \"captures['NAME']\" whose tensors are given, "
            f"got {name!r}"
        )
    assert isinstance(x, Tensor)
    return x


@functools.cache
def _nothing() -> Tensor:
    """Returns one empty tensor for all calls: nobody can change it, and making one takes time."""
    with torch.inference_mode(False):
        return torch.empty(0, dtype=torch.int64, device="cpu")
