"""Places of a number that no code names, or names only by itself, beside a tensor that is easily found."""

from __future__ import annotations

import collections
import contextvars
import enum
import functools
import operator
import os
import sys
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any

import torch
from flex_places import Called, Put, place
from torch import nn

FACTOR = 0.1


def beside(read: Callable[[], float], write: Callable[[float], Any]) -> tuple[Any, Put]:
    slope = torch.empty(4)

    def change(s, b, h, q, k):
        return s + slope[h] * (k - q) * read()

    def put(given, factor):
        slope.copy_(given)
        write(factor)

    return change, put


@place
def items_of_an_object():
    class Config:
        def __init__(self):
            self.values = {}

        def __getitem__(self, name):
            return self.values[name]

    config = Config()
    return beside(lambda: config["factor"], lambda x: config.values.update(factor=x))


@place
def a_dictionary_of_users():
    config: Any = collections.UserDict()
    return beside(lambda: config["factor"], lambda x: config.update(factor=x))


@place
def operators_of_an_object():
    class Times:
        def __mul__(self, other):
            return other * self.state

    times = Times()
    return beside(lambda: times * 1.0, lambda x: setattr(times, "state", x))


@place
def an_object_that_is_iterated():
    class Config:
        def __iter__(self):
            return iter([self.state])

    config = Config()
    return beside(lambda: next(iter(config)), lambda x: setattr(config, "state", x))


@place
def an_object_that_is_unpacked():
    class Config:
        def __iter__(self):
            return iter([self.state])

    config = Config()

    def read():
        (factor,) = config
        return factor

    return beside(read, lambda x: setattr(config, "state", x))


@place
def a_context():
    class Config:
        def __enter__(self):
            return self.state

        def __exit__(self, *error):
            return None

    config = Config()

    def read():
        with config as factor:
            return factor

    return beside(read, lambda x: setattr(config, "state", x))


@place
def a_float_of_an_object():
    class Config:
        def __float__(self):
            return self.state

    config = Config()
    return beside(lambda: float(config), lambda x: setattr(config, "state", x))


@place
def a_comparison_of_objects():
    class Config:
        def __lt__(self, other):
            return self.state < other

    config = Config()
    return beside(lambda: 0.05 if config < 0.2 else 0.4, lambda x: setattr(config, "state", x))


@place
def a_class_that_is_called():
    class Config:
        state = 0.0

        def __init__(self):
            self.factor = self.state

    return beside(lambda: Config().factor, lambda x: setattr(Config, "state", x))


@place
def a_descriptor():
    class Read:
        def __get__(self, owner, kind):
            return self.state

    class Config:
        factor = Read()

    config = Config()
    return beside(lambda: config.factor, lambda x: setattr(vars(Config)["factor"], "state", x))


@place
def a_cached_property():
    class Config:
        @functools.cached_property
        def factor(self):
            return self.state

    config = Config()

    def write(x):
        vars(config).pop("factor", None)
        config.state = x

    return beside(lambda: config.factor, write)


@place
def attributes_that_are_computed():
    state: dict[str, Any] = {}

    class Config:
        def __getattribute__(self, name):
            return state[name] if name == "factor" else object.__getattribute__(self, name)

    config = Config()
    return beside(lambda: config.factor, lambda x: state.update(factor=x))


@place
def properties_of_a_class():
    state: dict[str, Any] = {}

    class Kind(type):
        factor = property(lambda self: state["factor"])

    class Config(metaclass=Kind):
        pass

    return beside(lambda: Config.factor, lambda x: state.update(factor=x))


@place
def attributes_of_a_function():
    def read():
        return read.factor

    return beside(read, lambda x: vars(read).update(factor=x))


@place
def attributes_of_a_partial():
    called: Any = functools.partial(int)
    return beside(lambda: called.factor, lambda x: vars(called).update(factor=x))


@place
def attributes_of_a_tensor():
    tensor: Any = torch.zeros(1)
    return beside(lambda: tensor.factor, lambda x: vars(tensor).update(factor=x))


@place
def whether_a_tensor_requires_grad():
    tensor = torch.zeros(1)
    return beside(lambda: 0.1 if tensor.requires_grad else 0.3, lambda x: tensor.requires_grad_(x < 0.2))


@place
def strides_of_a_tensor():
    tensor = torch.zeros(9)
    return beside(lambda: 0.1 * tensor.stride(0), lambda x: tensor.as_strided_((3,), (round(x * 10),)))


@place
def a_module_that_the_function_imports():
    settings = sys.modules["settings_of_a_test"] = types.ModuleType("settings_of_a_test")

    def read():
        import settings_of_a_test

        return settings_of_a_test.factor

    return beside(read, lambda x: vars(settings).update(factor=x))


@place
def names_that_the_function_imports():
    settings = sys.modules["settings_of_a_test"] = types.ModuleType("settings_of_a_test")

    def read():
        from settings_of_a_test import factor

        return factor

    return beside(read, lambda x: vars(settings).update(factor=x))


class Settings:
    factor = 0.0


@place
def an_attribute_by_operator():
    config, factor_of = Settings(), operator.attrgetter("factor")
    return beside(lambda: factor_of(config), lambda x: setattr(config, "factor", x))


@place
def a_method_by_operator():
    config, factor_of = {}, operator.methodcaller("get", "factor")
    return beside(lambda: factor_of(config), lambda x: config.update(factor=x))


@place
def an_attribute_by_a_partial():
    config = Settings()
    return beside(functools.partial(getattr, config, "factor"), lambda x: setattr(config, "factor", x))


@place
def a_name_that_is_a_value():
    config, name, read = Settings(), "factor", getattr
    return beside(lambda: read(config, name), lambda x: setattr(config, "factor", x))


@place
def a_name_in_two_parts():
    config = Settings()
    return beside(lambda: getattr(config, "".join(("fac", "tor"))), lambda x: setattr(config, "factor", x))


@place
def a_function_that_looks_like_torchs():
    """It has the name of another one, and reads globals of its own."""

    @functools.wraps(nn.functional.silu)
    def read():
        return FACTOR

    return beside(read, lambda x: globals().update(FACTOR=x))


@place
def a_mode_of_torch():
    now = [torch.no_grad]

    def read():
        with now[0]():
            return 0.3 if torch.is_grad_enabled() else 0.1

    return beside(read, lambda x: now.__setitem__(0, torch.enable_grad if x > 0.2 else torch.no_grad))


@place
def a_method_of_a_named_tuple():
    class Config(typing.NamedTuple):
        power: int

        def read(self):
            return FACTOR**self.power

    config = Config(1)
    return beside(lambda: config.read(), lambda x: globals().update(FACTOR=x))


@place
def a_method_of_an_enum():
    class Config(enum.Enum):
        ONE = 1

        def read(self):
            return FACTOR * self.value

    return beside(lambda: Config.ONE.read(), lambda x: globals().update(FACTOR=x))


@place
def a_module_with_attributes_that_are_computed():
    settings, state = types.ModuleType("settings"), {}
    vars(settings)["__getattr__"] = lambda name: state[name]
    return beside(lambda: settings.factor, lambda x: state.update(factor=x))


@place
def a_variable_of_the_environment():
    return beside(lambda: float(os.environ["FACTOR_OF_A_TEST"]), lambda x: os.environ.update(FACTOR_OF_A_TEST=str(x)))


@place
def a_variable_of_a_context():
    variable: contextvars.ContextVar[float] = contextvars.ContextVar("factor")
    return beside(variable.get, variable.set)


@place
def a_weak_reference():
    config = Called()
    weak = weakref.ref(config)
    return beside(lambda: weak().factor, lambda x: setattr(config, "factor", x))


@place
def a_counter():
    """A generator that gives the same number until it is told another."""
    now = [0.0]

    def numbers():
        while True:
            yield now[0]

    made = numbers()
    return beside(lambda: next(made), lambda x: now.__setitem__(0, x))


@place
def an_instance_with_a_method_of_its_own():
    made: Any = Called()
    return beside(lambda: made.read(), lambda x: setattr(made, "read", lambda: x))


@place
def a_base_class():
    class Base:
        def read(self):
            return self.factor

    class Config(Base):
        def read(self):
            return super().read() * 1

    config = Config()
    return beside(lambda: config.read(), lambda x: setattr(config, "factor", x))


@place
def a_class_of_another_time():
    """An object's class is replaced."""

    class One:
        factor = 0.1

    config: Any = One()
    return beside(lambda: config.factor, lambda x: setattr(config, "__class__", type("Two", (), {"factor": x})))


@place
def hooks_of_a_module():
    layer, hooks = nn.Identity(), []

    def write(x):
        for hook in hooks:
            hook.remove()
        hooks[:] = [layer.register_forward_hook(lambda layer, given, found: found * x)]

    return beside(lambda: layer(1.0), write)
