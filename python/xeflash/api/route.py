"""Who runs a call: the extension, or torch's operators in its place."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

from xeflash import _core

if TYPE_CHECKING:
    from xeflash.call.schema import Engine

_operators: Any = None  # xeflash.torch_ops, once it was needed


def engine(function: str, q: Any, k: Any, v: Any, arrays: Mapping[str, Any], learned: Container[str] = ()) -> Engine:
    """What runs a call: the extension, or torch_ops in its place where torch has to see the call.

    `arrays` are all of the call, by the names that its caller knows; other values are passed over. Those that are not
    `learned` must not require grad.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "compiler"):  # torch is being imported, by another thread
        return _core
    if torch.compiler.is_dynamo_compiling():  # its guards would hold sys.modules to what it was before the import
        from xeflash import torch_ops

        torch_ops.wants_gradients(function, arrays, learned)
        return torch_ops
    operators = _operators or _load_operators()
    wanted = operators.wants_gradients(function, arrays, learned)
    return operators if wanted or (isinstance(q, torch.Tensor) and operators.needed(q, k, v)) else _core


def _load_operators() -> Any:
    """xeflash.torch_ops, when all of it is there: another thread may be importing it."""
    global _operators
    _operators = importlib.import_module("xeflash.torch_ops")
    return _operators
