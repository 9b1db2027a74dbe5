"""Attention as one writes it without FlashAttention: what the kernels are compared with, on the same devices."""

from __future__ import annotations

import importlib
from typing import Any

from xeflash import _core
from xeflash.api.route import operators_for
from xeflash.call.call import Call
from xeflash.call.schema import BHSD, OF_ATTENTION

importlib.import_module("xeflash.jit")  # makes kernels for the extension


def standard_attention(
    query: Any,
    key: Any,
    value: Any,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    bottom_right: bool = False,
) -> Any:
    """Computes softmax(scale Q K^T) V by three kernels that keep the scores and the probabilities in memory.

    The arguments are those of ``xeflash.attention`` in 4 dimensions, with ``enable_gqa=True``. It waits for its result.

    >>> import numpy as np
    >>> from xeflash.bench.standard import standard_attention
    >>> q, k = np.ones((1, 8, 5, 64), np.float32), np.ones((1, 2, 9, 64), np.float32)
    >>> standard_attention(q, k, k, is_causal=True, bottom_right=True).shape
    (1, 8, 5, 64)
    """
    given: dict[str, Any] = dict(
        function="standard_attention", layout=BHSD, q=query, k=key, v=value, softmax_scale=scale, causal=is_causal,
        bottom_right=bottom_right,
    )  # fmt: skip
    if operators_for(Call(given, OF_ATTENTION), query, key, value) is not None:
        raise NotImplementedError("standard_attention: it is for plain tensors, without torch.compile or autocast")
    return _core.standard_attention(**given)
