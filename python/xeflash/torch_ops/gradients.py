"""Gradients of ``torch.ops.xeflash.*``.

A call of which a tensor requires grad is made with its LSE and, in 16 bits, with what rounding takes from its output
(the rest: 2 bytes per element), whether or not the caller asked for them. They and the state of dropout's generator are
kept with its tensors for the backward pass. That is an operator, too,
``attention_backward``, for all layouts: it computes the gradients that somebody wants and no others, and gives the same
bits each time.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor, is_legacy_batchedtensor

from xeflash import _core
from xeflash.call.schema import BHSD, DEFAULTS_OF_ATTENTION, FORWARD_ONLY, LEARNED, THD
from xeflash.call.score_mod import without_comments
from xeflash.torch_ops.forms import Form, backward_schema
from xeflash.torch_ops.library import (
    OF_SNIPPET,
    Pair,
    Results,
    as_snippet,
    once,
    refuse_transforms,
    register,
    requires_grad,
    wants_gradients,
)
from xeflash.tune import pick, xe
from xeflash.tune.desc import Desc

_OTHER_TYPES = re.compile(r"\b(f16|bf16|double|long|short|char|signed|unsigned|u?int\d+_t|size_t)\b")


# ---- the operator -------------------------------------------------------------------------------

_FIRST = ("dout", "dlse", "q", "k", "v", "out", "lse", "rng", "layout", "wanted")  # by position


def attention_backward(*arguments: Any, **more: Any) -> list[Tensor]:
    """The gradients of the tensors that `wanted` names, in its order; `rng` is the state that the forward pass gave.

    `rest` is what rounding took from `out`: without it gradients in 16 bits are less exact where V has a mean. `longer`
    says that `out` and `lse` are those of rows of more keys than `k` has, of which these are a part.
    """
    given = {"function": "attention_backward", **dict(zip(_FIRST, arguments, strict=False))}
    given |= (DEFAULTS_OF_ATTENTION if given["layout"] == BHSD else {}) | more
    rng, wanted, function = given.pop("rng"), given["wanted"], given["function"]
    if given.get("dropout_p"):
        given["seed"], given["offset"] = (x % 2**64 for x in rng.tolist())
    names, captured = given.get("capture_names"), given.get("capture_arrays")
    given["score_mod"] = as_snippet(function, *(given.pop(name, None) for name in OF_SNIPPET))
    arrays = given | _by_name(names, captured)
    asked = {name: _given(arrays, name) for name in wanted}
    *gradients, of_captures = _core.backward(**given)
    by_name = dict(zip(LEARNED, gradients, strict=True))
    if learned := [name for name in arrays if name in asked and name not in LEARNED]:
        parts = of_captures.split([asked[name].numel() for name in learned])
        by_name |= {name: part.view(asked[name].shape) for name, part in zip(learned, parts, strict=True)}
    return [by_name[name].sum_to_size(x.shape).to(x.dtype) for name, x in asked.items()]


def _by_name(names: Sequence[str] | None, arrays: Sequence[Tensor] | None) -> dict[str, Tensor]:
    return {f"captures[{name!r}]": x for name, x in zip(names or (), arrays or (), strict=False)}


def _fake(q: Tensor, k: Tensor, v: Tensor, wanted: Sequence[str], **more: Any) -> list[Tensor]:
    captured = _by_name(more.get("capture_names"), more.get("capture_arrays"))
    arrays = {"q": q, "k": k, "v": v, **more, **captured}
    return [x.new_empty(x.shape) for x in (_given(arrays, name) for name in wanted)]


def _given(arrays: Mapping[str, Any], name: str) -> Tensor:
    x = arrays.get(name)
    if (name not in LEARNED and not name.startswith("captures[")) or x is None:
        raise ValueError(
            f"attention_backward: wanted must be names of {LEARNED} or \"captures['NAME']\" whose tensors are given, "
            f"got {name!r}"
        )
    assert isinstance(x, Tensor)
    return x


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
    """The result of tensors that require grad; a backward pass from it raises the text."""
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


class _Call(NamedTuple):
    """A call of an operator, but for its tensors."""

    operator: Any
    form: Form
    names: tuple[str, ...]  # of the tensors; what follows them are captures
    options: dict[str, Any]
    in_core: Mapping[str, str]  # the extension's words for those of the operator

    def run(self, tensors: Sequence[Tensor]) -> Results:
        given = dict(zip(self.names, tensors, strict=False))
        captured = {"capture_arrays": list(tensors[len(given) :])} if "capture_names" in self.options else {}
        result: Results = self.operator(**self.options, **given, **captured, return_lse=True)
        return result

    def backward(self, tensors: Sequence[Tensor], wanted: list[str], **more: Any) -> list[Tensor]:
        given = self.options | dict(zip(self.names, tensors, strict=False))
        given = {self.in_core.get(name, name): x for name, x in given.items()}
        if "capture_names" in given:
            given["capture_arrays"] = list(tensors[len(self.names) :])
        given = {name: x for name, x in given.items() if name not in FORWARD_ONLY and name != "keep_rest"}
        result: list[Tensor] = _backward_op(**given, **more, layout=self.form.layout, wanted=wanted)
        return result


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """(out, lse, rng, rest) of a call with its tensors."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> Results:
        out, lse, rng, rest = call.run(tensors)
        ctx.call = call
        ctx.save_for_backward(*tensors, out, lse, rng, rest)
        ctx.mark_non_differentiable(rng, rest)
        ctx.set_materialize_grads(False)
        return out, lse, rng, rest

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None, _drng: None, _drest: None) -> Any:
        call: _Call = ctx.call
        if any(x is not None and (is_batchedtensor(x) or is_legacy_batchedtensor(x)) for x in (dout, dlse)):
            raise NotImplementedError(
                f"{call.options['function']}: gradients must not be batched (is_grads_batched, vectorised jacobians), "
                f"as the backward pass takes one at a time, got some below vmap"
            )
        *tensors, out, lse, rng, rest = ctx.saved_tensors
        asked = ctx.needs_input_grad[1:]
        names = [call.in_core.get(name, name) for name in call.names]
        names += _by_name(call.options.get("capture_names"), tensors[len(names) :])
        wanted = [name for name, needs in zip(names, asked, strict=True) if needs]
        if dout is None:
            dout = out.new_zeros(()).expand(out.shape)
        kept = {"rest": rest} if rest.numel() else {}
        found = call.backward(tensors, wanted, dout=dout, dlse=dlse, out=out, lse=lse, rng=rng, **kept)
        gradients = dict(zip(wanted, found, strict=True))
        return None, *(gradients.get(name) for name in names)


@functools.cache
def _reason_for_no_room(arch: str, dim: int, dim_v: int) -> str:
    """Why the backward pass of a GPU has no tiles for these head dims in fp32; empty if it has."""
    try:
        for algorithm in xe.BACKWARD:
            pick(Desc(algorithm, arch, "float32", dim, dim_v, rows=32, access="dwords"))
    except NotImplementedError as error:
        return str(error).removeprefix("xeflash: ")
    return ""


def check_room(function: str, arch: str, q: Tensor, v: Tensor) -> None:
    """Refuses in the forward call what the backward pass would refuse; 16 bits always find room."""
    if q.dtype is torch.float32 and (reason := _reason_for_no_room(arch, q.shape[-1], v.shape[-1])):
        raise NotImplementedError(f"{function}: gradients must not be wanted of these head dims here, as {reason}")


def refuse_captures(function: str, score_mod: str, elements: int) -> None:
    """What the kernel of their gradients does not have."""
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


class Gradients:
    """Makes the calls of an operator that need gradients."""

    def __init__(self, form: Form) -> None:
        """Keeps what is the same in all calls."""
        self._form = form
        self._in_core = {theirs: ours for ours, theirs in form.names.items()}
        self._learned = [form.names.get(name, name) for name in LEARNED]

    def __call__(self, operator: Any, given: dict[str, Any]) -> Results:
        """Runs the operator with the arguments that are given."""
        paged = given.get("block_table") is not None
        captured = given.get("capture_arrays") or []
        named = {name: x for name, x in given.items() if name != "capture_arrays"}
        named |= _by_name(given.get("capture_names"), captured)
        wants_gradients(given["function"], named, () if paged else (*self._learned, "captures"))
        refuse_transforms(given["function"])
        if learned := [x for x in captured if x.requires_grad]:
            refuse_captures(given["function"], given["score_mod"], sum(x.numel() for x in learned))
        q, _, v = (given[name] for name in self._learned[:3])
        if type(q) is Tensor and q.device.type == "xpu" and not torch.compiler.is_compiling():
            check_room(given["function"], _core.arch_of(q, given["function"], self._learned[0]), q, v)
        tensors = self._expand({name: x for name, x in given.items() if isinstance(x, Tensor)})
        left_out = {*tensors, "capture_arrays", "return_lse", "keep_rest"}
        options = {name: x for name, x in given.items() if name not in left_out}
        value = self._learned[2]  # its gradient needs no Delta
        options["keep_rest"] = bool(given.get("keep_rest")) or requires_grad(
            *(x for name, x in tensors.items() if name != value), *captured
        )
        call = _Call(operator, self._form, tuple(tensors), options, self._in_core)
        out, lse, rng, rest = _Attention.apply(call, *tensors.values(), *captured)
        if not given.get("return_lse"):
            lse = out.new_empty(0, dtype=torch.float32)
        return out, lse, rng, rest if given.get("keep_rest") else out.new_empty(0)

    def _expand(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Keys and values of batch 1, which serve all queries, as views of their batch: autograd adds gradients up."""
        if self._form.layout == THD:
            return tensors
        q, *others = self._learned[:3]
        batch = tensors[q].shape[0]
        if batch != 1 and all(tensors[name].shape[0] == 1 for name in others):
            tensors |= {name: tensors[name].expand(batch, *tensors[name].shape[1:]) for name in others}
        return tensors


# ---- merge_states -------------------------------------------------------------------------------


class _Merge(torch.autograd.Function):  # type: ignore[misc]
    """(out, lse) of outs and then LSEs. With w_i = exp(lse_i - lse), 0 where a part had no key for a row:

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
        of_outs: list[Tensor | None] = [None] * parts
        moved: list[Tensor | float] = [0.0] * parts
        if dout is not None:
            dout = dout.float()
            of_outs = [(w.mT[..., None] * dout).to(x.dtype) for w, x in zip(weights, outs, strict=True)]
            dots = [(dout * x).sum(-1).mT.masked_fill(y.isinf(), 0.0) for x, y in zip(outs, lses, strict=True)]
            mean = sum(w * dot for w, dot in zip(weights, dots, strict=True))
            moved = [dot - mean for dot in dots]
        of_lses = [w * (x if dlse is None else x + dlse) for w, x in zip(weights, moved, strict=True)]
        return None, None, *of_outs, *of_lses


def merge_with_gradients(operator: Any, given: dict[str, Any]) -> Pair:
    """A call of merge_states that needs them."""
    refuse_transforms("merge_states")
    outs, lses = given["outs"], given["lses"]
    result: Pair = _Merge.apply(operator, len(outs), *outs, *lses)
    return result
