"""``torch.ops.xeflash.*``: the functions as operators of torch's dispatcher, for CPU and XPU tensors.

They can be traced (torch.compile, torch.export), see autocast and dispatch modes, and give results in memory of torch's
allocators without waiting for a device. The public functions go through them by themselves where that matters, see
``needed``; elsewhere they call the extension directly, which costs less. A result that was not asked for has no
elements; ``function`` is who calls, for messages.

This module stands in for the extension there: ``forward`` and ``merge_states`` are those of _core.pyi.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import xeflash.jit  # noqa: F401  gives the extension its kernels
from xeflash import _core, _score_mod
from xeflash._common import seeds
from xeflash._torch_library import OF_SNIPPET, Pair, as_int64, as_lists, as_snippet, register, resolved
from xeflash._torch_library import needed as needed
from xeflash._torch_library import wants_gradients as wants_gradients
from xeflash.call.forms import FORMS, Form
from xeflash.call.schema import ARRAYS, BHSD, BSHD, OF_ATTENTION, THD
from xeflash.torch_gradients import Gradients, merge_with_gradients

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from xeflash.call.schema import Arguments

# ---- what runs ---------------------------------------------------------------------------------


def kernel_of(form: Form) -> Callable[..., Any]:
    """What runs for an operator: the extension's forward. The dispatcher gives what is not the default."""
    places, drops = form.by_place, form.results == "Results"
    base: dict[str, Any] = {"function": form.function, "layout": form.layout}
    base |= {form.names.get(name, name): x for name, x in form.defaults.items()}
    pages = places.index("block_table") if form.layout == THD else len(places)

    def kernel(*arguments: Any, **more: Any) -> Any:
        given = base | dict(zip(places, arguments, strict=False))
        if more:
            given |= _together(more, more.get("function", form.function))
        q = arguments[0]
        if len(arguments) > pages and arguments[pages] is not None:
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


def _together(more: dict[str, Any], function: str) -> dict[str, Any]:
    """What a schema has other words for, in one again."""
    if not more.keys().isdisjoint(OF_SNIPPET):
        more["score_mod"] = as_snippet(function, *(more.pop(name, None) for name in OF_SNIPPET))
    for scale, factor in (("k_scale", "k_factor"), ("v_scale", "v_factor")):
        if (number := more.pop(factor, None)) is not None:
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


_OPERATORS = {form.letter: (_register(form), form) for form in FORMS}
_merge_op = register(
    "merge_states(Tensor[] outs, Tensor[] lses) -> (Tensor, Tensor)", merge, _merge_fake, function="merge_states",
    differentiate=merge_with_gradients,
)  # fmt: skip


def _form_of(given: Mapping[str, Any]) -> tuple[Any, Form]:
    layout = given["layout"]
    return _OPERATORS["a" if layout == BHSD else "p" if layout == THD else "c" if "k_cache" in given else "d"]


# ---- in the place of the extension --------------------------------------------------------------


def forward(**arguments: Unpack[Arguments]) -> tuple[Any, Any]:
    """_core.forward by the operator of these arguments, which refuses those that it does not have."""
    given: dict[str, Any] = {**arguments}
    operator, form = _form_of(given)
    _prepare(given, form)
    if form.letter == "p" and "k_cache" in given:  # the operator tells pages by their table
        given["k"], given["v"] = given.pop("k_cache"), given.pop("v_cache")
    del given["layout"]
    out = given.pop("out", None)
    given |= as_lists(given.pop("score_mod", None))
    for name in ("seed", "offset"):
        if given.get(name) is not None:
            given[name] = as_int64(given[name])
    for side in "kv":  # a scale that is a number has a name of its own in a schema
        if (scale := given.pop(f"{side}_scale", None)) is not None:
            if not isinstance(scale, Tensor) and abs(scale) >= 2**128:  # a schema's floats hold less than an int
                raise ValueError(
                    f"{given['function']}: {side}_scale must be positive and finite in float32, got {scale!s:.40}"
                )
            given[f"{side}_scale" if isinstance(scale, Tensor) else f"{side}_factor"] = scale
    if form.letter == "p":
        given.setdefault("cu_seqlens_k", None)  # pages need none, and the schema has no default
    given = {form.names.get(name, name): x for name, x in given.items()}
    result, lse, *_state = operator(**given)
    if out is not None:
        inputs = {name: x for name, x in given.items() if isinstance(x, Tensor)}
        result = _written(given["function"], out, result, given[form.by_place[0]], inputs)
    return result, lse if given.get("return_lse") else None


_ARRAYS = ARRAYS | {OF_ATTENTION[name] for name in ARRAYS & OF_ATTENTION.keys()}


def _prepare(given: dict[str, Any], form: Form) -> None:
    """Checks types as the extension does, as a schema's message would not name the function; resolves negated views."""
    if torch.compiler.is_compiling():
        return
    function, name_of_q = given["function"], form.by_place[0]
    q = given[name_of_q] if name_of_q in given else given["q"]
    if not isinstance(q, Tensor):  # else torch would not have to see the call
        got = type(q).__name__
        raise TypeError(f"{function}: {name_of_q} must be a torch tensor, as another argument requires grad, got {got}")
    symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)
    seed = {"seed": 0} if given.get("seed", 0) is None else {}  # drawn by the operator
    _core.check_arguments(**{name: x for name, x in (given | seed).items() if not isinstance(x, symbolic)})
    if (snippet := given.get("score_mod")) is not None:
        _check_snippet(function, *snippet)
    appends = form.letter == "c" and given.get("k") is not None
    for key, x in given.items():
        if key not in _ARRAYS or x is None:
            continue
        name = form.names.get(key, key[0] if form.letter == "p" and key in ("k_cache", "v_cache") else key)
        if isinstance(x, Tensor):
            if x.layout is not torch.strided:
                raise TypeError(f"{function}: {name} must be a dense tensor, got one of {x.layout}")
            given[key] = resolved(function, name, x, key == "out" or (appends and key in form.written))
        elif key not in ("k_scale", "v_scale") or not isinstance(x, int | float) or isinstance(x, bool):
            raise TypeError(f"{function}: {name} must be a torch tensor as {name_of_q} is one, got {type(x).__name__}")


def _check_snippet(function: str, text: str, captures: Mapping[str, Any]) -> None:
    _score_mod.check(function, text, captures)
    for name, x in captures.items():
        if not isinstance(x, Tensor | Number):
            raise TypeError(
                f'{function}: captures["{name}"] must be a number or a torch tensor, got {type(x).__name__}'
            )


def _written(function: str, out: Tensor, result: Tensor, q: Tensor, inputs: dict[str, Any]) -> Tensor:
    """`out` with the result in it; autocast may have computed in another type than that of q and out.

    Operators return new tensors, so the extension never sees `out`, and copy_ would broadcast and cast: its rules are
    said here again, where there may be no memory.
    """
    if out.shape != result.shape:
        raise ValueError(f"{function}: out must have the shape {list(result.shape)}, got {list(out.shape)}")
    if out.device != result.device:
        raise ValueError(f"{function}: out must be on the device of q ({result.device}), got {out.device}")
    if out.dtype not in (q.dtype, result.dtype):
        raise TypeError(f"{function}: out must have the dtype of q ({q.dtype}), got {out.dtype}")
    if _overlaps_itself(out):
        raise ValueError(f"{function}: out must not have elements in one place, got strides {list(out.stride())}")
    for name, x in inputs.items():
        refuse_shared(function, out, name, x)
    return out.copy_(result)


def _overlaps_itself(x: Tensor) -> bool:
    """False where each step is longer than all that the shorter ones reach, as slicing and transposing leave it."""
    axes = [(n, step) for n, step in zip(x.shape, x.stride(), strict=True) if n > 1]
    return any(n * step <= sum((m - 1) * other for m, other in axes if other <= step) for n, step in axes)


def refuse_shared(function: str, out: Any, name: str, other: Any) -> None:
    """_core.refuse_shared, where there is memory."""
    if torch.compiler.is_compiling() or type(out) is not Tensor or type(other) is not Tensor:
        return
    if other.device == out.device and other.numel():
        _core.refuse_shared(function, out, name, other)


def merge_states(outs: list[Any], lses: list[Any], /) -> tuple[Any, Any]:
    """_core.merge_states by its operator."""
    for kind, arrays in (("out", outs), ("lse", lses)):
        for i, x in enumerate(arrays):
            if not isinstance(x, Tensor) or x.layout is not torch.strided:
                raise TypeError(
                    f"merge_states: {kind} {i} must be a dense torch tensor as out 0 is one, got {type(x).__name__}"
                )
    result: Pair = _merge_op(outs, lses)
    return result
