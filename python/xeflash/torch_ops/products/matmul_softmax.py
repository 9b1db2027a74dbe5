"""``torch.ops.xeflash.matmul_softmax``: products whose rows become their softmax, and their gradients.

The backward pass has the result, P: dS = P (dP - rowsum(dP P)), or with log dS = dP - exp(log P) rowsum(dP). The
products that follow are torch's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from xeflash.call.schema import ROWS_OF_SOFTMAX
from xeflash.torch_ops.forms import MATMUL_SOFTMAX
from xeflash.torch_ops.library import once, refuse_transforms, register_product

_LEARNED = tuple(name for name, row in ROWS_OF_SOFTMAX.items() if row.more.learned)


def _columns_first(b: Tensor, given: dict[str, Any]) -> Tensor:
    """Returns B as (..., N, K)."""
    return b.mT if given.get("b_layout", "nk") == "kn" else b


def _fake(a: Tensor, b: Tensor, function: str, **more: Any) -> Tensor:
    if more.get("b_layout", "nk") not in ("nk", "kn"):
        raise ValueError(f'{function}: b_layout must be "nk" or "kn", got "{more["b_layout"]}"')
    for name, x in (("a", a), ("b", b)):
        if x.dim() < 2:
            raise ValueError(f"{function}: {name} must have at least 2 dimensions, got {x.dim()}")
    rows = _columns_first(b, more)
    batch = torch.broadcast_shapes(a.shape[:-2], rows.shape[:-2])
    return a.new_empty((*batch, a.shape[-2], rows.shape[-2]))


class _MatmulSoftmax(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function of matmul_softmax, with gradients of a, b and the bias."""

    @staticmethod
    def forward(ctx: Any, operator: Any, given: dict[str, Any], *tensors: Tensor | None) -> Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            result: Tensor = operator(**given)
        ctx.given = {name: x for name, x in given.items() if not isinstance(x, Tensor)}
        a, b, bias = tensors
        ctx.like_bias = None if bias is None else (bias.shape, bias.dtype)
        ctx.save_for_backward(a, b, result)
        return result

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        saved = ctx.saved_tensors
        return None, None, *once(ctx.given["function"], lambda: _gradients(ctx, dout, *saved), dout, *saved)


def _gradients(ctx: Any, dout: Tensor, a: Tensor, b: Tensor, result: Tensor) -> tuple[Tensor | None, ...]:
    """Computes the gradients of a, b and the bias."""
    softmax_gradient = torch._log_softmax_backward_data if ctx.given.get("log") else torch._softmax_backward_data
    ds = softmax_gradient(dout, result, -1, result.dtype)
    scale = ctx.given.get("scale", 1.0)
    rows = _columns_first(b, ctx.given)
    da = db = dbias = None
    if ctx.needs_input_grad[2]:
        da = (ds @ rows).mul_(scale).sum_to_size(a.shape)
    if ctx.needs_input_grad[3]:
        db = _columns_first((ds.mT @ a).mul_(scale).sum_to_size(rows.shape), ctx.given)
    if ctx.like_bias is not None and ctx.needs_input_grad[4]:
        shape, dtype = ctx.like_bias
        dbias = ds.float().sum_to_size(shape).to(dtype)
    return da, db, dbias


def _differentiate(operator: Any, given: dict[str, Any]) -> Tensor:
    refuse_transforms(given["function"])
    result: Tensor = _MatmulSoftmax.apply(operator, given, *(given.get(name) for name in _LEARNED))
    return result


register_product(MATMUL_SOFTMAX, _fake, cast=("a", "b"), differentiate=_differentiate)
