"""A language model's head without its logits: the loss, log-probabilities of tokens, the largest logits."""

from __future__ import annotations

from numbers import Real
from typing import Any

from xeflash.api.public import public
from xeflash.api.route import engine
from xeflash.call.values import flag, is_array, namespace

_LEARNED = ("input", "linear_weight", "linear_bias")


def _engine(function: str, given: dict[str, Any], learned: tuple[str, ...] = _LEARNED) -> Any:
    for name in ("softcap", "logit_scale"):
        if given.get(name, 0) is None:
            del given[name]
    others = given["target"] if "target" in given else given.get("linear_bias")
    return engine(function, given["input"], given["linear_weight"], others, given, learned)


def _loss(function: str, given: dict[str, Any]) -> Any:
    if (weight := given.pop("weight", None)) is not None:
        raise NotImplementedError(
            f"{function}: weight must be None, as weights of tokens are not supported, got {type(weight).__name__}"
        )
    for name in ("ignore_index", "divisor", "workspace"):
        if given.get(name, 0) is None:
            del given[name]
    if isinstance(given.get("workspace"), int) and given["workspace"] <= 0:
        raise ValueError(f"{function}: workspace must be positive, or None, got {given['workspace']}")
    return_lse = flag(function, "return_lse", given.pop("return_lse", False))
    divisor = given.get("divisor")
    if isinstance(divisor, Real) and not isinstance(divisor, int | float):  # numpy's
        given["divisor"] = divisor = float(divisor)
    if is_array(function, "divisor", divisor):
        return _divided(function, given, return_lse)
    if divisor == 0 and not isinstance(divisor, bool):
        raise ValueError(f"{function}: divisor must be positive and finite in float32, got {divisor}")
    loss, lse, _ = _engine(function, given).linear_cross_entropy(**given, function=function)
    return (loss, lse) if return_lse else loss


def _divided(function: str, given: dict[str, Any], return_lse: bool) -> Any:
    """A sum by a divisor that is an array, which nobody waits for."""
    divisor = given.pop("divisor")
    if namespace(function, "divisor", divisor) is not namespace(function, "input", given["input"]):
        got = type(divisor).__name__
        raise TypeError(f"{function}: divisor must be a number, or an array as input is one, got {got}")
    if not _is_real(divisor):
        raise TypeError(f"{function}: divisor must be a number, or a dense array of a real one, got {divisor.dtype}")
    if tuple(divisor.shape) not in ((), (1,)):
        raise ValueError(f"{function}: divisor must be a number, or an array of one, got shape {list(divisor.shape)}")
    if getattr(divisor, "requires_grad", False):
        raise NotImplementedError(f"{function}: divisor must not require grad, got requires_grad = True")
    if (reduction := given.get("reduction", "mean")) != "mean":
        raise ValueError(f'{function}: divisor must be None but for reduction = "mean", got {reduction!r}')
    given["reduction"] = "sum"
    loss, lse, _ = _engine(function, given).linear_cross_entropy(**given, function=function)
    loss /= divisor.reshape(())  # in place, as numpy has no other arrays without dimensions
    return (loss, lse) if return_lse else loss


def _is_real(array: Any) -> bool:
    """Whether it has numbers that a loss can be divided by: of torch, or of an array namespace with kinds."""
    if hasattr(array, "is_sparse"):
        real = not array.is_complex() and str(array.dtype) != "torch.bool"
        return real and str(array.layout) == "torch.strided" and not array.is_meta
    return getattr(array.dtype, "kind", "none") in "iuf"


@public(_loss)
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
    """The cross entropy of logits input W^T + bias with tokens; logits are never in memory as a whole.

    Args:
        input: (..., H) in fp32, bf16 or fp16.
        linear_weight: (V, H), of the type of input.
        target: (...), tokens in int64 or int32: 0 to V - 1, or ignore_index. Probabilities are refused.
        linear_bias: (V,), of the type of input.
        weight: must be None.
        reduction: "mean" of the rows that count, "sum", or "none": a loss per row.
        ignore_index: rows with this target count for nothing: their loss and gradients are 0. None: -100.
        label_smoothing: e of (1 - e) loss + e times the mean of the loss over all tokens.
        softcap: logits become softcap * tanh(logits / softcap); None or 0: they stay.
        logit_scale: logits are multiplied by it, before softcap.
        z_loss: times the square of the log of the sum of a row's exponentials, which is added to its loss.
        divisor: with "mean", of the sum in place of the number of rows that count, as where batches are accumulated: a
            number or an array of one.
        workspace: bytes that logits may take: those of some rows, at least 64, are then kept, and gradients are made in
            the forward pass, in fp32. That is three products in place of four, and of a scalar loss only; where no
            gradients are wanted nothing is kept.
        return_lse: also gives the log of the sum of exponentials of each row, (...), in fp32.

    The loss is in fp32, as are all sums. It has gradients of input, linear_weight and linear_bias, and so has the LSE:
    the backward pass makes logits again, by blocks, so that memory beside the gradients is that of a value per row and
    some blocks. Gradients come in the same order each time.

    A target that is none raises on CPUs. On GPUs, where nothing waits for it, the loss and gradients are NaN. The mean
    of no rows is NaN. On GPUs a copy of input and linear_weight is made unless H is a multiple of 32.

    >>> import numpy as np, xeflash
    >>> x, weight = np.ones((3, 8), np.float32), np.ones((4, 8), np.float32)
    >>> xeflash.linear_cross_entropy(x, weight, np.array([0, 3, -100]))
    array(1.3862944, dtype=float32)
    """


def _log_prob(function: str, given: dict[str, Any]) -> Any:
    core = _engine(function, given)
    return core.linear_cross_entropy(**given, reduction="none", log_prob=True, function=function)[0]


@public(_log_prob)
def linear_log_prob(
    input: Any,
    linear_weight: Any,
    target: Any,
    *,
    linear_bias: Any = None,
    softcap: float | None = 0.0,
    logit_scale: float | None = 1.0,
) -> Any:
    """Log-probabilities (...) of the tokens `target` (...) by logits input W^T + bias, in fp32.

    The arguments are those of ``linear_cross_entropy``, and so are gradients; there is no token that is ignored.

    >>> import numpy as np, xeflash
    >>> x, weight = np.ones((2, 8), np.float32), np.ones((4, 8), np.float32)
    >>> xeflash.linear_log_prob(x, weight, np.array([0, 3]))
    array([-1.3862944, -1.3862944], dtype=float32)
    """


def _top_k(function: str, given: dict[str, Any]) -> Any:
    return _engine(function, given, ()).linear_top_k(**given, function=function)


@public(_top_k)
def linear_top_k(
    input: Any,
    linear_weight: Any,
    k: int,
    *,
    linear_bias: Any = None,
    softcap: float | None = 0.0,
    logit_scale: float | None = 1.0,
) -> Any:
    """The k largest logits input W^T + bias of each row (..., k), the largest first, and their tokens, in int64.

    The arguments are those of ``linear_cross_entropy``. k is 1 to 64. Logits are in fp32. Of equal ones the lower
    token comes first. One that is no number counts as -inf. There are no gradients.

    >>> import numpy as np, xeflash
    >>> values, tokens = xeflash.linear_top_k(np.ones((1, 8), np.float32), np.eye(4, 8, dtype=np.float32), 2)
    >>> tokens
    array([[0, 1]])
    """


def _argmax(function: str, given: dict[str, Any]) -> Any:
    return _engine(function, given, ()).linear_top_k(**given, k=1, argmax=True, function=function)[1]


@public(_argmax)
def linear_argmax(
    input: Any,
    linear_weight: Any,
    *,
    linear_bias: Any = None,
    softcap: float | None = 0.0,
    logit_scale: float | None = 1.0,
) -> Any:
    """The token (...) of the largest logit input W^T + bias of each row, in int64; of equal ones the lowest.

    The arguments are those of ``linear_top_k``, without k. On CPUs, logits of up to 8 rows are in memory.

    >>> import numpy as np, xeflash
    >>> xeflash.linear_argmax(np.ones((2, 8), np.float32), np.eye(4, 8, dtype=np.float32))
    array([0, 0])
    """
