"""The choice of what runs a call: the extension, or torch's operators in its place."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Container
from typing import Any

from xeflash import _core
from xeflash.call.call import Call
from xeflash.call.ready import SNIPPETS, ready
from xeflash.call.schema import WITH_GRADIENTS

_operators: Any = None  # xeflash.torch_ops, once it was needed


def run(call: Call, learned: Container[str] = WITH_GRADIENTS) -> tuple[Any, Any]:
    """Runs a call in the schema's words, and captures; returns (out, LSE or None).

    Arguments that are not `learned` must not require grad.
    """
    given = call.arguments
    if "k_cache" in given:
        operators = operators_for(call, given["q"], given["k_cache"], given["v_cache"])
    else:
        operators = operators_for(call, given["q"], given["k"], given["v"], learned=learned)
    if operators is not None:
        return operators.attend(call)  # type: ignore[no-any-return]
    if "dropout_p" in given or not SNIPPETS.isdisjoint(given):
        given = ready(call).arguments
    return _core.forward(**given, words=call.words)


def run_product(name: str, call: Call, *arrays: str, learned: bool = True) -> Any:
    """Runs the extension's function `name` on a call; `arrays` names its first arguments."""
    given = call.arguments
    a, b, c = (given.get(x) for x in (*arrays, "", "")[:3])
    operators = operators_for(call, a, b, c, arrays if learned else ())
    return getattr(_core, name)(**given) if operators is None else operators.compute(name, call)


def operators_for(call: Call, a: Any, b: Any = None, c: Any = None, learned: Container[str] = ()) -> Any:
    """Returns torch_ops if torch has to see a call on these arrays, or None if the extension runs it.

    Arguments that are not `learned` must not require grad.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "compiler"):  # torch is being imported, by another thread
        return None
    if torch.compiler.is_dynamo_compiling():  # its guards would hold sys.modules to what it was before the import
        from xeflash import torch_ops

        torch_ops.check_gradients(call, learned)
        return torch_ops
    operators = _operators or _load_operators()
    wanted = operators.check_gradients(call, learned)
    return operators if wanted or (isinstance(a, torch.Tensor) and operators.needed(a, b, c)) else None


def refuse_shared(call: Call, name: str, array: Any) -> None:
    """Raises an error if writing `out` would change an argument."""
    torch = sys.modules.get("torch")
    is_tensor = isinstance(call["out"], getattr(torch, "Tensor", ()))
    where = (_operators or _load_operators()) if is_tensor else _core
    where.refuse_shared(call.function, call["out"], call.word(name), array)


def _load_operators() -> Any:
    """Loads xeflash.torch_ops as a whole, even while another thread imports it."""
    global _operators
    _operators = importlib.import_module("xeflash.torch_ops")
    return _operators
