"""A language model's head without its logits: the loss, log-probabilities of tokens, the largest logits."""

from __future__ import annotations

from numbers import Real
from typing import Any

from xeflash.api.route import run_product
from xeflash.call.bind import public
from xeflash.call.call import Call
from xeflash.call.values import flag, is_array, namespace

_ARRAYS = ("input", "linear_weight", "target", "linear_bias")
_DEFAULT_IF_NONE = ("softcap", "logit_scale", "ignore_index", "divisor", "workspace")


def _loss(call: Call, divisor: Any) -> tuple[Any, Any]:
    """Computes (loss, LSE) with a divisor that is a number or not given."""
    if divisor == 0 and not isinstance(divisor, bool):
        raise call.refuse("divisor", "must be positive and finite in float32", divisor)
    loss, lse, _ = run_product("linear_cross_entropy", call, *_ARRAYS)
    return loss, lse


def _divided(call: Call, divisor: Any) -> tuple[Any, Any]:
    """Computes (loss, LSE) with a divisor that is an array: divides the sum, so that nothing waits for its value."""
    if namespace(call.function, "divisor", divisor) is not namespace(call.function, "input", call["input"]):
        got = type(divisor).__name__
        raise call.refuse("divisor", "must be a number, or an array of the library of input", got, TypeError)
    if not _is_real(divisor):
        raise call.refuse("divisor", "must be a number, or a dense array of real numbers", divisor.dtype, TypeError)
    if tuple(divisor.shape) not in ((), (1,)):
        raise call.refuse("divisor", "must be a number, or an array of one", f"shape {list(divisor.shape)}")
    if getattr(divisor, "requires_grad", False):
        raise call.refuse("divisor", "must not require grad", "requires_grad = True", NotImplementedError)
    if (reduction := call.get("reduction", "mean")) != "mean":
        raise call.refuse("divisor", 'must be None but for reduction = "mean"', repr(reduction))
    loss, lse, _ = run_product("linear_cross_entropy", call.with_("divisor", reduction="sum"), *_ARRAYS)
    loss /= divisor.reshape(())  # in place, as numpy has no other arrays without dimensions
    return loss, lse


def _top_k(call: Call) -> tuple[Any, Any]:
    """Computes (values, tokens) of the largest logits."""
    call = call.without_none(*_DEFAULT_IF_NONE)
    values, tokens = run_product("linear_top_k", call, "input", "linear_weight", "linear_bias", learned=False)
    return values, tokens


def _is_real(array: Any) -> bool:
    """Returns whether an array of torch, or of a namespace with dtype kinds, is dense and has real numbers."""
    if hasattr(array, "is_sparse"):
        real = not array.is_complex() and str(array.dtype) != "torch.bool"
        return real and str(array.layout) == "torch.strided" and not array.is_meta
    return getattr(array.dtype, "kind", "none") in "iuf"


@public()
def linear_cross_entropy(
    input: Any,
    linear_weight: Any,
    target: Any,
    *,
    linear_bias: Any = None,
    weight: Any = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    softcap: float | None = 0.0,
    logit_scale: float | None = 1.0,
    z_loss: float = 0.0,
    divisor: Any = None,
    return_lse: bool = False,
    workspace: int | None = None,
) -> Any:
    """Computes the cross entropy of tokens and logits input W^T + bias, without all logits in memory.

    Args:
        input: (..., H) in fp32, bf16 or fp16.
        linear_weight: (V, H), of the type of input.
        target: (...), tokens in int64 or int32: 0 to V - 1, or ignore_index. Probabilities are refused.
        linear_bias: (V,), of the type of input.
        weight: must be None.
        reduction: "mean" of the rows that count, "sum", or "none": a loss per row.
        ignore_index: rows with this target do not count: their loss and gradients are 0. None: -100.
        label_smoothing: e, in (1 - e) loss + e times the mean of the loss over all tokens.
        softcap: logits become softcap * tanh(logits / softcap); None or 0: they stay.
        logit_scale: logits are multiplied by it, before softcap.
        z_loss: factor of the squared LSE of a row, which is added to its loss.
        divisor: with "mean", divides the sum in place of the number of rows that count, as for accumulated batches: a
            number or an array of one.
        workspace: bytes that logits may take: the logits of some rows, at least 64, are then kept, and the forward pass
            computes the gradients, in fp32. That takes three products in place of four, and works for a scalar loss
            only. Nothing is kept if no gradients are wanted.
        return_lse: also gives the log of the sum of exponentials of each row, (...), in fp32.

    The loss is in fp32, as are all sums. input, linear_weight and linear_bias get gradients, also through the LSE: the
    backward pass recomputes logits by blocks, so that it needs little memory beside the gradients, a value per row and
    some blocks. Gradients have the same bits each time.

    A target out of range raises an error on CPUs. On GPUs, where nothing waits for it, the loss and gradients are NaN.
    The mean of no rows is NaN. On GPUs a copy of input and linear_weight is made unless H is a multiple of 32.

    >>> import numpy as np, xeflash
    >>> x, weight = np.ones((3, 8), np.float32), np.ones((4, 8), np.float32)
    >>> xeflash.linear_cross_entropy(x, weight, np.array([0, 3, -100]))
    array(1.3862944, dtype=float32)
    """


@linear_cross_entropy.body
def _(call: Call) -> Any:
    if (weight := call.get("weight")) is not None:
        got = type(weight).__name__
        raise call.refuse("weight", "must be None, as weights of tokens are not supported", got, NotImplementedError)
    return_lse = flag(call.function, "return_lse", call.get("return_lse", False))
    call = call.with_("weight", "return_lse").without_none(*_DEFAULT_IF_NONE)
    if isinstance(call.get("workspace"), int) and call["workspace"] <= 0:
        raise call.refuse("workspace", "must be positive, or None", call["workspace"])
    divisor = call.get("divisor")
    if isinstance(divisor, Real) and not isinstance(divisor, int | float):  # numpy's
        call = call.with_(divisor=(divisor := float(divisor)))
    loss, lse = (_divided if is_array(call.function, "divisor", divisor) else _loss)(call, divisor)
    return (loss, lse) if return_lse else loss


@public()
def linear_log_prob(
    input: Any,
    linear_weight: Any,
    target: Any,
    *,
    linear_bias: Any = None,
    softcap: float | None = 0.0,
    logit_scale: float | None = 1.0,
) -> Any:
    """Computes log-probabilities (...) of the tokens `target` (...) from logits input W^T + bias, in fp32.

    The arguments are those of ``linear_cross_entropy``, and so are gradients; no token is ignored.

    >>> import numpy as np, xeflash
    >>> x, weight = np.ones((2, 8), np.float32), np.ones((4, 8), np.float32)
    >>> xeflash.linear_log_prob(x, weight, np.array([0, 3]))
    array([-1.3862944, -1.3862944], dtype=float32)
    """


@linear_log_prob.body
def _(call: Call) -> Any:
    call = call.without_none(*_DEFAULT_IF_NONE).with_(reduction="none", log_prob=True)
    return run_product("linear_cross_entropy", call, *_ARRAYS)[0]


@public()
def linear_top_k(
    input: Any,
    linear_weight: Any,
    k: int,
    *,
    linear_bias: Any = None,
    softcap: float | None = 0.0,
    logit_scale: float | None = 1.0,
) -> Any:
    """Finds the k largest logits input W^T + bias of each row (..., k), in descending order, and their int64 tokens.

    The arguments are those of ``linear_cross_entropy``. k is 1 to 64. Logits are in fp32. Of equal logits the lower
    token comes first. NaN counts as -inf. There are no gradients.

    >>> import numpy as np, xeflash
    >>> values, tokens = xeflash.linear_top_k(np.ones((1, 8), np.float32), np.eye(4, 8, dtype=np.float32), 2)
    >>> tokens
    array([[0, 1]])
    """


@linear_top_k.body
def _(call: Call) -> Any:
    return _top_k(call)


@public()
def linear_argmax(
    input: Any,
    linear_weight: Any,
    *,
    linear_bias: Any = None,
    softcap: float | None = 0.0,
    logit_scale: float | None = 1.0,
) -> Any:
    """Finds the token (...) of the largest logit input W^T + bias of each row, in int64; the lowest of equal ones.

    The arguments are those of ``linear_top_k``, without k. On CPUs, logits of up to 8 rows are in memory.

    >>> import numpy as np, xeflash
    >>> xeflash.linear_argmax(np.ones((2, 8), np.float32), np.eye(4, 8, dtype=np.float32))
    array([0, 0])
    """


@linear_argmax.body
def _(call: Call) -> Any:
    return _top_k(call.with_(k=1, argmax=True))[1]
