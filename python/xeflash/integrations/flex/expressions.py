"""Expressions of C++ for one score, and the operations that torch's functions apply to them, by torch's rules.

Where the rules differ from C++'s: ``/`` of integers gives a float, ``//`` and ``%`` round down, bools stay bools. An
expression knows whether it may be negative, so that most divisions of positions are plain ones.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch

_BIG = 1 << 31
_KINDS = ("bool", "int", "float")
_LARGEST = float(np.finfo(np.float32).max)
_MOST_FACTORS = 64  # of a power


class Refused(NotImplementedError):
    """A function says something that no snippet of C++ can say, or a call asks for what xeflash does not have."""


@dataclass(eq=False)
class Expr:
    """One value in the computation of a score. Its code has {0}, {1}, ... in the places of the values it is made of."""

    code: str
    kind: str  # one of _KINDS
    of: tuple[Expr, ...] = ()
    deps: frozenset[str] = frozenset()  # of s, b, h, q and k
    natural: bool = False  # it is never negative
    value: Any = None  # of a number
    capture: Any = None  # the array that it reads, at `of`
    stays: bool = False  # its number is a divisor, which stays in the text

    @property
    def is_literal(self) -> bool:
        """Returns whether it is a number that is known, other than a size of a traced tensor."""
        return self.value is not None and bool(self.code)

    def __add__(self, other: Expr) -> Expr:
        return _arithmetic("+", operator.add, self, other)

    def __sub__(self, other: Expr) -> Expr:
        return _arithmetic("-", operator.sub, self, other)

    def __mul__(self, other: Expr) -> Expr:
        return _arithmetic("*", operator.mul, self, other)

    def __truediv__(self, other: Expr) -> Expr:
        return join("({0} / {1})", "float", as_float(self), as_float(other), natural=self.natural and other.natural)

    def __neg__(self) -> Expr:
        x = as_number(self)
        return literal(-x.value) if x.is_literal else join("(-{0})", x.kind, x)


Op: TypeAlias = Callable[..., Expr]


def literal(value: Any) -> Expr:
    """Returns a number's expression; a size of a traced tensor has no text."""
    if isinstance(value, bool):
        return Expr("true" if value else "false", "bool", value=value, natural=True)
    if isinstance(value, int):
        return Expr(f"{value}" if value >= 0 else f"({value})", "int", value=value, natural=value >= 0)
    if not isinstance(value, float):  # torch.SymInt or SymFloat
        return Expr("", "float" if type(value).__name__ == "SymFloat" else "int", value=value)
    if math.isnan(value):
        raise Refused("numbers must not be NaN")
    if abs(value) > _LARGEST:
        return Expr("inf" if value > 0 else "(-inf)", "float", value=math.copysign(math.inf, value), natural=value > 0)
    text = f"{np.float32(value)}f"
    return Expr(text if math.copysign(1, value) > 0 else f"({text})", "float", value=value, natural=value >= 0)


_ZERO, _ONE, _TWO, _HALF, _INF = map(literal, (0.0, 1.0, 2.0, 0.5, math.inf))


def join(code: str, kind: str, *of: Expr, natural: bool = False) -> Expr:
    """Returns an expression of others."""
    for x in of:
        if isinstance(x.value, int) and not -_BIG < x.value < _BIG:
            raise Refused(f"integers must be below 2^31, got {x.value}")
    return Expr(code, kind, of, frozenset().union(*(x.deps for x in of)), natural)


def common(*of: Expr) -> str:
    """Returns the kind that values are converted to when they meet."""
    return max((x.kind for x in of), key=_KINDS.index)


def as_float(x: Expr) -> Expr:
    """Converts to float."""
    if x.kind == "float":
        return x
    return literal(float(x.value)) if x.is_literal else join("number({0})", "float", x, natural=x.natural)


def as_int(x: Expr) -> Expr:
    """Converts to an integer, towards zero."""
    if x.kind == "int":
        return x
    if x.is_literal and abs(x.value) < _BIG:
        return literal(int(x.value))
    return join("whole({0})" if x.kind == "float" else "({0} + 0)", "int", x, natural=x.natural or x.kind == "bool")


def as_bool(x: Expr) -> Expr:
    """Converts to a bool."""
    return x if x.kind == "bool" else literal(bool(x.value)) if x.is_literal else join("({0} != 0)", "bool", x)


def as_number(x: Expr) -> Expr:
    """Converts a bool to an integer, as arithmetic does."""
    return as_int(x) if x.kind == "bool" else x


TO: dict[str, Op] = {"float": as_float, "int": as_int, "bool": as_bool}


def _wrapped(bits: int, signed: bool) -> Op:
    """Returns the conversion of an integer to a narrower one."""
    low, mask = literal(1 << bits - 1 if signed else 0), literal((1 << bits) - 1)
    return lambda x: _bits("&")(x + low, mask) - low


# ---- arithmetic ---------------------------------------------------------------------------------


def _arithmetic(sign: str, fold: Callable[[Any, Any], Any], a: Expr, b: Expr) -> Expr:
    a, b = as_number(a), as_number(b)
    kind, neutral = common(a, b), 1 if sign == "*" else 0
    if a.is_literal and b.is_literal:
        return literal(fold(a.value, b.value))
    if b.is_literal and b.value == neutral and a.kind == kind:
        return a
    if a.is_literal and a.value == neutral and b.kind == kind and sign != "-":
        return b
    return join(f"({{0}} {sign} {{1}})", kind, a, b, natural=sign != "-" and a.natural and b.natural)


def _divisor(x: Expr) -> Expr:
    """Returns a divisor whose number stays in the text, where the compiler can replace the division."""
    return replace(as_number(x), stays=x.is_literal and bool(x.value))


def _shift(x: Expr) -> int | None:
    """Returns the exponent of a literal power of two."""
    return (
        x.value.bit_length() - 1 if isinstance(x.value, int) and x.value > 0 and not x.value & (x.value - 1) else None
    )


def _is_rounded_up(b: Expr) -> str:
    """Returns the text that says whether C++ has rounded {0} / {1} up, not down."""
    positive = isinstance(b.value, int) and b.value > 0
    return "{0} % {1} < 0" if positive else "({0} % {1} != 0) & (({0} % {1} < 0) != ({1} < 0))"


def _divide(a: Expr, b: Expr, rounding_mode: str | None = None) -> Expr:
    if rounding_mode is None:
        return a / b
    if common(a, b) == "float":
        return (_floor if rounding_mode == "floor" else _truncate)(a / b)
    a, b = as_number(a), _divisor(b)
    if (bits := _shift(b)) is not None and rounding_mode == "floor":  # >> rounds down
        return join(f"({{0}} >> {bits})", "int", a, natural=a.natural)
    natural = a.natural and b.natural
    down = "" if natural or rounding_mode == "trunc" else f" - select({_is_rounded_up(b)}, 1, 0)"
    return join(f"({{0}} / {{1}}{down})", "int", a, b, natural=natural)


def _remainder(a: Expr, b: Expr) -> Expr:
    """Returns a % b, which has the sign of b."""
    if common(a, b) == "float":
        return a - _floor(a / b) * b
    a, b = as_number(a), _divisor(b)
    if _shift(b) is not None:
        return join(f"({{0}} & {b.value - 1})", "int", a, natural=True)
    up = "" if a.natural and b.natural else f" + select({_is_rounded_up(b)}, {{1}}, 0)"
    return join(f"({{0}} % {{1}}{up})", "int", a, b, natural=b.natural)


def _fmod(a: Expr, b: Expr) -> Expr:
    """Returns the remainder of a / b, which has the sign of a."""
    if common(a, b) == "float":
        return a - _truncate(a / b) * b
    return join("({0} % {1})", "int", as_number(a), _divisor(b), natural=a.natural)


def _of_bools(bits: str, by: Op) -> Op:
    """Returns an operation that keeps two bools bools."""
    return lambda a, b: _bits(bits)(a, b) if a.kind == b.kind == "bool" else by(a, b)


def _scaled(by: Op) -> Op:
    return lambda x, y, alpha=None: by(x, y if alpha is None else y * alpha)


# ---- comparisons, bits and choices --------------------------------------------------------------


def compare(sign: str) -> Op:
    """Returns a comparison. A number beyond all integers of a snippet is still more, or less, than they are."""

    def side(x: Expr) -> Expr:
        return literal(float(x.value)) if isinstance(x.value, int) and abs(x.value) >= _BIG else x

    return lambda a, b: join(f"({{0}} {sign} {{1}})", "bool", side(a), side(b))


def _bits(sign: str) -> Op:
    def of(a: Expr, b: Expr) -> Expr:
        kind = common(a, b)
        if kind == "bool":  # C++ makes integers of two bools
            return join(f"({{0}} {'!=' if sign == '^' else sign} {{1}})", kind, a, b)
        natural = a.natural and b.natural if sign != "&" else a.natural or b.natural
        return join(f"({{0}} {sign} {{1}})", kind, as_number(a), as_number(b), natural=natural)

    return of


def _shifted(sign: str) -> Op:
    return lambda a, b: join(f"({{0}} {sign} {{1}})", "int", as_number(a), as_number(b), natural=a.natural)


def _logical(sign: str) -> Op:
    return lambda a, b: _bits(sign)(as_bool(a), as_bool(b))


def choose(c: Expr, a: Expr, b: Expr) -> Expr:
    """Returns a where c holds, else b."""
    c, to = as_bool(c), TO[common(a, b)]
    if c.value is not None:
        return to(a) if c.value else to(b)
    return join("select({0}, {1}, {2})", common(a, b), c, to(a), to(b), natural=a.natural and b.natural)


def _has_slope(x: Expr) -> bool:
    """Returns whether gradients may flow through a value."""
    reads = x.code == "s" or (x.capture is not None and x.kind == "float")
    return reads or (x.kind == "float" and any(map(_has_slope, x.of)))


def _extreme(name: str, natural: Callable[[tuple[bool, bool]], bool]) -> Op:
    def of(a: Expr, b: Expr) -> Expr:
        are_natural = natural((a.natural, b.natural))
        return join(f"{name}({{0}}, {{1}})", common(a, b), as_number(a), as_number(b), natural=are_natural)

    return of


_smaller, _larger = _extreme("min", all), _extreme("max", any)


def _shared(by: Op) -> Op:
    """Returns an operation whose operands share its gradient where they are equal."""

    def of(a: Expr, b: Expr) -> Expr:
        if not _has_slope(a) and not _has_slope(b):
            return by(a, b)
        return choose(compare("==")(a, b), (a + b) * _HALF, by(a, b))

    return of


def _clamp(x: Expr, min: Expr | None = None, max: Expr | None = None) -> Expr:
    x = x if min is None else _larger(min, x)  # equal numbers are x, which has the gradient
    return x if max is None else _smaller(max, x)


def _sign(x: Expr) -> Expr:
    zero, one = TO[as_number(x).kind](_ZERO), TO[as_number(x).kind](_ONE)
    return choose(compare(">")(x, zero), one, choose(compare("<")(x, zero), -one, zero))


# ---- functions ----------------------------------------------------------------------------------


def _function(name: str) -> Op:
    return lambda x: join(f"{name}({{0}})", "float", as_float(x), natural=name in ("exp", "exp2", "sqrt"))


_exp, _exp2, _log, _log2, _sqrt, _sin, _cos, _tanh = map(
    _function, ("exp", "exp2", "log", "log2", "sqrt", "sin", "cos", "tanh")
)


def _absolute(x: Expr) -> Expr:
    x = as_number(x)
    made = x if x.natural else join("abs({0})", x.kind, x, natural=True)
    return choose(compare("==")(x, _ZERO), _ZERO, made) if made is not x and _has_slope(x) else made


def _floor(x: Expr) -> Expr:
    return x if x.kind != "float" else join("floor({0})", "float", x, natural=x.natural)


def _ceil(x: Expr) -> Expr:
    return x if x.kind != "float" else -_floor(-x)


def _truncate(x: Expr) -> Expr:
    return _floor(x) if x.natural or x.kind != "float" else choose(compare("<")(x, _ZERO), _ceil(x), _floor(x))


def _round(x: Expr, decimals: Expr | None = None) -> Expr:
    """Rounds to the nearest integer, and to an even one where two are as near."""
    if x.kind != "float":
        return x
    if decimals is not None and decimals.value != 0:
        raise Refused("a number of decimals")
    below = _floor(x)
    rest, half = x - below, below * _HALF
    odd_tie = _logical("&")(compare("==")(rest, _HALF), compare("!=")(half, _floor(half)))
    return below + choose(_logical("|")(compare(">")(rest, _HALF), odd_tie), _ONE, _ZERO)


def _log1p(x: Expr) -> Expr:
    """Returns log(1 + x), corrected by what 1 + x has lost."""
    more = _ONE + as_float(x)
    return choose(compare("==")(more, _ONE), as_float(x), _log(more) * (x / (more - _ONE)))


def _sigmoid(x: Expr) -> Expr:
    """Returns 1 / (1 + e^-x); a power that is inf would make its slope NaN."""
    return _ONE / (_ONE + _exp(_smaller(-as_float(x), replace(literal(87.0), stays=True))))


def _power(x: Expr, n: Expr) -> Expr:
    if not n.is_literal:
        if common(x, n) != "float" and x.value == 2 and n.natural:
            return join("(1 << {0})", "int", n, natural=True)
        if common(x, n) != "float" or not x.is_literal or x.value <= 0:
            raise Refused("a power whose base and exponent vary")
        return _exp2(as_float(n) * literal(math.log2(x.value)))
    exponent, kind = float(n.value), common(x, n)
    if exponent < 0:
        return _ONE / _power(as_float(x), -n)
    if exponent == 0.5:
        return _sqrt(x)
    if not exponent.is_integer():
        return _exp2(_log2(x) * literal(exponent))
    if exponent > _MOST_FACTORS:
        raise Refused(f"a power above {_MOST_FACTORS}")
    result, base, left = TO[kind](_ONE), TO[kind](x), int(exponent)
    while left:
        result = result * base if left & 1 else result
        base, left = (base * base if left > 1 else base), left >> 1
    return result


# By the names of torch's operators, of those that remain after its decompositions.
POINTWISE: dict[str, Op] = {
    **{"add": _scaled(_of_bools("|", operator.add)), "sub": _scaled(operator.sub), "mul": _of_bools("&", operator.mul)},
    **{"div": _divide, "remainder": _remainder, "fmod": _fmod, "pow": _power, "neg": operator.neg, "abs": _absolute},
    **{"lt": compare("<"), "le": compare("<="), "gt": compare(">"), "ge": compare(">=")},
    **{"eq": compare("=="), "ne": compare("!="), "sign": _sign, "where": choose, "clamp": _clamp},
    **{"logical_and": _logical("&"), "logical_or": _logical("|"), "logical_xor": _logical("^")},
    **{"bitwise_and": _bits("&"), "bitwise_or": _bits("|"), "bitwise_xor": _bits("^")},
    **{name: _shifted("<<") for name in ("bitwise_left_shift", "__lshift__")},
    **{name: _shifted(">>") for name in ("bitwise_right_shift", "__rshift__")},
    "logical_not": lambda x: join("(!{0})", "bool", as_bool(x)),
    "bitwise_not": lambda x: join("(!{0})" if x.kind == "bool" else "(~{0})", x.kind, x),
    **{"minimum": _shared(_smaller), "maximum": _shared(_larger), "relu": lambda x: _larger(x, TO[x.kind](_ZERO))},
    **{"exp": _exp, "exp2": _exp2, "expm1": lambda x: _exp(x) - _ONE, "log": _log, "log2": _log2, "log1p": _log1p},
    **{"log10": lambda x: _log2(x) * literal(math.log10(2)), "sigmoid": _sigmoid, "tanh": _tanh},
    **{"sqrt": _sqrt, "rsqrt": lambda x: _ONE / _sqrt(x), "reciprocal": lambda x: _ONE / x},
    **{"sin": _sin, "cos": _cos, "tan": lambda x: _sin(x) / _cos(x)},
    **{"floor": _floor, "ceil": _ceil, "trunc": _truncate, "round": _round},
    **{"isinf": lambda x: compare("==")(_absolute(x), _INF), "isnan": lambda x: compare("!=")(x, x)},
}
WRAP = {torch.uint8: _wrapped(8, False), torch.int8: _wrapped(8, True), torch.int16: _wrapped(16, True)}
FOLDS: dict[str, Op] = {
    **{"sum": operator.add, "prod": operator.mul, "amax": _larger, "amin": _smaller},
    **{"any": _logical("|"), "all": _logical("&")},
}
