"""FlashAttention for Intel GPUs, and for any x86-64 CPU through SYCL's CPU device.

The functions of flash-attn 2 with their signatures (``flash_attn_func`` and its packed and variable-length forms), and
``attention`` in the convention of ``torch.nn.functional.scaled_dot_product_attention``. Arrays are torch tensors, numpy
arrays, or anything with ``__sycl_usm_array_interface__``; results are of the same kind, on the same device.

>>> import numpy as np, xeflash
>>> q = k = v = np.ones((1, 5, 2, 64), np.float32)  # batch, sequence, heads, head dim
>>> xeflash.flash_attn_func(q, k, v, causal=True).shape
(1, 5, 2, 64)
"""

from xeflash import _runtime

_runtime.load()

from xeflash import jit as jit  # noqa: E402
from xeflash._random import manual_seed  # noqa: E402
from xeflash.flash_attn import (  # noqa: E402
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
)
from xeflash.sdpa import attention  # noqa: E402

__version__ = "0.1.0"

__all__ = [
    "attention",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "manual_seed",
]
