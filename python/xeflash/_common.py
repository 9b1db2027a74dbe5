"""What the public functions share: who runs a call, gradients, windows, seeds."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

from xeflash import _core, _random, _score_mod

if TYPE_CHECKING:
    from xeflash._arguments import Engine

BSHD, THD, BHSD = 0, 1, 2  # Layout in forward.hpp


def engine(function: str, q: Any, k: Any, v: Any, *others: Any) -> Engine:
    """What runs a call on these arrays: the extension, or torch_ops in its place where torch has to see the call."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(q, torch.Tensor):
        return _core
    if torch.compiler.is_dynamo_compiling():  # its guards would hold sys.modules to what it was before the import
        from xeflash import torch_ops

        torch_ops.refuse_gradients(function, q, k, v, *others)
        return torch_ops
    operators: Any = sys.modules.get("xeflash.torch_ops") or importlib.import_module("xeflash.torch_ops")
    operators.refuse_gradients(function, q, k, v, *others)
    return operators if operators.needed(q, k, v) else _core


def snippet(core: Any, function: str, score_mod: str | None, captures: Mapping[str, Any] | None) -> Any:
    """score_mod with its captures, checked; if the call goes through an operator, by that: checks cannot be traced."""
    if score_mod is None and not captures:
        return None
    if core is not _core and isinstance(score_mod, str):
        return score_mod, captures or {}
    return _score_mod.check(function, score_mod, captures)


def window(function: str, size: Sequence[Any]) -> tuple[int, int]:
    """window_size as two integers; a torch tensor of two is accepted as flash-attn's tests pass one."""
    if len(size) != 2:
        raise ValueError(f"{function}: window_size must have 2 entries, got {len(size)}")
    return int(size[0]), int(size[1])


def seeds(
    function: str, dropout_p: float, array: Any, rng: tuple[int, int] | None = None, core: Any = _core
) -> tuple[Any, int]:
    """(seed, offset) of a call on `array`: what is given, else the next of the generator; an operator draws its own."""
    if not dropout_p:
        return 0, 0
    if rng is not None and len(rng) != 2:
        raise ValueError(f"{function}: rng must be (seed, offset), got {rng}")
    if rng is None and core is not _core:
        return None, 0
    seed, offset = map(index, rng) if rng is not None else _random.next_rng(function, array)
    return seed % 2**64, offset % 2**64
