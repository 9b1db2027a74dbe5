"""FlashAttention for Intel GPUs, and for any x86-64 CPU through SYCL's CPU device.

The functions of flash-attn 2 with their signatures (``flash_attn_func`` and its packed and variable-length forms), and
``attention`` in the convention of ``torch.nn.functional.scaled_dot_product_attention``. Arrays are torch tensors, numpy
arrays, or anything with ``__sycl_usm_array_interface__``; results are of the same kind, on the same device.

>>> import numpy as np, xeflash
>>> q = k = v = np.ones((1, 5, 2, 64), np.float32)  # batch, sequence, heads, head dim
>>> xeflash.flash_attn_func(q, k, v, causal=True).shape
(1, 5, 2, 64)
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from xeflash.runtime import extension

if TYPE_CHECKING:
    from xeflash.api.attention.attention import attention
    from xeflash.api.attention.flash_attn import (
        flash_attn_func,
        flash_attn_kvpacked_func,
        flash_attn_qkvpacked_func,
        flash_attn_varlen_func,
        flash_attn_varlen_kvpacked_func,
        flash_attn_varlen_qkvpacked_func,
    )
    from xeflash.api.attention.keep import keep_rows
    from xeflash.api.attention.kv_cache import flash_attn_with_kvcache
    from xeflash.api.attention.merge import merge_states
    from xeflash.api.attention.trees import pack_tree_mask
    from xeflash.api.attention.write import write_to_cache
    from xeflash.api.products.heads import linear_argmax, linear_cross_entropy, linear_log_prob, linear_top_k
    from xeflash.api.products.linear import linear
    from xeflash.api.products.matmul_softmax import matmul_softmax
    from xeflash.api.products.pack_int4 import pack_int4
    from xeflash.api.products.sample import linear_sample, sample
    from xeflash.call.random import manual_seed
    from xeflash.jit.precompile import warm_up

__version__ = "0.1.0"

__all__ = [
    "attention",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "keep_rows",
    "linear",
    "linear_argmax",
    "linear_cross_entropy",
    "linear_log_prob",
    "linear_sample",
    "linear_top_k",
    "manual_seed",
    "matmul_softmax",
    "merge_states",
    "pack_int4",
    "pack_tree_mask",
    "sample",
    "warm_up",
    "write_to_cache",
]

extension.check_interpreter()
# Both have to come before anyone in this process asks SYCL for devices.
extension.show_cpu_device()
if _simulated := os.environ.get("XEFLASH_SIM", "").strip():
    importlib.import_module("xeflash.sim").enable(_simulated)


def _register_operators() -> None:
    """Gives torch.ops.xeflash its operators, once torch is there."""
    # Where the extension cannot load, `xeflash doctor` says why. A thread that began with `import xeflash.torch_ops`
    # waits for this module: Python then sees a deadlock (a RuntimeError) here, and that thread registers the operators.
    with contextlib.suppress(ImportError, RuntimeError):
        extension.load()
        importlib.import_module("xeflash.torch_ops")


if hasattr(sys.modules.get("torch"), "compiler"):  # all of torch, not one that is being imported
    _register_operators()
elif "torch" not in sys.modules:
    extension.after_import("torch", _register_operators)

_MODULES = {  # modules of functions; all other functions are in flash_attn
    "attention": "api.attention.attention",
    "flash_attn_with_kvcache": "api.attention.kv_cache",
    "keep_rows": "api.attention.keep",
    "merge_states": "api.attention.merge",
    "pack_tree_mask": "api.attention.trees",
    "write_to_cache": "api.attention.write",
    "linear": "api.products.linear",
    "pack_int4": "api.products.pack_int4",
    "matmul_softmax": "api.products.matmul_softmax",
    **dict.fromkeys(("sample", "linear_sample"), "api.products.sample"),
    **dict.fromkeys(("linear_argmax", "linear_cross_entropy", "linear_log_prob", "linear_top_k"), "api.products.heads"),
    "manual_seed": "call.random",
    "warm_up": "jit.precompile",
}


def __getattr__(name: str) -> Any:
    """Loads the extension when a function is first asked for, so that `xeflash doctor` runs where it cannot load."""
    if name not in __all__:
        raise AttributeError(f"module 'xeflash' has no attribute {name!r}")
    extension.load()
    importlib.import_module("xeflash.jit")
    module = importlib.import_module(f"xeflash.{_MODULES.get(name, 'api.attention.flash_attn')}")
    value = globals()[name] = getattr(module, name)
    return value
