"""``matmul_softmax``: a product of matrices whose rows become their softmax, without the product in memory."""

from __future__ import annotations

from typing import Any

from xeflash.api.route import run_product
from xeflash.call.bind import public
from xeflash.call.call import Call


@public()
def matmul_softmax(
    a: Any,
    b: Any,
    *,
    bias: Any = None,
    scale: float = 1.0,
    b_layout: str = "nk",
    log: bool = False,
    out: Any = None,
) -> Any:
    """Computes the softmax of the rows of scale * A B^T + bias, (..., M, N), without the whole product in memory.

    Args:
        a: (..., M, K) in fp32, bf16 or fp16. Batches of a and b broadcast.
        b: (..., N, K), or (..., K, N) with b_layout = "kn", of the type of a.
        bias: an array that broadcasts to the result, of the type of a or in fp32. Where it is -inf, the result is 0.
        scale: a number.
        b_layout: "nk" or "kn".
        log: return the logarithm of the softmax.
        out: where the result goes, with a contiguous last dimension; it must not share memory with the other arguments.

    A row of which all scores are -inf becomes 0; with log, -inf. Scores must be finite, or -inf by the bias: then so is
    the result. a, b and bias get gradients.

    Inputs (K) must lie side by side, else a copy is made: of b with "kn", unless it is the transpose of such an array.
    On GPUs a copy is made, too, unless K is 16 or a multiple of 32. A core takes 16 or 32 rows at a time, so that fewer
    rows leave the others idle.

    >>> import numpy as np, xeflash
    >>> a, b = np.ones((3, 8), np.float32), np.ones((4, 8), np.float32)
    >>> xeflash.matmul_softmax(a, b)[0]
    array([0.25, 0.25, 0.25, 0.25], dtype=float32)
    """


@matmul_softmax.body
def _(call: Call) -> Any:
    return run_product("matmul_softmax", call, "a", "b", "bias")
