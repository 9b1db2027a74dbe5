"""One thing that is wrong with an argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from memory import Array, Layout, place

NAN, INF = math.nan, math.inf


@dataclass(frozen=True)
class Mutation:
    argument: str
    wrong: str
    make: Callable[[], Any]  # the new value
    names: tuple[str, ...] = ()  # what may be named instead of the argument
    either: bool = False  # it may also be taken, if nothing breaks
    typed: bool = False  # a type that torch's operators refuse in words of their own
    also: tuple[tuple[str, Any], ...] = ()  # other arguments that change with it


def again(array: Array, values: torch.Tensor, **more: Any) -> Array:
    """Another array of its kind."""
    return place(values, array.kind, Layout(), **more)
