"""Checks of a call whose tensors have no memory, as torch traces it: what the extension refuses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from xeflash import _core
from xeflash.call.call import Call
from xeflash.runtime.interop import Placeholder

SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


class _UnknownError(Exception):
    """A size that depends on data."""


def check_shapes(call: Call) -> None:
    """Checks the shapes of q, k, v and caches by the rules of the extension.

    Sizes that may vary count as what they are in the call that is traced.
    """
    made: dict[int, Placeholder] = {}
    try:
        given = {name: _at_present(x, made) for name, x in call.arguments.items()}
    except _UnknownError:
        return
    _core.check_shapes(**given, words=call.words)


def _at_present(x: Any, made: dict[int, Placeholder]) -> Any:
    if isinstance(x, SYMBOLS):
        if (now := x.node.hint) is None:
            raise _UnknownError
        return now
    if not isinstance(x, Tensor):
        return x
    if id(x) not in made:
        shape, strides = (tuple(_at_present(n, made) for n in sizes) for sizes in (x.shape, x.stride()))
        xpu = (x.device.index or 0) if x.device.type == "xpu" else -1
        made[id(x)] = Placeholder(shape, str(x.dtype).removeprefix("torch."), strides=strides, xpu=xpu)
    return made[id(x)]
