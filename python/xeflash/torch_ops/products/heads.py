"""The operators of a language model's head, which makes losses and largest logits.

The backward pass has the maximum m of each row and the logarithm of its sum l, and makes logits z again, by blocks of
the vocabulary: a loss' gradient is of_p P - of_target [target] - of_all with P = exp(z - m - log l).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from xeflash import _core
from xeflash.call.schema import ROWS_OF_CROSS_ENTROPY
from xeflash.torch_ops.forms import LINEAR_CROSS_ENTROPY, LINEAR_TOP_K
from xeflash.torch_ops.library import refuse_transforms, register, register_product
from xeflash.torch_ops.products.factors import factors
from xeflash.torch_ops.products.heads_forward import WithGradients

_LEARNED = tuple(name for name, row in ROWS_OF_CROSS_ENTROPY.items() if row.more.learned)
_CAST = ("input", "linear_weight", "linear_bias")
Three = tuple[Tensor, Tensor, Tensor]


def _fake(input: Tensor, reduction: str = "mean", **_more: Any) -> Three:
    def new(*shape: Any) -> Tensor:
        return input.new_empty(shape, dtype=torch.float32)

    rows = input.shape[:-1]
    return new(*(rows if reduction == "none" else ())), new(*rows), new(2, rows.numel())


_BACKWARD = (
    "linear_cross_entropy_backward(Tensor input, Tensor linear_weight, Tensor target, Tensor? linear_bias, "
    "Tensor state, Tensor of_p, Tensor of_target, Tensor of_all, *, float softcap=0., float logit_scale=1., "
    'bool wants_input=True, bool wants_weight=True, bool wants_bias=True, str function="linear_cross_entropy") '
    "-> (Tensor, Tensor, Tensor)"
)
_PLACES = ("input", "linear_weight", "target", "linear_bias", "state", "of_p", "of_target", "of_all")
_PARTS = ("wants_input", "wants_weight", "wants_bias")


def _backward(*arguments: Any, **more: Any) -> Three:
    given = {"function": "linear_cross_entropy", **dict(zip(_PLACES, arguments, strict=False)), **more}
    found = _core.linear_cross_entropy_backward(**given)
    input = given["input"]
    dinput, dweight, dbias = (input.new_empty(0) if x is None else x for x in found)
    return dinput, dweight, dbias


def _fake_backward(input: Tensor, linear_weight: Tensor, linear_bias: Tensor | None = None, **more: Any) -> Three:
    wanted = [more.get(name, True) for name in _PARTS]
    like = (input, linear_weight, linear_bias)
    dinput, dweight, dbias = (
        input.new_empty(x.shape if x is not None and wants else (0,)) for x, wants in zip(like, wanted, strict=True)
    )
    return dinput, dweight, dbias


BACKWARD = register(_BACKWARD, _backward, _fake_backward, function="linear_cross_entropy")


class _LinearCrossEntropy(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function of linear_cross_entropy, with gradients of input, weight and bias."""

    @staticmethod
    def forward(ctx: Any, operator: Any, given: dict[str, Any], *tensors: Tensor | None) -> Three:
        with torch._C._AutoDispatchBelowAutograd():
            loss, lse, state = operator(**given)
        ctx.given = {name: x for name, x in given.items() if not isinstance(x, Tensor)}
        ctx.save_for_backward(*tensors, given["target"], lse, state)
        ctx.mark_non_differentiable(state)
        ctx.set_materialize_grads(False)
        return loss, lse, state

    @staticmethod
    def backward(ctx: Any, dloss: Tensor | None, dlse: Tensor | None, _: Any) -> Any:
        if torch.is_grad_enabled():
            raise NotImplementedError(
                f"{ctx.given['function']}: gradients of gradients must not be asked for, as there are none, "
                "got create_graph = True"
            )
        input, weight, bias, target, lse, state = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2:]
        if (dloss is None and dlse is None) or not any(wanted):
            return (None,) * 5
        found = BACKWARD(
            *(input, weight, target, bias, state, *factors(ctx.given, target, lse, len(weight), dloss, dlse)),
            **dict(zip(_PARTS, wanted, strict=True)),
            **{name: ctx.given[name] for name in ("softcap", "logit_scale", "function") if name in ctx.given},
        )
        return None, None, *(x if wants else None for x, wants in zip(found, wanted, strict=True))


def _differentiate(operator: Any, given: dict[str, Any]) -> Any:
    refuse_transforms(given["function"])
    if given.get("workspace"):
        loss, lse = WithGradients.apply(given, *(given.get(name) for name in _LEARNED))
        return loss, lse, lse.new_empty((2, 0))
    return _LinearCrossEntropy.apply(operator, given, *(given.get(name) for name in _LEARNED))


register_product(LINEAR_CROSS_ENTROPY, _fake, cast=_CAST, differentiate=_differentiate)


def _fake_top_k(input: Tensor, k: int = 1, argmax: bool = False, **_more: Any) -> tuple[Tensor, Tensor]:
    shape = (*input.shape[:-1], *(() if argmax else (k,)))
    return input.new_empty(shape, dtype=torch.float32), input.new_empty(shape, dtype=torch.int64)


register_product(LINEAR_TOP_K, _fake_top_k, cast=_CAST)
