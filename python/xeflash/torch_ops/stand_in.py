"""Calls that torch has to see: its operators run them in place of the extension."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor
from torch._C import _get_tracing_state, _is_any_autocast_enabled

from xeflash import _core
from xeflash.call.call import Call
from xeflash.call.ready import SNIPPETS, with_snippets
from xeflash.call.schema import ARRAYS, Row
from xeflash.call.values import flag, snippets
from xeflash.torch_ops.attention import gradients
from xeflash.torch_ops.attention.extension import results_of
from xeflash.torch_ops.attention.operators import MERGE, OPERATORS
from xeflash.torch_ops.attention.shapes import SYMBOLS
from xeflash.torch_ops.attention.words import laid_out
from xeflash.torch_ops.forms import (
    LINEAR,
    LINEAR_CROSS_ENTROPY,
    LINEAR_TOP_K,
    MATMUL_SOFTMAX,
    SAMPLE,
    WRITE_TO_CACHE,
    Form,
)
from xeflash.torch_ops.library import Pair, requires_grad, resolved


def attend(call: Call) -> tuple[Any, Any]:
    """Runs a call in the schema's words, and captures, by its operator; returns (out, LSE or None)."""
    operator, form = OPERATORS[call.form]
    if not SNIPPETS.isdisjoint(call.arguments):
        call = _with_texts(call)
    call = _resolved(call, form)
    given = call.arguments
    out = given.get("out")
    if _is_only_recorded(call):
        if type(given.get("return_lse", False)) is not bool:
            flag(call.function, call.word("return_lse"), given["return_lse"])
        result, lse, *_state = gradients.attend(call.with_("out") if "out" in given else call, results_of)
    else:
        _check(call)
        result, lse, *_state = operator(**laid_out(call, form))
    if out is not None:
        result = _written(call, result, "q")
    return result, lse if given.get("return_lse") else None


def _is_only_recorded(call: Call) -> bool:
    """Returns whether torch has to see a call for gradients alone; autograd then gets it as it is."""
    given = call.arguments
    if (
        torch.compiler.is_compiling()
        or "k_cache" in given
        or _is_any_autocast_enabled()
        or _get_tracing_state() is not None
    ):
        return False
    tensors = [x for x in (*given.values(), *(given.get("captures") or {}).values()) if isinstance(x, Tensor)]
    return requires_grad(*tensors) and gradients.is_plain(call)


def _with_texts(call: Call) -> Call:
    """Returns a call with checked snippets and the captures of both, or without them."""
    texts, captures = (call.get("score_mod"), call.get("mask_mod")), call.get("captures")
    has_text, may_read = any(isinstance(text, str) for text in texts), isinstance(captures, Mapping | None)
    if torch.compiler.is_compiling() and has_text and may_read:
        return call if captures else call.with_(captures={})  # a traced snippet is checked when it runs
    found = zip(("score_mod", "mask_mod"), snippets(call.function, *texts, captures), strict=True)
    given = {name: snippet for name, snippet in found if snippet is not None}
    call = call.with_(*SNIPPETS, **{name: text for name, (text, _) in given.items()})
    if not given:
        return call
    read = dict(x for _, of_text in given.values() for x in of_text.items())
    return call.with_(captures={name: read[name] for name in captures or {}})


def _check(call: Call) -> None:
    """Checks types as the extension does, since a schema's message would not name the function."""
    if torch.compiler.is_compiling():
        return
    given = {name: x for name, x in call.arguments.items() if not isinstance(x, SYMBOLS)}
    if not SNIPPETS.isdisjoint(given):
        given = with_snippets(Call(given, call.words)).arguments
    _core.check_arguments(**given, words=call.words)


def _resolved(call: Call, form: Form) -> Call:
    """Returns a call of dense tensors as they lie in memory; refuses anything else."""
    if torch.compiler.is_compiling():
        return call
    given, name_of_q = call.arguments, call.word("q")
    if not isinstance(given["q"], Tensor):  # another argument is a tensor that torch has to see
        rule, got = "must be a torch tensor, as another argument requires grad", type(given["q"]).__name__
        raise call.refuse("q", rule, got, TypeError)
    appends, changed = form.letter == "c" and given.get("k") is not None, {}
    for name, x in given.items():
        if name not in ARRAYS or (x is None and (name not in ("q", "k", "v") or "k_cache" in given)):
            continue
        if isinstance(x, Tensor):
            if x.layout is not torch.strided or x.is_nested:
                got = "a nested one" if x.is_nested else f"one of {x.layout}"
                raise call.refuse(name, "must be a dense tensor", got, TypeError)
            written = name == "out" or (appends and name in form.written)
            if x.is_neg():
                changed[name] = resolved(call.function, call.word(name), x, written)
        elif name not in ("k_scale", "v_scale") or not isinstance(x, int | float) or isinstance(x, bool):
            raise call.refuse(name, f"must be a torch tensor as {name_of_q} is one", type(x).__name__, TypeError)
    for name, x in (call.get("captures") or {}).items():
        if not isinstance(x, (Tensor, int, float, *SYMBOLS)):
            got = type(x).__name__
            raise TypeError(f'{call.function}: captures["{name}"] must be a number or a torch tensor, got {got}')
        if isinstance(x, int) and not -(2**31) <= x < 2**31:
            raise ValueError(f'{call.function}: captures["{name}"] must be below 2^31, got {x!s:.40}')
    return call.with_(**changed) if changed else call


def _written(call: Call, result: Tensor, first: str) -> Tensor:
    """Copies the result into `out`; autocast may have computed in another type than that of the first argument and out.

    Operators return new tensors, so the extension never sees `out`, and copy_ would broadcast and cast: its rules are
    said here again, where there may be no memory.
    """
    out, like, name = call["out"], call[first], call.word(first)
    if out.shape != result.shape:
        raise call.refuse("out", f"must have the shape {list(result.shape)}", list(out.shape))
    if out.device != result.device:
        raise call.refuse("out", f"must be on the device of {name} ({result.device})", out.device)
    if out.dtype not in (like.dtype, result.dtype):
        raise call.refuse("out", f"must have the dtype of {name} ({like.dtype})", out.dtype, TypeError)
    if _overlaps_itself(out):
        raise call.refuse("out", "must not have elements in one place", f"strides {list(out.stride())}")
    for key, x in call.arguments.items():
        if isinstance(x, Tensor) and key != "out":
            refuse_shared(call.function, out, call.word(key), x)
    return out.copy_(result)


def _overlaps_itself(x: Tensor) -> bool:
    """Returns whether elements of x may share memory.

    It is False where each step is longer than all that shorter ones reach, as slicing and transposing leave it.
    """
    axes = [(n, step) for n, step in zip(x.shape, x.stride(), strict=True) if n > 1]
    return any(n * step <= sum((m - 1) * other for m, other in axes if other <= step) for n, step in axes)


def refuse_shared(function: str, out: Any, name: str, other: Any) -> None:
    """Calls _core.refuse_shared if both tensors have memory."""
    if torch.compiler.is_compiling() or type(out) is not Tensor or type(other) is not Tensor:
        return
    if other.device == out.device and other.numel():
        _core.refuse_shared(function, out, name, other)


_FORMS = (LINEAR, MATMUL_SOFTMAX, LINEAR_CROSS_ENTROPY, LINEAR_TOP_K, SAMPLE, WRITE_TO_CACHE)
_PRODUCTS = {form.name: (form.table, form.by_place[: form.needed]) for form in _FORMS}  # and what is needed
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "float": ((Real, torch.SymFloat, torch.SymInt), "a number"),
    "int": ((Integral, torch.SymInt), "an integer"),
    "str": ((str,), "a string"),
}


def compute(name: str, call: Call) -> Any:
    """Runs the extension's function `name` by its operator; returns its results."""
    table, needed = _PRODUCTS[name]
    given = _checked(call, table, needed)
    out = given.pop("out", None)
    result = getattr(torch.ops.xeflash, name).default(**given)
    return result if out is None else _written(call, result, needed[0])


def _checked(call: Call, table: Mapping[str, Row], needed: tuple[str, ...]) -> dict[str, Any]:
    """Returns the arguments that are given, with types checked as the extension does.

    A schema's message would not name the function.
    """
    given: dict[str, Any] = {}
    for name, x in call.arguments.items():
        row = table[name]
        if row.is_array:
            if x is None and name not in needed:
                continue
            if not isinstance(x, Tensor) or x.layout is not torch.strided or x.is_nested:
                is_other = isinstance(x, Tensor) and not x.is_nested
                got = x.layout if is_other else "a nested one" if isinstance(x, Tensor) else type(x).__name__
                raise call.refuse(name, f"must be a dense torch tensor as {needed[0]} is one", got, TypeError)
        elif row.kind == "bool":
            x = flag(call.function, name, x)
        else:
            kinds, words = _KINDS[row.kind.rstrip("?")]
            fits = not isinstance(x, Integral) or row.kind == "int" or abs(int(x)) < 2**1023  # into a double
            if not isinstance(x, kinds) or isinstance(x, bool) or not fits:
                value = "" if isinstance(x, Tensor) else f"{x!r:.60} "  # the tensor may be traced
                raise call.refuse(name, f"must be {words}", f"{value}({type(x).__name__})", TypeError)
            if isinstance(x, Integral) and not -(2**63) <= int(x) < 2**63:
                if row.kind == "int":
                    raise call.refuse(name, "must be -2^63 to 2^63 - 1", x)
                x = float(x)  # a schema's floats hold smaller integers alone
        given[name] = x
    return given


def merge_states(outs: list[Any], lses: list[Any], /) -> tuple[Any, Any]:
    """Runs _core.merge_states by its operator."""
    for kind, arrays in (("out", outs), ("lse", lses)):
        for i, x in enumerate(arrays):
            if not isinstance(x, Tensor) or x.layout is not torch.strided:
                raise TypeError(
                    f"merge_states: {kind} {i} must be a dense torch tensor as out 0 is one, got {type(x).__name__}"
                )
    result: Pair = MERGE(outs, lses)
    return result
