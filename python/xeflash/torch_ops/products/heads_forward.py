"""``linear_cross_entropy_with_gradients``: three products in place of four, as logits stay in a workspace.

Blocks of rows have their logits in memory, which become slopes there; gradients of the sum, or mean, of losses are made
at once, in fp32, and the backward pass multiplies them by the one number that it gets.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from xeflash import _core
from xeflash.torch_ops.library import register
from xeflash.torch_ops.products.factors import factors
from xeflash.tune.products import BLOCK_ROWS, LOGITS_UNIT, SUMS_UNIT

_SCHEMA = (
    "linear_cross_entropy_with_gradients(Tensor input, Tensor linear_weight, Tensor target, Tensor? linear_bias, *, "
    'str reduction="mean", SymInt ignore_index=-100, float label_smoothing=0., float softcap=0., '
    "float logit_scale=1., float z_loss=0., float divisor=0., SymInt workspace=0, bool wants_input=True, "
    'bool wants_weight=True, bool wants_bias=True, str function="linear_cross_entropy") '
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_PLACES = ("input", "linear_weight", "target", "linear_bias")
_WANTS = ("wants_input", "wants_weight", "wants_bias")
_OF_LOGITS = ("softcap", "logit_scale", "function")
Five = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _whole(count: Any, unit: int) -> Any:
    return (count + unit - 1) // unit * unit


def _rows_of_block(function: str, workspace: int, rows: int, columns: int) -> int:
    each: int = 4 * _whole(max(columns, 1), LOGITS_UNIT)  # without columns the call is refused
    if workspace < each * min(rows, BLOCK_ROWS):
        raise ValueError(
            f"{function}: workspace must be at least {each * min(rows, BLOCK_ROWS)} bytes, of the logits of "
            f"{min(rows, BLOCK_ROWS)} rows, got {workspace}"
        )
    count: int = min(rows, workspace // each)
    return count if count == rows else count // BLOCK_ROWS * BLOCK_ROWS


def _new(input: Tensor, weight: Tensor, bias: Tensor | None, more: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Allocates sums of gradients, without elements where they are not wanted."""
    features, rows = _whole(input.shape[-1], SUMS_UNIT), input.shape[:-1].numel()
    wants = [more.get(name, True) for name in _WANTS]
    shapes = ((rows, features), (len(weight), features), (_whole(len(weight), SUMS_UNIT),))
    dinput, dweight, dbias = (
        input.new_zeros(shape if wanted and (i < 2 or bias is not None) else 0, dtype=torch.float32)
        for i, (shape, wanted) in enumerate(zip(shapes, wants, strict=True))
    )
    return dinput, dweight, dbias


def _with_gradients(*arguments: Any, **more: Any) -> Five:
    given: dict[str, Any] = {"function": "linear_cross_entropy", **dict(zip(_PLACES, arguments, strict=False)), **more}
    input, weight, target, bias = (given[name] for name in _PLACES)
    function, columns = given["function"], len(weight)
    rows = input.shape[:-1].numel()
    x, tokens = input.reshape(rows, input.shape[-1]), target.reshape(-1)
    dinput, dweight, dbias = _new(input, weight, bias, more)
    wants = {name: bool(sums.numel()) for name, sums in zip(_WANTS, (dinput, dweight, dbias), strict=True)}
    loss_options: dict[str, Any] = {
        name: given[name] for name in ("ignore_index", "label_smoothing", "z_loss") if name in given
    }
    logits_options = {name: given[name] for name in _OF_LOGITS if name in given}
    divisor: Any = 1
    if given.get("reduction", "mean") == "mean":
        divisor = given.get("divisor") or (tokens != given.get("ignore_index", -100)).sum()
    one = torch.ones((), device=x.device) / divisor
    losses, lse = x.new_zeros(rows, dtype=torch.float32), x.new_empty(rows, dtype=torch.float32)
    count = _rows_of_block(function, given.get("workspace", 0), rows, columns) if rows else 0
    logits = x.new_empty((count, _whole(columns, LOGITS_UNIT)), dtype=torch.float32)
    for first in range(0, max(rows, 1), max(count, 1)):  # a call without rows may be refused, too
        part = slice(first, first + count)
        block = {"input": x[part], "linear_weight": weight, "target": tokens[part], "linear_bias": bias}
        losses[part], lse[part], state = _core.linear_cross_entropy(
            **block, **loss_options, **logits_options, reduction="none", logits=logits
        )
        if rows and any(wants.values()):
            each = factors({**loss_options, "reduction": "sum"}, tokens[part], lse[part], columns, one, None)
            _core.linear_cross_entropy_backward(
                **block, **logits_options, **wants, state=state, logits=logits, adds=True,
                **dict(zip(("of_p", "of_target", "of_all"), each, strict=True)),
                **({"dinput": dinput[part]} if wants["wants_input"] else {}),
                **({"dweight": dweight} if wants["wants_weight"] else {}),
                **({"dbias": dbias} if wants["wants_bias"] else {}),
            )  # fmt: skip
    return losses.sum() / divisor, lse.view(input.shape[:-1]), dinput, dweight, dbias


def _fake(input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None = None, **more: Any) -> Five:
    scalar, lse = (input.new_empty(shape, dtype=torch.float32) for shape in ((), input.shape[:-1]))
    return scalar, lse, *_new(input, linear_weight, linear_bias, more)


OPERATOR = register(_SCHEMA, _with_gradients, _fake, function="linear_cross_entropy")


class WithGradients(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function of a loss whose forward pass computes the gradients; the LSE has none."""

    @staticmethod
    def forward(ctx: Any, given: dict[str, Any], *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        """Computes (loss, LSE), and keeps the gradients."""
        function = given["function"]
        if given.get("reduction", "mean") == "none":
            raise ValueError(f'{function}: workspace must be None with reduction = "none", got {given["workspace"]}')
        wants = dict(zip(_WANTS, ctx.needs_input_grad[1:], strict=True))
        given = {name: x for name, x in given.items() if name not in ("linear_bias", "log_prob")} | wants
        with torch._C._AutoDispatchBelowAutograd():
            loss, lse, *sums = OPERATOR(**given, linear_bias=tensors[2])
        ctx.function = function
        ctx.likes = [None if x is None else (x.shape, x.dtype) for x in tensors]
        ctx.save_for_backward(*sums)
        ctx.set_materialize_grads(False)
        return loss, lse

    @staticmethod
    def backward(ctx: Any, dloss: Tensor | None, dlse: Tensor | None) -> Any:
        """Multiplies the gradients of the forward pass by that of the loss."""
        if torch.is_grad_enabled():
            raise NotImplementedError(
                f"{ctx.function}: gradients of gradients must not be asked for, as there are none, "
                "got create_graph = True"
            )
        if dlse is not None:
            raise NotImplementedError(
                f"{ctx.function}: the LSE must not be differentiated with a workspace, as its gradients are made in "
                "the backward pass; give workspace = None"
            )
        found: list[Tensor | None] = [None] * 3
        for i, (sums, like) in enumerate(zip(ctx.saved_tensors, ctx.likes, strict=True)):
            if ctx.needs_input_grad[1 + i] and dloss is not None and like is not None:
                shape, dtype = like
                found[i] = (sums[..., : shape[-1]] * dloss).to(dtype).reshape(shape)
        return None, *found
