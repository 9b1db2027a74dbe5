"""Gradients of ``torch.ops.xeflash.*``.

If a tensor of a call requires grad, the call computes its LSE and, in 16 bits, what rounding takes from its output (the
residual: 2 bytes per element), whether or not the caller asked for them. Autograd keeps them, the state of dropout's
generator and the call's tensors for the backward pass. The backward pass is an operator, too, ``attention_backward``,
for all layouts: it computes only the gradients that are wanted, and gives the same bits each time.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor, is_legacy_batchedtensor

from xeflash import _core
from xeflash.call.call import Call
from xeflash.call.schema import BHSD, DEFAULTS_OF_ATTENTION, FORWARD_ONLY, THD, WITH_GRADIENTS
from xeflash.call.score_mod import names_read_by, without_comments
from xeflash.torch_ops.attention.extension import given_as, gradients_of, results_of
from xeflash.torch_ops.attention.words import laid_out, put_together, reader, take_words, with_lists
from xeflash.torch_ops.forms import Form, backward_schema
from xeflash.torch_ops.library import (
    Pair,
    Results,
    check_gradients,
    has_subclass,
    is_seen,
    once,
    refuse_transforms,
    register,
    requires_grad,
)
from xeflash.tune import pick, xe
from xeflash.tune.desc import Desc

_OTHER_TYPES = re.compile(r"\b(f16|bf16|double|long|short|char|signed|unsigned|u?int\d+_t|size_t)\b")


# ---- the operator -------------------------------------------------------------------------------

OPERATORS_WORDS = {"residual": "rest"}  # schemas of operators stay
_FIRST = ("dout", "dlse", "q", "k", "v", "out", "lse", "rng", "layout", "wanted")  # by position


def attention_backward(*arguments: Any, **more: Any) -> list[Tensor]:
    """Computes the gradients of the tensors that `wanted` names, in its order.

    `rng` is the state that the forward pass gave.

    `rest` is the residual, what rounding took from `out`: without it gradients in 16 bits are less exact where V has a
    mean. `longer` says that `out` and `lse` were computed from more keys than `k` has.
    """
    given = {"function": "attention_backward", **dict(zip(_FIRST, arguments, strict=False))}
    given |= (DEFAULTS_OF_ATTENTION if given["layout"] == BHSD else {}) | more
    put_together(given, cached=False)
    given["residual"], rng = given.pop("rest", None), given.pop("rng")
    return gradients_of(Call(given, take_words(given, OPERATORS_WORDS)), rng)


def _fake(q: Tensor, k: Tensor, v: Tensor, wanted: Sequence[str], **more: Any) -> list[Tensor]:
    names, arrays = more.get("capture_names") or (), more.get("capture_arrays") or ()
    captured = {f"captures[{name!r}]": x for name, x in zip(names, arrays, strict=False)}
    given = {"q": q, "k": k, "v": v, **more}
    return [x.new_empty(x.shape) for x in (given_as(given, captured, name) for name in wanted)]


class _Without(torch.autograd.Function):  # type: ignore[misc]
    """A result that has no gradient, though its inputs want one."""

    @staticmethod
    def forward(ctx: Any, text: str, result: Tensor, *_tensors: Tensor) -> Tensor:
        ctx.text = text
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor | None) -> Any:
        raise NotImplementedError(ctx.text)


def without_gradient(text: str, result: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """Returns the result of tensors that require grad; a backward pass from it raises the text."""
    refused: Tensor = _Without.apply(text, result, *tensors)
    return refused


def _differentiate_once(operator: Any, given: dict[str, Any]) -> list[Tensor]:
    refuse_transforms(given["function"])
    tensors = [x for x in (*given.values(), *(given.get("capture_arrays") or ())) if isinstance(x, Tensor)]
    return list(once(given["function"], lambda: operator(**given), *tensors))


_backward_op = register(
    backward_schema("attention_backward"), attention_backward, _fake, function="attention_backward",
    differentiate=_differentiate_once,
)  # fmt: skip


# ---- attention ----------------------------------------------------------------------------------


_Run = Callable[[Call], Results]


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function of attention: (out, lse, rng, residual) of a call, whose tensors come apart from it."""

    @staticmethod
    def forward(ctx: Any, call: Call, names: list[str], run: _Run, *tensors: Tensor) -> Results:
        out, lse, rng, residual = run(call.joined(names, tensors))
        ctx.call, ctx.names = call, names
        ctx.save_for_backward(*tensors, out, lse, rng, residual)
        ctx.mark_non_differentiable(rng, residual)
        ctx.set_materialize_grads(False)
        return out, lse, rng, residual

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None, _drng: None, _dresidual: None) -> Any:
        if any(x is not None and (is_batchedtensor(x) or is_legacy_batchedtensor(x)) for x in (dout, dlse)):
            raise NotImplementedError(
                f"{ctx.call.function}: gradients must not be batched (is_grads_batched, vectorised jacobians), "
                f"as the backward pass takes one at a time, got some below vmap"
            )
        *tensors, out, lse, rng, residual = ctx.saved_tensors
        asked = ctx.needs_input_grad[3:]
        wanted = [name for name, needs in zip(ctx.names, asked, strict=True) if needs]
        if dout is None:
            dout = out.new_zeros(()).expand(out.shape)
        call = ctx.call.joined(
            ctx.names, tensors, *FORWARD_ONLY, residual=residual if residual.numel() else None,
            wanted=wanted, dout=dout, dlse=dlse, out=out, lse=lse,
        )  # fmt: skip
        found = iter(_backward(call, rng))
        return None, None, None, *(next(found) if needs else None for needs in asked)


def _backward(call: Call, rng: Tensor) -> list[Tensor]:
    """Computes the wanted gradients of a call by the extension, or by the operator where torch has to see it."""
    if not torch.is_grad_enabled() and is_plain(call):
        return gradients_of(call, rng)
    given = {OPERATORS_WORDS.get(name, name): x for name, x in with_lists(call).items()}
    result: list[Tensor] = _backward_op(**given, rng=rng)
    return result


def is_plain(call: Call) -> bool:
    """Returns whether nothing below autograd has to see a call."""
    given = call.arguments
    return not (
        torch.compiler.is_compiling()
        or torch.autograd._profiler_enabled()  # the profiler shows operators by their names
        or is_seen(given["q"], given["k"], given["v"])
        or given["q"].is_meta
        or has_subclass(given.values(), (given.get("captures") or {}).values())
    )


def attend(call: Call, run: _Run) -> Results:
    """Runs a call that autograd keeps; returns (out, LSE, state of dropout, residual)."""
    given = call.arguments
    q, v = given["q"], given["v"]
    captured = [x for x in (given.get("captures") or {}).values() if isinstance(x, Tensor)]
    if learned := [x for x in captured if x.requires_grad]:
        _refuse_conditions(call)
        refuse_captures(call.function, given["score_mod"], sum(x.numel() for x in learned))
    if type(q) is Tensor and q.device.type == "xpu" and not torch.compiler.is_compiling():
        check_room(call.function, _core.arch_of(q, call.function, call.word("q")), q, v)
    others = [x for name, x in given.items() if name != "v" and isinstance(x, Tensor)]  # that of V needs no Delta
    keeps_residual = q.dtype.itemsize == 2 and (given.get("residual") or requires_grad(*others, *captured))
    if given["layout"] != THD and given["k"].shape[0] != q.shape[0]:
        call = _in_one_batch(call)
    apart, names, tensors = call.apart(Tensor, return_lse=True, residual=keeps_residual or None)
    out, lse, rng, residual = _Attention.apply(apart, names, run, *tensors)
    if not given.get("return_lse"):
        lse = out.new_empty(0, dtype=torch.float32)
    return out, lse, rng, residual if given.get("residual") else out.new_empty(0)


def _in_one_batch(call: Call) -> Call:
    """Expands keys and values of batch 1 to the batch of the queries, as views; autograd adds their gradients up."""
    given = call.arguments
    batch, k, v = given["q"].shape[0], given["k"], given["v"]
    if k.shape[0] != 1 or v.shape[0] != 1:
        return call
    return call.with_(k=k.expand(batch, *k.shape[1:]), v=v.expand(batch, *v.shape[1:]))


def differentiated(form: Form) -> Callable[[Any, dict[str, Any]], Results]:
    """Returns the function that runs an operator's calls with gradients."""
    read = reader(form)

    def run(operator: Any, given: dict[str, Any]) -> Results:
        call = read((), given)
        refuse_transforms(call.function)
        learned = () if "k_cache" in call else WITH_GRADIENTS
        check_gradients(call, learned)
        return attend(call, lambda whole: below(operator, whole))

    def below(operator: Any, call: Call) -> Results:
        if is_plain(call):
            return results_of(call)
        results: Results = operator(**laid_out(call, form))
        return results

    return run


@functools.cache
def _reason_for_no_room(arch: str, dim: int, dim_v: int) -> str:
    """Returns why a GPU's backward pass has no tiles for these head dims in fp32, or "" if it has."""
    try:
        for algorithm in xe.BACKWARD:
            pick(Desc(algorithm, arch, "float32", dim, dim_v, rows=32, access="dwords"))
    except NotImplementedError as error:
        return str(error).removeprefix("xeflash: ")
    return ""


def check_room(function: str, arch: str, q: Tensor, v: Tensor) -> None:
    """Refuses in the forward pass what the backward pass would refuse; 16 bits always find room."""
    if q.dtype is torch.float32 and (reason := _reason_for_no_room(arch, q.shape[-1], v.shape[-1])):
        raise NotImplementedError(
            f"{function}: gradients must not be wanted with these head dims on this device, as {reason}"
        )


def _refuse_conditions(call: Call) -> None:
    """Refuses gradients of what a mask_mod reads."""
    read = names_read_by(call.get("mask_mod") or "")
    for name, x in call["captures"].items():
        if name in read and isinstance(x, Tensor) and x.requires_grad:
            rule = "must not require grad, as mask_mod reads it and a condition has no gradient"
            raise call.refuse(f"captures[{name!r}]", rule, "requires_grad = True", NotImplementedError)


def refuse_captures(function: str, score_mod: str, elements: int) -> None:
    """Refuses a score_mod whose captures' gradients the kernel cannot compute."""
    if elements > _core.MOST_LEARNED:
        raise NotImplementedError(
            f"{function}: captures that require grad must have at most {_core.MOST_LEARNED} elements together, "
            f"got {elements}"
        )
    if found := _OTHER_TYPES.search(without_comments(score_mod)):
        raise NotImplementedError(
            f"{function}: score_mod must have no other types than float, int and bool where captures require grad, "
            f"got {found[0]!r}"
        )


# ---- merge_states -------------------------------------------------------------------------------


class _Merge(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function of merge_states: (out, lse) of outs and then LSEs.

    With w_i = exp(lse_i - lse), 0 where a part had no key for a row:

    out = sum_i w_i out_i:   dout_i = w_i dout,   dlse_i = w_i (D_i - sum_j w_j D_j + dlse),   D_i = dout out_i
    """

    @staticmethod
    def forward(ctx: Any, operator: Any, parts: int, *states: Tensor) -> Pair:
        out, lse = operator(list(states[:parts]), list(states[parts:]))
        ctx.save_for_backward(*states, lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> Any:
        *states, lse = ctx.saved_tensors
        parts = len(states) // 2
        outs, lses = states[:parts], states[parts:]
        lse = lse.masked_fill(lse.isinf(), 0.0)
        weights = [(x.masked_fill(x.isinf(), -torch.inf) - lse).exp() for x in lses]
        out_gradients: list[Tensor | None] = [None] * parts
        moved: list[Tensor | float] = [0.0] * parts
        if dout is not None:
            dout = dout.float()
            out_gradients = [(w.mT[..., None] * dout).to(x.dtype) for w, x in zip(weights, outs, strict=True)]
            dots = [(dout * x).sum(-1).mT.masked_fill(y.isinf(), 0.0) for x, y in zip(outs, lses, strict=True)]
            mean = sum(w * dot for w, dot in zip(weights, dots, strict=True))
            moved = [dot - mean for dot in dots]
        lse_gradients = [w * (x if dlse is None else x + dlse) for w, x in zip(weights, moved, strict=True)]
        return None, None, *out_gradients, *lse_gradients


def merge_with_gradients(operator: Any, given: dict[str, Any]) -> Pair:
    """Runs merge_states so that autograd records it."""
    refuse_transforms("merge_states")
    outs, lses = given["outs"], given["lses"]
    result: Pair = _Merge.apply(operator, len(outs), *outs, *lses)
    return result
