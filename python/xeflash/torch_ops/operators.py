"""The operators themselves: what runs, the same without data, registration."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import xeflash.jit  # noqa: F401  gives the extension its kernels
from xeflash import _core
from xeflash.call.schema import BHSD, BSHD, THD
from xeflash.call.values import seeds
from xeflash.torch_ops.forms import FORMS, Form
from xeflash.torch_ops.gradients import Gradients, merge_with_gradients
from xeflash.torch_ops.library import OF_SNIPPET, Pair, as_int64, as_snippet, register

# ---- what runs ---------------------------------------------------------------------------------


def kernel_of(form: Form) -> Callable[..., Any]:
    """What runs for an operator: the extension's forward. The dispatcher gives what is not the default."""
    places, drops = form.by_place, form.results == "Results"
    base: dict[str, Any] = {"function": form.function, "layout": form.layout}
    base |= {form.names.get(name, name): x for name, x in form.defaults.items()}
    pages = places.index("block_table") if form.layout == THD else len(places)

    def kernel(*arguments: Any, **more: Any) -> Any:
        given = base | dict(zip(places, arguments, strict=False))
        paged = len(arguments) > pages and arguments[pages] is not None
        if more:
            given |= _together(more, more.get("function", form.function), paged or form.letter == "c")
        q = arguments[0]
        if paged:
            if given["dropout_p"]:
                got = given["dropout_p"]
                raise NotImplementedError(f"{given['function']}: dropout_p must be 0 with block_table, got {got}")
            given["k_cache"], given["v_cache"] = given.pop("k"), given.pop("v")
        state, rest = _nothing(), None
        if drops:
            if dropout_p := given.get("dropout_p"):
                state = _draw(given, dropout_p, q)
            elif "seed" in given:
                del given["seed"]
            if given.pop("keep_rest", False):
                rest = given["rest"] = _rest(q, arguments[2])
        out, lse = _core.forward(**given)
        lse = q.new_empty(0, dtype=torch.float32) if lse is None else lse
        return (out, lse, state, q.new_empty(0) if rest is None else rest) if drops else (out, lse)

    return kernel


def _together(more: dict[str, Any], function: str, cached: bool) -> dict[str, Any]:
    """What a schema has other words for, in one again."""
    if not more.keys().isdisjoint(OF_SNIPPET):
        more["score_mod"] = as_snippet(function, *(more.pop(name, None) for name in OF_SNIPPET))
    for scale, factor in (("k_scale", "k_factor"), ("v_scale", "v_factor")):
        if (number := more.pop(factor, None)) is not None:
            if not cached:
                raise ValueError(f"{function}: {factor} must come with a cache of keys, got one without")
            if more.get(scale) is not None:
                raise ValueError(f"{function}: {factor} must not be given with {scale}, got {number}")
            more[scale] = number
    return more


def _rest(q: Tensor, v: Tensor) -> Tensor | None:
    """For what rounding takes from the output; float32 is not rounded."""
    return q.new_empty((*q.shape[:-1], v.shape[-1])) if q.dtype.itemsize == 2 and v.dim() else None


def _draw(given: dict[str, Any], dropout_p: float, q: Tensor) -> Tensor:
    """Puts dropout's seed and offset among the arguments, and gives them as a tensor."""
    seed, offset = given.get("seed"), given.get("offset", 0)
    seed, offset = seeds(given["function"], dropout_p, q, None if seed is None else (seed, offset))
    given["seed"], given["offset"] = seed, offset
    return torch.tensor([as_int64(seed), as_int64(offset)], dtype=torch.int64, device="cpu")


def merge(outs: Sequence[Tensor], lses: Sequence[Tensor]) -> Pair:
    """xeflash.merge_states of the outs and LSEs."""
    result: Pair = _core.merge_states(list(outs), list(lses))
    return result


@functools.cache
def _nothing() -> Tensor:
    """One tensor for all calls: it has no elements that anyone could change, and making one takes its time."""
    with torch.inference_mode(False):
        return torch.empty(0, dtype=torch.int64, device="cpu")


# ---- the same without data: shapes, types and strides of the results ---------------------------


def _fake(form: Form, given: dict[str, Any]) -> Any:
    cached = form.letter == "c" or given.get("block_table") is not None
    names = form.by_place[:3]
    q, _k, v = (given[name] for name in names)
    rank = 3 if form.layout == THD else 4
    _check_fake(given["function"], {name: given[name] for name in names}, rank, 4 if cached else rank, cached)
    out = (*q.shape[:-1], v.shape[-1])
    lse = {BHSD: out[:-1], BSHD: (out[0], *out[-2:0:-1]), THD: (out[1], out[0])}[form.layout]
    results = _results(q, out, lse, given.get("return_lse", False))
    if form.results == "Pair":
        return results
    rest = _rest(q, v) if given.get("keep_rest") else None
    return *results, _state_fake(given.get("dropout_p", 0.0)), q.new_empty(0) if rest is None else rest


def _merge_fake(outs: Sequence[Tensor], **_more: Any) -> Pair:
    *batch, rows, heads, _dim = outs[0].shape
    return _results(outs[0], tuple(outs[0].shape), (*batch, heads, rows), True)


def _check_fake(function: str, arrays: dict[str, Tensor], rank: int, rank_k: int = 0, cached: bool = False) -> None:
    """What the extension would refuse in q, k and v."""
    (q_name, q), *keys = arrays.items()
    for name, x, dims in ((q_name, q, rank), *((name, x, rank_k or rank) for name, x in keys)):
        if x.dim() != dims:
            rule = f"the {dims} dimensions of {q_name}" if x is not q and dims == rank else f"{dims} dimensions"
            raise ValueError(f"{function}: {name} must have {rule}, got {x.dim()}")
    for name, x in keys:
        if x.dtype is not q.dtype and not (cached and x.dtype.itemsize == 1):
            raise TypeError(f"{function}: {name} must have the dtype of {q_name} ({q.dtype}), got {x.dtype}")
    if keys[0][1].shape[-1] != q.shape[-1]:
        raise ValueError(
            f"{function}: {keys[0][0]}.head_dim must equal {q_name}.head_dim ({q.shape[-1]}), "
            f"got {keys[0][1].shape[-1]}"
        )


def _results(like: Tensor, out: tuple[Any, ...], lse: tuple[Any, ...], want_lse: bool) -> Pair:
    return like.new_empty(out), like.new_empty(lse if want_lse else (0,), dtype=torch.float32)


def _state_fake(dropout_p: float) -> Tensor:
    return torch.empty(2 if dropout_p else 0, dtype=torch.int64, device="cpu")


# ---- registration -------------------------------------------------------------------------------


def _register(form: Form) -> Any:
    return register(
        form.schema, kernel_of(form), lambda **given: _fake(form, given), function=form.function,
        cast=(form.by_place[0], "k", "v") if form.letter == "c" else form.by_place[:3], mutates=form.written,
        random=form.results == "Results", differentiate=Gradients(form) if form.results == "Results" else None,
    )  # fmt: skip


OPERATORS = {form.letter: (_register(form), form) for form in FORMS}
MERGE = register(
    "merge_states(Tensor[] outs, Tensor[] lses) -> (Tensor, Tensor)", merge, _merge_fake, function="merge_states",
    differentiate=merge_with_gradients,
)  # fmt: skip
