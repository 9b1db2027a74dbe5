"""``linear``: products of few rows with weights, which may be quantised."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from xeflash.api.route import run_product
from xeflash.call.bind import public
from xeflash.call.call import Call
from xeflash.call.values import as_number, shape_of


def product(call: Call) -> Any:
    """Computes what `linear` does, for any function whose call has its arguments."""
    return run_product("linear", _grouped(_ordered(call)), "x", "weight", "bias")


def _grouped(call: Call) -> Call:
    """Returns a call whose group is a number, or not given."""
    if "group" not in call:
        return call
    if (group := as_number(call.function, "group", call["group"], waits=True)) is None:
        return call.with_("group")
    if isinstance(group, Integral) and not group and not isinstance(group, bool):  # 0 stands for None below
        raise call.refuse("group", "must be 32, 64, 128, or None for all inputs", group)
    return call.with_(group=group)


def _ordered(call: Call) -> Call:
    """Returns a call on x[..., order] without the argument order."""
    if (order := call.get("order")) is None:
        return call.with_("order") if "order" in call else call
    return call.with_("order", x=_taken(call.function, call["x"], order))


def _taken(function: str, x: Any, order: Any) -> Any:
    shape, wanted = shape_of(function, "order", order), shape_of(function, "x", x)[-1:]
    if shape != wanted:
        raise ValueError(f"{function}: order must have the shape {list(wanted)} of the inputs of x, got {list(shape)}")
    if hasattr(x, "index_select") and hasattr(order, "index_select") and order.device != x.device:
        raise ValueError(f"{function}: order must be on the device of x ({x.device}), got {order.device}")
    try:
        if hasattr(x, "index_select"):
            return x.index_select(-1, order)
        if hasattr(x, "__array__"):
            return x[..., order]
    except (IndexError, RuntimeError, TypeError) as error:
        raise ValueError(
            f"{function}: order must be an array of integers that name inputs of x, from the library of x: {error}"
        ) from error
    raise NotImplementedError(f"{function}: order must be None unless x is a torch tensor or a numpy array, got one")


@public()
def linear(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    scales: Any = None,
    zeros: Any = None,
    group: int | None = None,
    order: Any = None,
) -> Any:
    """Multiplies x (..., K) by weight (N, K) transposed and adds bias (N,); few rows read the weight once.

    Args:
        weight: of the type of x; or float8_e4m3fn, float8_e5m2 or int8, with scales; or uint8 of ``pack_int4``, with
            scales: rows of 4 bits.
        bias: (N,), of the type of x.
        scales: (G, N) for G groups of inputs, in fp32, fp16 or bf16: a weight stands for scale * (number - zero). For
            one group also (N,), or one number for all.
        zeros: int8, in the shape of scales; default 8 for 4 bits, else 0.
        group: inputs that share a scale: 32, 64, 128, or None for all of them. The last group may have fewer.
        order: (K,), integers: column j of the weight belongs to input order[j].

    Rows are taken by blocks of 64. x, bias, and weights that have no scales get gradients.

    >>> import numpy as np, xeflash
    >>> x, weight = np.ones((3, 256), np.float32), np.ones((32, 256), np.float32)
    >>> xeflash.linear(x, weight).shape
    (3, 32)
    """


@linear.body
def _(call: Call) -> Any:
    return product(call)
