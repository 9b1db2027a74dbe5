"""What the public functions share: who runs a call, gradients, windows, seeds."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Container, Mapping
from operator import index
from typing import TYPE_CHECKING, Any

from xeflash import _core, _random, _score_mod
from xeflash.call import schema

if TYPE_CHECKING:
    from xeflash.call.schema import Engine

_LIMIT = 2**63

schema.check(_core.call_fields(), _core.learned_names())

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


def shape_of(function: str, name: str, array: Any) -> tuple[int, ...]:
    """The shape of an argument; raises a TypeError for what has none."""
    try:
        return tuple(array.shape)
    except Exception as error:  # nested tensors raise a RuntimeError
        raise TypeError(
            f"{function}: {name} must be a torch tensor, a numpy array or have __sycl_usm_array_interface__, "
            f"got {type(array).__name__}"
        ) from error


def snippet(core: Any, function: str, score_mod: str | None, captures: Mapping[str, Any] | None) -> Any:
    """score_mod with its captures, checked; if the call goes through an operator, by that: checks cannot be traced."""
    if score_mod is None and not captures:
        return None
    if captures is not None and not isinstance(captures, Mapping):
        raise TypeError(f"{function}: captures must be a mapping of names to values, got {type(captures).__name__}")
    if core is not _core and isinstance(score_mod, str):
        return score_mod, captures or {}
    return _score_mod.check(function, score_mod, captures)


def window(function: str, size: Any) -> tuple[int, int]:
    """window_size as two integers, -1 for None; a torch tensor of two is accepted as flash-attn's tests pass one."""
    try:
        sides = [-1 if side is None else index(side) for side in size]
        if any(isinstance(side, bool) for side in size):
            raise TypeError
    except TypeError as error:
        raise TypeError(f"{function}: window_size must be two integers (left, right), got {size!r}") from error
    if len(sides) != 2:
        raise ValueError(f"{function}: window_size must have 2 entries, got {len(sides)}")
    for side in sides:
        if not -1 <= side < _LIMIT:
            raise ValueError(
                f"{function}: window_size must be -1 (unlimited) or not negative and below 2^63, got {side}"
            )
    return sides[0], sides[1]


def take_window(function: str, given: dict[str, Any]) -> None:
    """Puts the sides of window_size in its place."""
    if "window_size" in given:
        given["window_left"], given["window_right"] = window(function, given.pop("window_size"))


def seeds(
    function: str, dropout_p: float, array: Any, rng: tuple[int, int] | None = None, core: Any = _core
) -> tuple[Any, int]:
    """(seed, offset) of a call on `array`: what is given, else the next of the generator; an operator draws its own."""
    if not dropout_p:
        return 0, 0
    if rng is None:
        if core is not _core:
            return None, 0
        seed, offset = _random.next_rng(function, array)
    else:
        try:
            seed, offset = map(index, rng)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{function}: rng must be two integers (seed, offset), got {rng!r}") from error
    return seed % 2**64, offset % 2**64
