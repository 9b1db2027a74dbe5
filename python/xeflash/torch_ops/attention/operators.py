"""The operators of attention: the functions that run, their fakes without data, and their registration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import xeflash.jit  # noqa: F401  gives the extension its kernels
from xeflash import _core
from xeflash.call.call import Call
from xeflash.call.schema import BHSD, BSHD, ROWS, THD
from xeflash.torch_ops.attention.extension import pair_of, residual_of, results_of
from xeflash.torch_ops.attention.gradients import differentiated, merge_with_gradients
from xeflash.torch_ops.attention.shapes import check_shapes
from xeflash.torch_ops.attention.words import reader
from xeflash.torch_ops.forms import FORMS, Form
from xeflash.torch_ops.library import Pair, register

# ---- what runs ---------------------------------------------------------------------------------


def kernel_of(form: Form) -> Callable[..., Any]:
    """Returns the function that runs for an operator: the extension's forward.

    The dispatcher passes arguments that are not the default.
    """
    read, run = reader(form), results_of if form.results == "Results" else pair_of

    def kernel(*arguments: Any, **more: Any) -> Any:
        return run(read(arguments, more))

    return kernel


def merge(outs: Sequence[Tensor], lses: Sequence[Tensor]) -> Pair:
    """Merges outs and LSEs by the extension."""
    result: Pair = _core.merge_states(list(outs), list(lses))
    return result


# ---- the same without data: shapes, types and strides of the results ---------------------------

_OF_ALL = {name for name, row in ROWS.items() if {"a", "d"} & {*row.more.ops}}  # the rest is of caches, or packed
_SHAPED = ROWS.keys() - _OF_ALL | {"function", "q", "k", "v", "enable_gqa"}


def fake_of(form: Form) -> Callable[..., Any]:
    """Returns the function that gives an operator's results without data, where q, k, v and caches match.

    Features are refused when the operator runs: torch's compiler has another type for an error that it meets.
    """
    read = reader(form)

    def fake(**given: Any) -> Any:
        call = read((), given)
        check_shapes(Call({name: x for name, x in call.arguments.items() if name in _SHAPED}, call.words))
        return _fake(form, call.arguments)

    return fake


def _fake(form: Form, given: dict[str, Any]) -> Any:
    q, v = given["q"], given["v_cache" if "v_cache" in given else "v"]
    columns = v.shape[-1] * (2 if v.dtype is torch.uint8 else 1)  # a cache in 4 bits
    out = (*q.shape[:-1], columns)
    lse = {BHSD: out[:-1], BSHD: (out[0], *out[-2:0:-1]), THD: (out[1], out[0])}[form.layout]
    results = _results(q, out, lse, given.get("return_lse", False))
    if form.results == "Pair":
        return results
    residual = residual_of(q, v) if given.get("residual") else None
    return *results, _state_fake(given.get("dropout_p", 0.0)), q.new_empty(0) if residual is None else residual


def _merge_fake(outs: Sequence[Tensor], **_more: Any) -> Pair:
    *batch, rows, heads, _dim = outs[0].shape
    return _results(outs[0], tuple(outs[0].shape), (*batch, heads, rows), True)


def _results(like: Tensor, out: tuple[Any, ...], lse: tuple[Any, ...], want_lse: bool) -> Pair:
    return like.new_empty(out), like.new_empty(lse if want_lse else (0,), dtype=torch.float32)


def _state_fake(dropout_p: float) -> Tensor:
    return torch.empty(2 if dropout_p else 0, dtype=torch.int64, device="cpu")


# ---- registration -------------------------------------------------------------------------------


def _register(form: Form) -> Any:
    return register(
        form.schema, kernel_of(form), fake_of(form), function=form.function,
        cast=(form.by_place[0], "k", "v") if form.letter == "c" else form.by_place[:3], mutates=form.written,
        random=form.results == "Results", differentiate=differentiated(form) if form.results == "Results" else None,
    )  # fmt: skip


OPERATORS = {form.letter: (_register(form), form) for form in FORMS}
MERGE = register(
    "merge_states(Tensor[] outs, Tensor[] lses) -> (Tensor, Tensor)", merge, _merge_fake, function="merge_states",
    differentiate=merge_with_gradients,
)  # fmt: skip
