"""What is kept of functions that flex_attention has seen, and that a result always follows what they read now.

All functions here say the same with other numbers, so that they share the kernel of test_flex.py.
"""

from __future__ import annotations

import collections
import contextvars
import enum
import functools
import gc
import operator
import os
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import run_report
import torch
from flex_examples import Mod, Sizes
from flex_reference import Case, check
from test_flex import attend
from torch import Tensor, nn

SLOPES = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
KEPT = torch.rand(2, 53, generator=torch.Generator().manual_seed(2)) < 0.8
REACH = 20

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def mask(b, h, q, k):
    return KEPT[b, k] & (q + REACH >= k)


def changes(slope: Tensor, factor: float = 0.1) -> Mod:
    return lambda s, b, h, q, k: s + slope[h] * (k - q) * factor


def right(score_mod: Any, mask_mod: Any = mask, grad: bool = False) -> Tensor:
    """The result, which is checked."""
    case = Case(lambda z, of: (score_mod, mask_mod))
    with torch.enable_grad() if grad else torch.no_grad():
        found = case.by(attend, _nothing_learned, grad)
    check("kept", case, found)
    return found["out"]


class _Nothing:
    device, learned = "cpu", {}


_nothing_learned: Any = _Nothing()


def kernels() -> set[str]:
    return set(run_report.kernels_of_this_test())


# ---- where functions may have what they read ----------------------------------------------------

Put = Callable[[Tensor, float], None]
Place = Callable[[], tuple[Any, Put]]
PLACES: dict[str, Place] = {}
SLOPE, FACTOR = SLOPES[0], 0.1


def place(make: Place) -> Place:
    PLACES[make.__name__.strip("_").replace("_", "-")] = make
    return make


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


# ---- numbers that are not easily found, beside a tensor that is -----------------------------------


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


@pytest.mark.parametrize("where", PLACES)
def test_results_follow_what_is_read_now(where):
    score_mod, put = PLACES[where]()
    found, first = [], set()
    for slope, factor in ((SLOPES[0], 0.1), (SLOPES[0], 0.3), (SLOPES[1], 0.3), (SLOPES[0], 0.1)):
        put(slope, factor)
        found.append(right(score_mod))
        assert (first := first or kernels()) == kernels()
    assert torch.equal(found[0], found[3])
    assert not any(torch.allclose(found[i], found[i + 1], atol=1e-3) for i in range(3))


# ---- functions that are made anew ---------------------------------------------------------------


def test_functions_made_anew_share_a_kernel():
    def windows(reach):
        return lambda b, h, q, k: KEPT[b, k] & (q + reach >= k)

    first = set()
    for reach in (3, 7, 20, 52):
        right(changes(SLOPES[0] * 1, reach / 50), windows(reach))
        assert (first := first or kernels()) == kernels()


def test_a_tensor_that_died_leaves_nothing():
    """Another one often has its id, and its memory."""
    case = Case(lambda z, of: (None, mask))
    for i in range(12):
        slope = torch.full((4,), 0.1 * i)
        found = right(changes(slope))
        again = attend(case.q, case.k, case.v, changes(slope), mask)[0]
        assert torch.equal(found, again)
        died = weakref.ref(slope)
        del slope
        gc.collect()
        assert died() is None, "what is kept holds a tensor"


@pytest.mark.wide
def test_integers_of_64_bits_that_died_leave_nothing():
    for i in range(12):
        document = (torch.arange(53) + i) // (2 + i)
        right(None, lambda b, h, q, k, document=document: document[q] == document[k])
        died = weakref.ref(document)
        del document
        gc.collect()
        assert died() is None, "what is kept holds a tensor"


def test_an_object_that_died_leaves_nothing():
    for i in range(12):
        right(Called(SLOPES[i % 2], 0.02 * i + 0.01))
        gc.collect()


def test_functions_of_other_lines_are_other_functions():
    """Code that differs in its constants, or its names, only."""
    scope = {"SLOPE": SLOPES[0], "OTHER": SLOPES[1]}
    for name in ("SLOPE", "OTHER"):
        for factor in (0.1, 0.3):
            right(eval(f"lambda s, b, h, q, k: s + {name}[h] * (k - q) * {factor}", scope))


def test_code_that_is_replaced_counts():
    change = changes(SLOPES[0])

    def other(slope, factor):
        return lambda s, b, h, q, k: s + slope[h] * (k - q) * (factor * 3)

    before = right(change)
    change.__code__ = other(None, None).__code__
    assert not torch.allclose(right(change), before, atol=1e-3)


# ---- masks --------------------------------------------------------------------------------------


def test_a_mask_in_another_mask_follows():
    kept, reach = KEPT.clone(), 20

    def inner(b, h, q, k):
        return kept[b, k]

    def outer(b, h, q, k):
        return inner(b, h, q, k) & (q + reach >= k)

    change = changes(SLOPES[0])
    found = [right(change, outer)]
    reach = 3
    found.append(right(change, outer))
    kept[:, ::3] = False
    found.append(right(change, outer))
    kept = ~kept
    found.append(right(change, outer))
    reach = 30
    found.append(right(change, lambda b, h, q, k: inner(b, h, q, k) & (q + reach >= k)))
    assert all(not torch.equal(found[i], found[i + 1]) for i in range(4))


# ---- tensors that change ------------------------------------------------------------------------

IN_PLACE: dict[str, Callable[[Tensor], Any]] = {
    "operation": lambda x: x.mul_(2),
    "element": lambda x: x.__setitem__(1, 5.0),
    "view": lambda x: x[1:].neg_(),
    "copy": lambda x: x.copy_(SLOPES[1]),
    "data": lambda x: x.data.mul_(2),  # torch counts no version
    "other-data": lambda x: setattr(x, "data", SLOPES[1].clone()),
    "set": lambda x: x.set_(SLOPES[1].clone()),
    "numpy": lambda x: x.numpy().__setitem__(2, 7.0),
    "no-grad": lambda x: torch.add(x, 1, out=x),
}


@pytest.mark.parametrize("how", IN_PLACE)
def test_results_follow_a_tensor_that_is_written_to(how):
    slope = SLOPES[0].clone()
    change = changes(slope)
    before = right(change)
    IN_PLACE[how](slope)
    assert not torch.allclose(right(change), before, atol=1e-3)


def test_results_follow_the_base_of_a_view():
    base = SLOPES.clone()
    change = changes(base[1])
    before = right(change)
    base.mul_(3)
    assert not torch.allclose(right(change), before, atol=1e-3)


@pytest.mark.wide
def test_results_follow_integers_of_64_bits():
    """Which kernels read in 32."""
    reach = torch.tensor([20, 2**62], dtype=torch.int64)

    def mask(b, h, q, k):
        return q + reach[b] >= k

    change = changes(SLOPES[0])
    before, first = right(change, mask), kernels()
    reach[1] = 3
    assert not torch.equal(right(change, mask), before) and kernels() == first


@pytest.mark.wide
def test_results_follow_a_table_that_torch_computes():
    rate = torch.tensor([0.1, 0.2, 0.3, 0.4])

    def change(s, b, h, q, k):
        return s + torch.lgamma(q * rate[h] + 1) * torch.erf(k * 0.1)

    before = right(change)
    rate.mul_(2)
    middle = right(change)
    rate = torch.tensor([0.3, 0.1, 0.1, 0.2])
    assert not torch.equal(before, middle) and not torch.equal(middle, right(change))


@pytest.mark.wide
def test_two_names_of_a_tensor_may_part():
    one = other = SLOPES[0]

    def change(s, b, h, q, k):
        return s + one[h] * (k - q) * 0.1 + other[h] * q * 0.1

    right(change)
    other = SLOPES[1]
    right(change)
    one = other
    right(change)


@pytest.mark.wide
def test_shapes_may_change():
    table = torch.randn(4)

    def change(s, b, h, q, k):
        return s + table[(q + k) % table.shape[0]] * len(table)

    for size in (4, 7, 100, 4):
        table = torch.randn(size)
        right(change)


@pytest.mark.wide
def test_types_and_strides_may_change():
    """Of a tensor whose products are exact in all of them."""
    base, slope = torch.tensor([1.0, -2.0, 0.5, 4.0]), SLOPES[0]

    def change(s, b, h, q, k):
        return s + slope[h] * (k - q) * 0.125

    others = (base.bfloat16(), base.half(), base.int(), base > 0, base.long(), base.flip(0), torch.randn(8)[::2])
    for other in (base, *others, torch.randn(1).expand(4)):
        slope = other
        right(change)


@pytest.mark.wide
def test_a_choice_of_pythons_follows():
    """By a number, by whether there is a tensor, and by a tensor's value, which may be refused."""
    config = types.SimpleNamespace(causal=False, slope=None)

    def change(s, b, h, q, k):
        if config.slope is not None:
            s = s + config.slope[h] * (k - q)
        return torch.where(q >= k, s, -float("inf")) if config.causal else s

    for config.causal in (False, True):
        for config.slope in (None, SLOPES[0]):
            right(change)
    flag = torch.tensor(False)

    def chosen(s, b, h, q, k):
        return s * 2 if flag else s

    for value in (False, True, False):
        flag.fill_(value)
        try:
            right(chosen)
        except NotImplementedError:
            continue


# ---- gradients, modes, threads ------------------------------------------------------------------


def test_gradients_may_be_wanted_later():
    slope = SLOPES[0].clone()
    change = changes(slope)
    case = Case(lambda z, of: (change, mask))
    qkv = [x.clone().requires_grad_() for x in (case.q, case.k, case.v)]
    for wanted in (False, True, False, True):
        slope.requires_grad_(wanted)
        out, _ = attend(*qkv, change, mask)
        found = torch.autograd.grad(out.square().sum(), [*qkv, slope][: 4 if wanted else 3])
        assert all(dx.abs().max() > 0.1 for dx in found)
        assert attend(case.q, case.k, case.v, change, mask)[0].requires_grad == wanted


def test_a_number_is_learned_in_a_loop():
    """An optimiser writes to what is captured."""
    case = Case(lambda z, of: (None, mask))
    with torch.no_grad():
        want, _ = attend(case.q, case.k, case.v, changes(SLOPES[0]), mask)
    slope, losses = nn.Parameter(torch.zeros(4)), []
    qkv = [x.clone().requires_grad_() for x in (case.q, case.k, case.v)]
    optimiser = torch.optim.Adam([slope], lr=0.1)
    for _ in range(8):
        optimiser.zero_grad()
        out, _ = attend(*qkv, changes(slope), mask)
        loss = (out - want).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss))
    assert losses[-1] < 0.9 * losses[0]


def test_tensors_of_inference_mode_are_followed():
    with torch.inference_mode():
        slope = SLOPES[0].clone()
        change = changes(slope)
        before = right(change)
        slope.mul_(2)
        assert not torch.allclose(right(change), before, atol=1e-3)
    right(change)  # outside of it, too


def test_modes_share_what_is_kept():
    slope = SLOPES[0].clone().requires_grad_()
    case, change = Case(lambda z, of: (change, mask)), changes(slope)
    with torch.inference_mode():
        one = attend(case.q, case.k, case.v, change, mask)[0]
    with torch.no_grad():
        two = attend(case.q, case.k, case.v, change, mask)[0]
    three = attend(case.q, case.k, case.v, change, mask)[0]
    assert torch.equal(one, two) and torch.equal(two, three)
    assert three.requires_grad and not two.requires_grad


def test_threads_have_their_own_functions():
    """They call at once, for the first time and later."""
    begin, faults, found = threading.Barrier(4), [], {}
    case = Case(lambda z, of: (None, mask))

    def work(i):
        try:
            begin.wait()
            for n in range(5):
                with torch.no_grad():
                    found[i, n] = attend(
                        case.q, case.k, case.v, changes(SLOPES[i % 2], 0.03 * (5 * i + n) + 0.01), mask
                    )[0]
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults
    for i, n in found:
        assert torch.equal(found[i, n], right(changes(SLOPES[i % 2], 0.03 * (5 * i + n) + 0.01)))


@pytest.mark.wide
@pytest.mark.gpu
@pytest.mark.xpu
def test_devices_may_change(xpu):
    slope, kept = SLOPES[0], KEPT
    case = Case(lambda z, of: (change, seen), dtype=torch.bfloat16)

    def change(s, b, h, q, k):
        return s + slope[h] * (k - q) * 0.1

    def seen(b, h, q, k):
        return kept[b, k] & (q + 20 >= k)

    found = []
    for device in ("cpu", "xpu", "cpu", "xpu:1"):
        slope, kept = SLOPES[0].to(device), KEPT.to(device)
        found.append(attend(*(x.to(device) for x in (case.q, case.k, case.v)), change, seen)[0].cpu())
    for out in found[1:]:
        torch.testing.assert_close(out, found[0], rtol=2e-2, atol=2e-2)


# ---- sizes --------------------------------------------------------------------------------------


@pytest.mark.wide
def test_sizes_may_change():
    """Of calls with the same functions."""
    slope = SLOPES[0]

    def mask(b, h, q, k):
        return (q + REACH >= k) & KEPT[b, k % 53]

    for z in (Sizes(), Sizes(rows=1), Sizes(rows=300, keys=400), Sizes(batch=1), Sizes()):
        case = Case(lambda z, of: (changes(slope), mask), z)
        check("sizes", case, case.by(attend, _nothing_learned))
