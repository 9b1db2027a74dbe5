"""Where functions of flex_attention may have what they read: each place gives a function, and what puts new things there."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flex_examples import Mod
from torch import Tensor, nn

Put = Callable[[Tensor, float], None]
Place = Callable[[], tuple[Any, Put]]
PLACES: dict[str, Place] = {}
SLOPE, FACTOR = torch.zeros(4), 0.1


def place(make: Place) -> Place:
    PLACES[make.__name__.strip("_").replace("_", "-")] = make
    return make


def changes(slope: Tensor, factor: float = 0.1) -> Mod:
    return lambda s, b, h, q, k: s + slope[h] * (k - q) * factor


@place
def globals_of_a_module():
    def change(s, b, h, q, k):
        return s + SLOPE[h] * (k - q) * FACTOR

    return change, lambda slope, factor: globals().update(SLOPE=slope, FACTOR=factor)


@place
def another_module():
    settings = types.ModuleType("settings")

    def change(s, b, h, q, k):
        return s + settings.slope[h] * (k - q) * settings.factor

    return change, lambda slope, factor: vars(settings).update(slope=slope, factor=factor)


@place
def a_function_of_another_module():
    """Which a global of this one names."""
    settings = types.ModuleType("settings")
    exec("def changed(s, h, q, k): return s + slope[h] * (k - q) * factor", vars(settings))

    def change(s, b, h, q, k):
        return settings.changed(s, h, q, k)

    return change, lambda slope, factor: vars(settings).update(slope=slope, factor=factor)


@place
def default_arguments():
    def change(s, b, h, q, k, slope=None, factor=None):
        return s + slope[h] * (k - q) * factor

    def put(slope, factor):
        change.__defaults__ = (slope, factor)

    return change, put


@place
def defaults_of_keywords():
    def change(s, b, h, q, k, *, slope=None, factor=None):
        return s + slope[h] * (k - q) * factor

    return change, lambda slope, factor: setattr(change, "__kwdefaults__", {"slope": slope, "factor": factor})


@place
def cells():
    slope = factor = None

    def change(s, b, h, q, k):
        return s + slope[h] * (k - q) * factor

    def put(*given):
        nonlocal slope, factor
        slope, factor = given

    return change, put


@place
def cells_of_an_inner_function():
    slope = factor = None

    def bias(h, distance):
        return slope[h] * distance * factor

    def change(s, b, h, q, k):
        return s + bias(h, k - q)

    def put(*given):
        nonlocal slope, factor
        slope, factor = given

    return change, put


@place
def an_inner_function_that_is_replaced():
    inner = None

    def change(s, b, h, q, k):
        return inner(s, b, h, q, k)

    def put(slope, factor):
        nonlocal inner
        inner = changes(slope, factor)

    return change, put


@place
def a_list():
    both: list[Any] = [None, None]

    def change(s, b, h, q, k):
        return s + both[0][h] * (k - q) * both[1]

    def put(*given):
        both[:] = given

    return change, put


@place
def a_list_that_grows():
    """The last of its elements counts."""
    both: list[Any] = []

    def change(s, b, h, q, k):
        return s + both[-1][0][h] * (k - q) * both[-1][1]

    return change, lambda *given: both.append(given)


@place
def dictionaries():
    both: dict[str, Any] = {"of": {}}

    def change(s, b, h, q, k):
        return s + both["of"]["slope"][h] * (k - q) * both["of"]["factor"]

    return change, lambda slope, factor: both["of"].update(slope=slope, factor=factor)


@place
def attributes_of_a_config():
    config = types.SimpleNamespace(layer=types.SimpleNamespace())

    def change(s, b, h, q, k):
        return s + config.layer.slope[h] * (k - q) * config.layer.factor

    return change, lambda slope, factor: vars(config.layer).update(slope=slope, factor=factor)


class Slots:
    __slots__ = ("factor", "slope")


@place
def slots():
    config = Slots()

    def change(s, b, h, q, k):
        return s + config.slope[h] * (k - q) * config.factor

    def put(slope, factor):
        config.slope, config.factor = slope, factor

    return change, put


@dataclass
class Called:
    slope: Any = None
    factor: Any = None

    def __call__(self, s, b, h, q, k):
        return s + self.slope[h] * (k - q) * self.factor

    def change(self, s, b, h, q, k):
        return self(s, b, h, q, k)

    @property
    def doubled(self):
        return self.factor * 2


@place
def an_object():
    made = Called()
    return made, lambda slope, factor: vars(made).update(slope=slope, factor=factor)


@place
def a_method():
    made = Called()
    return made.change, lambda slope, factor: vars(made).update(slope=slope, factor=factor)


@place
def a_property():
    made = Called()

    def change(s, b, h, q, k):
        return s + made.slope[h] * (k - q) * made.doubled

    return change, lambda slope, factor: vars(made).update(slope=slope, factor=factor)


@place
def a_class():
    class Settings:
        slope = factor = None

    def change(s, b, h, q, k):
        return s + Settings.slope[h] * (k - q) * Settings.factor

    def put(slope, factor):
        Settings.slope, Settings.factor = slope, factor

    return change, put


@place
def a_partial():
    def change(slope, s, b, h, q, k, *, of):
        return s + slope[h] * (k - q) * of["factor"]

    of: dict[str, float] = {}
    slope = torch.empty(4)

    def put(given, factor):
        slope.copy_(given)
        of["factor"] = factor

    return functools.partial(change, slope, of=of), put


@place
def a_decorated_function():
    both = Called()

    def added(function):
        @functools.wraps(function)
        def called(s, *given):
            return s + function(*given) * both.factor

        return called

    @added
    def change(b, h, q, k):
        return both.slope[h] * (k - q)

    return change, lambda slope, factor: vars(both).update(slope=slope, factor=factor)


@place
def a_module_of_torch():
    class Layer(nn.Module):
        def forward(self, s, b, h, q, k):
            return s + self.slope[h] * (k - q) * self.factor

    layer = Layer()

    def put(slope, factor):
        layer.register_buffer("slope", slope)
        layer.factor = factor

    return layer, put


@place
def an_array_of_numpy():
    both = np.zeros(1)
    slope = torch.empty(4)

    def change(s, b, h, q, k):
        return s + slope[h] * (k - q) * float(both[0])

    def put(given, factor):
        slope.copy_(given)
        both[0] = factor

    return change, put


@place
def a_generator_of_slopes():
    """An object that computes what it gives."""

    class Computed:
        def __getattr__(self, name):
            return made[name]

    made: dict[str, Any] = {}
    computed = Computed()

    def change(s, b, h, q, k):
        return s + computed.slope[h] * (k - q) * computed.factor

    return change, lambda slope, factor: made.update(slope=slope, factor=factor)
