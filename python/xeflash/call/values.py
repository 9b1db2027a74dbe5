"""Checks and conversions of arguments that public functions share: shapes, windows, snippets, seeds."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from operator import index
from typing import Any

from xeflash import _core
from xeflash.call import random, schema
from xeflash.call.score_mod import read_snippets

_LIMIT = 2**63

schema.check(_core.call_fields(), _core.fields(), _core.learned_names())


def shape_of(function: str, name: str, array: Any) -> tuple[int, ...]:
    """Returns the shape of an argument; raises a TypeError if it has none."""
    try:
        return tuple(array.shape)
    except Exception as error:  # nested tensors raise a RuntimeError
        raise TypeError(
            f"{function}: {name} must be a torch tensor, a numpy array or have __sycl_usm_array_interface__, "
            f"got {'a nested one' if getattr(array, 'is_nested', False) else type(array).__name__}"
        ) from error


def is_array(function: str, name: str, value: Any) -> bool:
    """Returns whether an argument that may be a number has a shape; raises a TypeError for a nested tensor."""
    if isinstance(value, int | float):  # symbolic numbers have no attributes
        return False
    try:
        return hasattr(value, "shape")
    except RuntimeError:
        return bool(shape_of(function, name, value))


def as_number(function: str, name: str, value: Any, waits: bool = False) -> Any:
    """Returns an array of one element in host memory as a number, and any other value as it is.

    `waits`: also an array in a device's memory, for which the call waits, or one that is being compiled. Tensors whose
    gradients are recorded stay tensors.
    """
    if not is_array(function, name, value) or tuple(value.shape) not in ((), (1,)):
        return value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        plain = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
        there = not value.is_meta if waits else value.is_cpu and not torch.compiler.is_compiling()
        recorded = value.requires_grad and torch.is_grad_enabled()
        return value.item() if plain and there and not recorded else value
    return value.item() if type(value).__module__ == "numpy" else value


def namespace(function: str, name: str, array: Any) -> Any:
    """Returns the functions that compute with an argument: torch, or its array namespace.

    Arrays that are memory alone have none, and are refused.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return torch
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    if type(array).__module__ == "numpy":  # numpy 1.x
        return sys.modules["numpy"]
    raise TypeError(
        f"{function}: {name} must be a torch tensor, or have __array_namespace__, got {type(array).__name__}"
    )


def host_sees(function: str, name: str, array: Any) -> bool:
    """Returns whether the host may look at the numbers of an array, without waiting for a device."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return isinstance(array, getattr(sys.modules.get("numpy"), "ndarray", ()))
    if torch.compiler.is_compiling() or hasattr(array, "fake_mode"):  # it has no numbers
        return False
    return array.is_cpu or _core.host_may_see(array, function, name)


def shown(value: Any) -> Any:
    """Returns how an error shows a value: a number itself, or the type of anything else."""
    return value if isinstance(value, int | float) else type(value).__name__


def flag(function: str, name: str, value: Any) -> bool:
    """Returns a boolean argument of Python or numpy as a bool; raises a TypeError for others."""
    if isinstance(value, bool):
        return value
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise TypeError(f"{function}: {name} must be True or False, got {value!r} ({type(value).__name__})")


def is_on(function: str, name: str, number: Any) -> bool:
    """Returns whether a number is not 0; raises a TypeError for arrays of several numbers."""
    try:
        return bool(number)
    except (RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"{function}: {name} must be a number, got {type(number).__name__}") from error


def snippet(function: str, score_mod: str | None, captures: Mapping[str, Any] | None) -> Any:
    """Checks score_mod and its captures; returns them in the form that the extension takes."""
    return snippets(function, score_mod, None, captures)[0]


def snippets(
    function: str, score_mod: str | None, mask_mod: str | None, captures: Mapping[str, Any] | None
) -> tuple[Any, Any]:
    """Checks score_mod, mask_mod and their captures; returns both in the form that the extension takes."""
    if captures is not None and not isinstance(captures, Mapping):
        raise TypeError(f"{function}: captures must be a mapping of names to values, got {type(captures).__name__}")
    if score_mod is None and mask_mod is None and not captures:
        return None, None
    return read_snippets(function, score_mod, mask_mod, captures)


def window(function: str, size: Any) -> tuple[int, int]:
    """Returns window_size as two integers, with -1 for None; takes a torch tensor of two, as flash-attn's tests do."""
    if size is None:
        return -1, -1
    if type(size) is tuple and len(size) == 2 and type(size[0]) is int and type(size[1]) is int:  # costs less
        sides = list(size)
    else:
        sides = _integers(function, size)
    if len(sides) != 2:
        raise ValueError(f"{function}: window_size must have 2 entries, got {len(sides)}")
    for side in sides:
        if not -1 <= side < _LIMIT:
            raise ValueError(
                f"{function}: window_size must be -1 (unlimited) or not negative and below 2^63, got {side}"
            )
    return sides[0], sides[1]


def _integers(function: str, size: Any) -> list[int]:
    try:
        sides = [-1 if side is None else index(side) for side in size]
        if any(isinstance(side, bool) for side in size):
            raise TypeError
    except (TypeError, RuntimeError) as error:  # tensors without data raise a RuntimeError
        raise TypeError(f"{function}: window_size must be two integers (left, right), got {size!r}") from error
    return sides


def seeds(function: str, array: Any, rng: tuple[int, int] | None = None) -> tuple[int, int]:
    """Returns the (seed, offset) of a call on `array`: `rng` if it is given, else the generator's next."""
    try:
        seed, offset = random.next_rng(function, array) if rng is None else map(index, rng)
    except (TypeError, ValueError) as error:
        if rng is None:
            raise
        raise TypeError(f"{function}: rng must be two integers (seed, offset), got {rng!r}") from error
    return seed % 2**64, offset % 2**64
