"""``torch.ops.xeflash.linear``: products of rows with weights, and their gradients.

The products of the backward pass are torch's: they are large where there are many rows, and seldom asked for where
there are few. Quantised weights are made numbers again for them, some outputs at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from xeflash.call.call import Call
from xeflash.call.schema import ROWS_OF_LINEAR
from xeflash.torch_ops.forms import LINEAR
from xeflash.torch_ops.library import check_gradients, once, refuse_transforms, register_product
from xeflash.tune.products import WEIGHT_OUTPUTS

_LEARNED = tuple(name for name, row in ROWS_OF_LINEAR.items() if row.more.learned)


def _fake(x: Tensor, weight: Tensor, **_more: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def unpacked(weight: Tensor, inputs: int) -> Tensor:
    """Unpacks packed weights to the numbers 0 to 15, (outputs, inputs), in int8."""
    units = weight.view(weight.shape[0], -1, 16, 4)  # dword, byte: inputs 64 (b % 2) + 2 d + b // 2, and 32 more
    nibbles = torch.stack((units & 15, units >> 4), -1)  # nibbles of a byte: part 2 (b % 2), then the next one
    parts = nibbles.view(*units.shape[:3], 2, 2, 2)  # dword, upper half, byte of it, nibble
    return parts.permute(0, 1, 4, 5, 2, 3).reshape(weight.shape[0], -1)[:, :inputs].to(torch.int8)


def numbers(weight: Tensor, scales: Tensor, zeros: Tensor | None, group: int, inputs: int, first: int) -> Tensor:
    """Returns the weights of some outputs in fp32; `scales` and `zeros` are those of all, from output `first` on."""
    packed = weight.dtype == torch.uint8
    q = (unpacked(weight, inputs) if packed else weight).float()

    def spread(x: Tensor) -> Tensor:
        """Expands (groups, outputs) to one value per weight (outputs, inputs)."""
        rows = x.float().view(1, -1) if x.dim() < 2 else x.float()
        if rows.shape[1] > 1:
            rows = rows[:, first : first + len(weight)]
        if rows.shape[0] == 1:
            return rows.mT
        return rows.mT.repeat_interleave(group, 1)[:, :inputs]

    if zeros is not None:
        q = q - spread(zeros)
    elif packed:
        q = q - 8
    return q * spread(scales)


def _as_rows(x: Tensor) -> Tensor:
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])


def _blocks(weight: Tensor) -> Iterator[tuple[int, Tensor]]:
    for first in range(0, len(weight), WEIGHT_OUTPUTS):
        yield first, weight[first : first + WEIGHT_OUTPUTS]


class _Linear(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function of linear, with gradients of x, of weights without scales, and of the bias."""

    @staticmethod
    def forward(ctx: Any, operator: Any, given: dict[str, Any], *tensors: Tensor | None) -> Tensor:
        ctx.given = {name: x for name, x in given.items() if not isinstance(x, Tensor)}
        ctx.has_bias = tensors[2] is not None
        ctx.save_for_backward(*tensors[:2], given.get("scales"), given.get("zeros"))
        with torch._C._AutoDispatchBelowAutograd():
            result: Tensor = operator(**given)
        return result

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        saved = ctx.saved_tensors
        return None, None, *once(ctx.given["function"], lambda: _gradients(ctx, dout, *saved), dout, *saved)


def _gradients(
    ctx: Any, dout: Tensor, x: Tensor, weight: Tensor, scales: Tensor | None, zeros: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Computes the gradients of x, weight and bias."""
    dx = dweight = dbias = None
    rows = _as_rows(dout)
    if ctx.needs_input_grad[2]:
        if scales is None:
            sums = rows @ weight
        else:
            sums = rows.new_zeros((len(rows), x.shape[-1]), dtype=torch.float32)
            for first, some in _blocks(weight):
                w = numbers(some, scales, zeros, ctx.given.get("group", 0), x.shape[-1], first)
                sums.addmm_(rows[:, first : first + len(some)].float(), w)
        dx = sums.to(x.dtype).view(x.shape)
    if ctx.needs_input_grad[3]:
        dweight = rows.mT @ _as_rows(x)
    if ctx.has_bias and ctx.needs_input_grad[4]:
        dbias = rows.sum(0, dtype=torch.float32).to(dout.dtype)
    return dx, dweight, dbias


def _differentiate(operator: Any, given: dict[str, Any]) -> Tensor:
    function = given["function"]
    refuse_transforms(function)
    check_gradients(Call(given), _LEARNED)
    if given["weight"].requires_grad and given.get("scales") is not None:
        raise NotImplementedError(
            f"{function}: weight must not require grad where it has scales, as no gradient of it is computed, got "
            "requires_grad = True"
        )
    result: Tensor = _Linear.apply(operator, given, *(given.get(name) for name in _LEARNED))
    return result


register_product(LINEAR, _fake, cast=LINEAR.by_place, differentiate=_differentiate)
