"""In the place of the extension where torch has to see a call: ``forward`` and the others are those of _core.pyi."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Number, Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from xeflash import _core
from xeflash.call.schema import ARRAYS, BHSD, OF_ATTENTION, THD
from xeflash.call.score_mod import read_score_mod
from xeflash.call.values import flag
from xeflash.torch_ops.forms import LINEAR, LINEAR_CROSS_ENTROPY, LINEAR_TOP_K, MATMUL_SOFTMAX, SAMPLE, Form
from xeflash.torch_ops.library import Pair, as_int64, as_lists, resolved
from xeflash.torch_ops.operators import MERGE, OPERATORS

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from xeflash.call.schema import (
        Arguments,
        CrossEntropyArguments,
        LinearArguments,
        MatmulSoftmaxArguments,
        SampleArguments,
        TopKArguments,
    )


def _form_of(given: Mapping[str, Any]) -> tuple[Any, Form]:
    layout = given["layout"]
    return OPERATORS["a" if layout == BHSD else "p" if layout == THD else "c" if "k_cache" in given else "d"]


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
    read_score_mod(function, text, captures)
    for name, x in captures.items():
        if not isinstance(x, Tensor | Number):
            raise TypeError(
                f'{function}: captures["{name}"] must be a number or a torch tensor, got {type(x).__name__}'
            )


def _written(
    function: str, out: Tensor, result: Tensor, q: Tensor, inputs: dict[str, Any], name_of_q: str = "q"
) -> Tensor:
    """`out` with the result in it; autocast may have computed in another type than that of q and out.

    Operators return new tensors, so the extension never sees `out`, and copy_ would broadcast and cast: its rules are
    said here again, where there may be no memory.
    """
    if out.shape != result.shape:
        raise ValueError(f"{function}: out must have the shape {list(result.shape)}, got {list(out.shape)}")
    if out.device != result.device:
        raise ValueError(f"{function}: out must be on the device of {name_of_q} ({result.device}), got {out.device}")
    if out.dtype not in (q.dtype, result.dtype):
        raise TypeError(f"{function}: out must have the dtype of {name_of_q} ({q.dtype}), got {out.dtype}")
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


_PRODUCTS = (LINEAR, MATMUL_SOFTMAX, LINEAR_CROSS_ENTROPY, LINEAR_TOP_K, SAMPLE)
_NEEDED = {form.name: form.by_place[: form.needed] for form in _PRODUCTS}
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "float": ((Real, torch.SymFloat, torch.SymInt), "a number"),
    "int": ((Integral, torch.SymInt), "an integer"),
    "str": ((str,), "a string"),
}


def _checked(arguments: Mapping[str, Any], form: Form) -> dict[str, Any]:
    """What is given; types are checked as the extension does, as a schema's message would not name the function."""
    function, needed, given = arguments["function"], _NEEDED[form.name], {}
    for name, x in arguments.items():
        row, one = form.table[name], name.removesuffix("s")
        called = one if one in form.table else name  # a number of each row, where one serves all
        if row.is_array:
            if x is None and name not in needed:
                continue
            if not isinstance(x, Tensor) or x.layout is not torch.strided:
                got = type(x).__name__ if not isinstance(x, Tensor) else x.layout
                raise TypeError(f"{function}: {called} must be a dense torch tensor as {needed[0]} is one, got {got}")
        elif row.kind == "bool":
            x = flag(function, name, x)
        else:
            kinds, words = _KINDS[row.kind]
            fits = not isinstance(x, Integral) or row.kind == "int" or abs(int(x)) < 2**1023  # as a double
            if not isinstance(x, kinds) or isinstance(x, bool) or not fits:
                value = "" if isinstance(x, Tensor) else f"{x!r:.60} "  # it may be a traced one
                raise TypeError(f"{function}: {name} must be {words}, got {value}({type(x).__name__})")
            if isinstance(x, Integral) and not -(2**63) <= int(x) < 2**63:
                if row.kind == "int":
                    raise ValueError(f"{function}: {name} must be -2^63 to 2^63 - 1, got {x}")
                x = float(x)  # a schema's floats hold smaller integers alone
        given[name] = x
    return given


def linear(**arguments: Unpack[LinearArguments]) -> Any:
    """_core.linear by its operator."""
    return torch.ops.xeflash.linear.default(**_checked(arguments, LINEAR))


def matmul_softmax(**arguments: Unpack[MatmulSoftmaxArguments]) -> Any:
    """_core.matmul_softmax by its operator."""
    given = _checked(arguments, MATMUL_SOFTMAX)
    function, out = given["function"], given.pop("out", None)
    result: Tensor = torch.ops.xeflash.matmul_softmax.default(**given)
    if out is None:
        return result
    inputs = {name: x for name, x in given.items() if isinstance(x, Tensor)}
    return _written(function, out, result, given["a"], inputs, "a")


def linear_cross_entropy(**arguments: Unpack[CrossEntropyArguments]) -> tuple[Any, Any, Any]:
    """_core.linear_cross_entropy by its operator."""
    results: tuple[Any, Any, Any] = torch.ops.xeflash.linear_cross_entropy.default(
        **_checked(arguments, LINEAR_CROSS_ENTROPY)
    )
    return results


def linear_top_k(**arguments: Unpack[TopKArguments]) -> tuple[Any, Any]:
    """_core.linear_top_k by its operator."""
    results: tuple[Any, Any] = torch.ops.xeflash.linear_top_k.default(**_checked(arguments, LINEAR_TOP_K))
    return results


def sample(**arguments: Unpack[SampleArguments]) -> Any:
    """_core.sample by its operator."""
    return torch.ops.xeflash.sample.default(**_checked(arguments, SAMPLE))


def merge_states(outs: list[Any], lses: list[Any], /) -> tuple[Any, Any]:
    """_core.merge_states by its operator."""
    for kind, arrays in (("out", outs), ("lse", lses)):
        for i, x in enumerate(arrays):
            if not isinstance(x, Tensor) or x.layout is not torch.strided:
                raise TypeError(
                    f"merge_states: {kind} {i} must be a dense torch tensor as out 0 is one, got {type(x).__name__}"
                )
    result: Pair = MERGE(outs, lses)
    return result
