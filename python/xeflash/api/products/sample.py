"""Sampling of tokens from logits, or from the logits of a language model's head."""

from __future__ import annotations

import math
from typing import Any

from xeflash.api.products.linear import product
from xeflash.api.route import operators_for, run_product
from xeflash.call.bind import public
from xeflash.call.call import Call
from xeflash.call.values import as_number, is_array, shape_of
from xeflash.tune.products import SAMPLED_ROWS

_OF_ROWS = {"seed": "seeds", "position": "positions", "temperature": "temperatures"}
_OF_ROWS |= {"top_k": "top_ks", "top_p": "top_ps", "min_p": "min_ps"}
_DEFAULT_IF_NONE = ("position", "temperature", "top_k", "top_p", "min_p", "softcap", "logit_scale")
_OF_HEAD = ("x", "weight", "bias", "scales", "zeros", "group", "order")
_OF_LOGITS = (*_OF_ROWS, "softcap", "logit_scale", "min_p_last")


def _drawn(call: Call) -> Any:
    """Draws the tokens of a call on logits."""
    by_row = _arrays_of_rows(call)
    numbers = {name: as_number(call.function, name, call[name], waits=True) for name in _OF_ROWS if name in call}
    changed = {name: x for name, x in numbers.items() if name not in by_row}
    words = {_OF_ROWS[name]: name for name in by_row}
    call = call.with_(*by_row, words=words, **changed, **{ours: call[name] for ours, name in words.items()})
    return run_product("sample", call, "logits", learned=False)


def _arrays_of_rows(call: Call) -> list[str]:
    """Returns the names of arguments that are given as an array with an entry for each row."""
    found = {name: call[name] for name in _OF_ROWS if name in call}
    return [name for name, x in found.items() if is_array(call.function, name, x) and x.shape != ()]


@public()
def sample(
    logits: Any,
    *,
    seed: Any,
    position: Any = 0,
    temperature: Any = 1.0,
    top_k: Any = 0,
    top_p: Any = 1.0,
    min_p: Any = 0.0,
    softcap: float | None = 0.0,
    logit_scale: float | None = 1.0,
    min_p_last: bool = False,
) -> Any:
    """Draws a token for each row of logits (..., V), in int64, from the softmax of the logits that the limits leave.

    Args:
        logits: fp32, bf16 or fp16. NaN is never drawn.
        seed: int64, one for each request. A number for all rows still draws different tokens for each row.
        position: int64, the position of the token in its request: it changes the token that is drawn.
        temperature: logits are divided by it; below 1e-5 the largest logit is taken, of equal ones the lowest token.
        top_k: int32: this many of the largest logits stay, and ties with the last of them; 0 and below: all.
        top_p: then the most probable tokens stay until they reach this share of the remaining probability, with the
            token that reaches it and its ties; at least one stays. 1: all.
        min_p: tokens stay whose probability is this share of the largest one's, at least. 0: all.
        softcap, logit_scale: as ``linear_cross_entropy`` has them; the scale is positive.
        min_p_last: min_p comes after top_k and top_p, as in Transformers; else before them, as in vLLM.

    seed, position, temperature, top_k, top_p and min_p are numbers, or arrays of one for each row (the floats in fp32),
    on the device of logits: nothing waits for them. A token depends on its row, seed and position alone:
    it is the same in every batch, if each row has its own seed. A row without finite logits gives -1. Sums are in fp32.

    >>> import numpy as np, xeflash
    >>> xeflash.sample(np.array([[1, 3, 2]], np.float32), seed=7, temperature=0)
    array([1])
    """


@sample.body
def _(call: Call) -> Any:
    return _drawn(call.without_none(*_DEFAULT_IF_NONE))


def _matrix(call: Call, shape: tuple[int, ...]) -> Any:
    """Reshapes x (..., H) to (rows, H)."""
    x = call["x"]
    if not shape:
        raise call.refuse("x", "must have at least 1 dimension", 0)
    if not hasattr(x, "reshape"):  # such as SYCL's own arrays
        raise call.refuse("x", "must be a torch tensor or a numpy array", type(x).__name__, NotImplementedError)
    try:
        return x if len(shape) == 2 else x.reshape(math.prod(shape[:-1]), shape[-1])
    except (NotImplementedError, RuntimeError) as error:  # raised for sparse tensors
        got = f"{type(x).__name__}: {error}"
        raise call.refuse("x", "must be a dense tensor or array", got, TypeError) from error


def _joined(arrays: list[Any]) -> Any:
    if hasattr(arrays[0], "new_empty"):
        import torch

        return torch.cat(arrays)
    import numpy as np

    return np.concatenate(arrays)


@public()
def linear_sample(
    x: Any,
    weight: Any,
    bias: Any = None,
    *,
    seed: Any,
    scales: Any = None,
    zeros: Any = None,
    group: int | None = None,
    order: Any = None,
    position: Any = 0,
    temperature: Any = 1.0,
    top_k: Any = 0,
    top_p: Any = 1.0,
    min_p: Any = 0.0,
    softcap: float | None = 0.0,
    logit_scale: float | None = 1.0,
    min_p_last: bool = False,
) -> Any:
    """Draws tokens (...) like ``sample`` from a head's logits: x (..., H) times weight (V, H) transposed, plus bias.

    Up to order, arguments are those of ``linear``, so the weight may be quantised; the others are those of ``sample``.
    x is a torch tensor or a numpy array. Logits are rounded to the type of x, as a model's head does, and are in memory
    for 64 rows at a time. Those of up to 8 rows are summed in another order than those of more, so where two tokens are
    as close as roundings, another batch may draw the other one. Temperature 0 makes it greedy.

    >>> import numpy as np, xeflash
    >>> xeflash.linear_sample(np.ones((2, 32), np.float32), np.eye(4, 32, dtype=np.float32), seed=1, temperature=0)
    array([0, 0])
    """


@linear_sample.body
def _(call: Call) -> Any:
    operators_for(call, call["x"], call["weight"])  # refuses gradients
    shape = shape_of(call.function, "x", call["x"])
    rows = _matrix(call, shape)
    call = call.without_none(*_DEFAULT_IF_NONE)
    by_row = {name: call[name] for name in _arrays_of_rows(call)}
    for name, numbers in by_row.items():
        if numbers.shape not in ((len(rows),), shape[:-1]):
            rule = f"must have a number for each of the {len(rows)} rows of x"
            raise call.refuse(name, rule, f"shape {list(numbers.shape)}")
        by_row[name] = numbers.reshape(-1)
    head_call, logits_call, tokens = call.with_(*_OF_LOGITS), call.with_(*_OF_HEAD), []
    for first in range(0, max(len(rows), 1), SAMPLED_ROWS):
        block = slice(first, first + SAMPLED_ROWS)
        logits = product(head_call.with_(x=rows[block]))
        if not logits.shape[-1]:
            raise call.refuse("weight", "must have rows, one of which is drawn", 0)
        block_arrays = {name: x[block] for name, x in by_row.items()}
        tokens.append(_drawn(logits_call.with_(logits=logits, first_row=first, **block_arrays)))
    return (tokens[0] if len(tokens) == 1 else _joined(tokens)).reshape(shape[:-1])
