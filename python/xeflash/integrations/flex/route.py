"""torch's own flex_attention by xeflash: its operator's kernel above autograd asks a switch.

The operator gets functions that torch.compile has traced, and the tensors that they capture. It is called by compiled
graphs, by torch's own eager path, and while AOT autograd traces a graph, where it becomes xeflash's operator, which
every backend calls as it is. What is refused goes on to torch's kernel.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._higher_order_ops.flex_attention import flex_attention as operator
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention import flex_attention as module_of_torch

from xeflash.integrations._from_torch import Switch, are_plain, have_kernels
from xeflash.integrations.flex.attend import attend
from xeflash.integrations.flex.blocks import Blocks
from xeflash.integrations.flex.expressions import Refused
from xeflash.integrations.flex.kept import Found
from xeflash.integrations.flex.snippet import Snippet
from xeflash.torch_ops.library import requires_grad

MARK = "by_xeflash"  # among the kernel_options of a call that must not go on to torch
_NO_BACKWARD = (
    "FlexAttention does not support backward on CPU. Please set the input requires_grad to False or use another device."
)
_MOST = 64  # snippets of one function
_KEPT = {Tensor, torch.nn.Parameter, int, float, bool}  # others are traced, and have no values
_by_torch: dict[str, Any] = {}  # torch's own functions
_kept: Any = weakref.WeakKeyDictionary()  # snippets of traced functions, by what they are given


def _register() -> None:
    """Takes the place of torch's kernel above autograd, for good; asks the switch in each call."""
    if _by_torch:
        return
    _by_torch["kernel"] = operator.py_kernels[DispatchKey.Autograd]
    _by_torch["below"] = operator.py_kernels[DispatchKey.CompositeExplicitAutograd]
    _by_torch["validate_device"] = module_of_torch._validate_device
    operator.py_kernels[DispatchKey.Autograd] = functools.partial(_flex, "kernel")
    operator.py_kernels[DispatchKey.CompositeExplicitAutograd] = _below_autograd
    operator._dispatch_cache.clear()
    # A graph that was compiled for torch must not be found on disk by one that is compiled for us, and the reverse.
    operator._cacheable = False
    module_of_torch._validate_device = _validate_device


def _validate_device(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Checks as torch does, but for CPU tensors that require grad: those are refused where a call goes on to torch."""
    if query.device.type != "cpu" or not (torch.compiler.is_compiling() or switch.is_on()):
        _by_torch["validate_device"](query, key, value)


def _below_autograd(*arguments: Any) -> Any:
    """Runs torch's kernel, and a call of inference mode, which has not come through the one above autograd."""
    return _flex("below", *arguments) if torch.is_inference_mode_enabled() else _by_torch["below"](*arguments)


def _flex(
    by_torch: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Any],
    block_mask: tuple[Any, ...],
    scale: float,
    kernel_options: dict[str, Any],
    score_mod_other_buffers: tuple[Any, ...] = (),
    mask_mod_other_buffers: tuple[Any, ...] = (),
) -> Any:
    """Runs a call of torch's operator, which has its arguments; returns (out, LSE in base 2, no greatest scores)."""
    must = MARK in kernel_options
    kernel_options = {name: x for name, x in kernel_options.items() if name != MARK}
    buffers = score_mod_other_buffers, mask_mod_other_buffers
    arguments: Any = (query, key, value, score_mod, block_mask, scale, kernel_options, *buffers)
    is_first_look = type(query) is FakeTensor  # of torch.compile, which traces the call again
    if must or switch.is_on():
        try:
            result = _attend(*arguments)
        except (Refused, NotImplementedError):
            if must:
                raise
        else:
            if not is_first_look:
                switch.count(True)
            return result
        if not is_first_look:
            switch.count(False)
    if query.device.type == "cpu" and requires_grad(query, key, value):
        raise NotImplementedError(_NO_BACKWARD)
    return _by_torch[by_torch](*arguments)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Any, block_mask: tuple[Any, ...], scale: Any,
    kernel_options: dict[str, Any], score_buffers: tuple[Any, ...], mask_buffers: tuple[Any, ...],
) -> Any:  # fmt: skip
    if kernel_options.get("OUTPUT_MAX"):
        raise Refused("flex_attention: return_aux must not ask for max_scores")
    if not are_plain(query, key, value) or not have_kernels(query.shape[-1], value.shape[-1], query.device.type):
        raise Refused(f"flex_attention: query, key and value must be plain, got {query.dtype}, {query.shape[-1]} wide")
    device = query.device
    found = _found(score_mod, True, device, score_buffers), _found(block_mask[-1], False, device, mask_buffers)
    lists = block_mask[2:6]
    size = int(block_mask[-3]), int(block_mask[-2])  # a graph is of blocks of one size, also where lengths vary
    blocks = Blocks(lists[0], lists[1], lists[2], lists[3], size, block_mask[:2])
    out, lse = attend(query, key, value, *found, blocks, scale, True)
    in_base_2 = kernel_options.get("BACKEND") != "FLASH"
    return out, lse / math.log(2) if in_base_2 else lse, lse.new_empty(0)


def _found(function: Any, scores: bool, device: torch.device, buffers: Sequence[Any]) -> Found:
    """Returns the snippet of a traced function, kept with it."""
    tensors = [x for x in buffers if isinstance(x, Tensor)]
    key: Hashable = None
    kept: dict[Hashable, Snippet | Refused] = {}
    if isinstance(function, torch.fx.GraphModule) and _KEPT.issuperset(map(type, buffers)):
        of_each = ((x.dtype, x.shape, x.device) if isinstance(x, Tensor) else (type(x), x) for x in buffers)
        key, kept = (scores, device, *of_each), _kept.setdefault(function, {})
        if len(kept) > _MOST:
            kept.clear()
    snippet = kept.get(key)
    if snippet is None:
        try:
            snippet = Snippet(function, scores, device, buffers, tensors)
        except Refused as error:
            snippet = error
        kept[key] = snippet
    if isinstance(snippet, Refused):
        raise Refused(*snippet.args)
    return Found(snippet, tensors)


switch = Switch("flex", _register)
_register()
