"""Expressions of C++ for one score, and the operations that torch's functions apply to them, by torch's rules.

Where the rules differ from C++'s: ``/`` of integers gives a float, ``//`` and ``%`` round down, bools stay bools under
``&``, ``|`` and ``^``. An expression knows whether it may be negative, so that most divisions of positions are plain.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

_BIG = 1 << 31
_RANK = {"bool": 0, "int": 1, "float": 2}
_LARGEST = float(np.finfo(np.float32).max)


class Refused(NotImplementedError):
    """A function says something that no snippet of C++ can say, or a call asks for what xeflash does not have."""


@dataclass(eq=False)
class Expr:
    """One value in the computation of a score. Its code has {0}, {1}, ... in the places of the values it is made of."""

    code: str
    kind: str  # bool, int or float
    of: tuple[Expr, ...] = ()
    deps: frozenset[str] = frozenset()  # of s, b, h, q and k
    natural: bool = False  # it is never negative
    value: Any = None  # of a number
    capture: Any = None  # the array that it reads, at `of`
    stays: bool = False  # its number is a divisor, which stays in the text


Op: TypeAlias = Callable[..., Expr]


def literal(value: Any) -> Expr:
    """Returns a number's expression; a number of a traced shape has no text."""
    if isinstance(value, bool):
        return Expr("true" if value else "false", "bool", value=value, natural=True)
    if isinstance(value, int):
        return Expr(f"{value}" if value >= 0 else f"({value})", "int", value=value, natural=value >= 0)
    if not isinstance(value, float):  # torch.SymInt or SymFloat
        is_float = type(value).__name__ == "SymFloat"
        return Expr("", "float" if is_float else "int", value=value)
    if math.isnan(value):
        raise Refused("numbers must not be NaN")
    if abs(value) > _LARGEST:
        return Expr("inf" if value > 0 else "(-inf)", "float", value=math.copysign(math.inf, value), natural=value > 0)
    text = f"{np.float32(value)}f"
    return Expr(text if math.copysign(1, value) > 0 else f"({text})", "float", value=value, natural=value >= 0)


def join(code: str, kind: str, *of: Expr, natural: bool = False) -> Expr:
    """Returns an expression of others."""
    for x in of:
        if x.kind == "int" and isinstance(x.value, int) and not -_BIG < x.value < _BIG:
            raise Refused(f"integers must be below 2^31, got {x.value}")
    return Expr(code, kind, of, frozenset().union(*(x.deps for x in of)), natural)


def _common(*of: Expr) -> str:
    return max((x.kind for x in of), key=_RANK.__getitem__)


# ---- conversions --------------------------------------------------------------------------------


def as_float(x: Expr) -> Expr:
    """Converts to float."""
    if x.kind == "float":
        return x
    return literal(float(x.value)) if x.code and x.value is not None else join("number({0})", "float", x)


def as_int(x: Expr) -> Expr:
    """Converts to an integer, towards zero."""
    if x.kind == "int":
        return x
    return join("whole({0})" if x.kind == "float" else "({0} + 0)", "int", x, natural=x.natural or x.kind == "bool")


def as_bool(x: Expr) -> Expr:
    """Converts to a bool."""
    return x if x.kind == "bool" else join("({0} != 0)", "bool", x)


def as_number(x: Expr) -> Expr:
    """Converts a bool to an integer, as arithmetic does."""
    return as_int(x) if x.kind == "bool" else x


_TO: dict[str, Op] = {"float": as_float, "int": as_int, "bool": as_bool}


# ---- arithmetic ---------------------------------------------------------------------------------


def _arithmetic(sign: str) -> Op:
    fold = {"+": operator.add, "-": operator.sub, "*": operator.mul}[sign]
    neutral = 1 if sign == "*" else 0

    def of(a: Expr, b: Expr) -> Expr:
        a, b = as_number(a), as_number(b)
        kind = _common(a, b)
        if a.code and b.code and a.value is not None and b.value is not None:
            return literal(fold(a.value, b.value))
        if b.code and b.value == neutral and a.kind == kind:
            return a
        if a.code and a.value == neutral and b.kind == kind and sign != "-":
            return b
        return join(f"({{0}} {sign} {{1}})", kind, a, b, natural=sign != "-" and a.natural and b.natural)

    return of


add, subtract, multiply = _arithmetic("+"), _arithmetic("-"), _arithmetic("*")
_ONE, _ZERO, _HALF = literal(1.0), literal(0.0), literal(0.5)


def divide(a: Expr, b: Expr, rounding_mode: str | None = None) -> Expr:
    """Returns a / b, rounded down, towards zero, or not at all."""
    if rounding_mode == "floor":
        return floor_divide(a, b)
    if rounding_mode == "trunc" and _common(a, b) != "float":
        return join("({0} / {1})", "int", as_number(a), _divisor(as_number(b)), natural=a.natural and b.natural)
    quotient = join("({0} / {1})", "float", as_float(a), as_float(b), natural=a.natural and b.natural)
    return truncate(quotient) if rounding_mode == "trunc" else quotient


def _divisor(x: Expr) -> Expr:
    """Returns a divisor whose number stays in the text, where the compiler can replace the division."""
    return replace(x, stays=bool(x.code and x.value))


def _is_shift(x: Expr) -> bool:
    return isinstance(x.value, int) and x.value > 0 and x.value & (x.value - 1) == 0


def floor_divide(a: Expr, b: Expr) -> Expr:
    """Returns a // b."""
    if _common(a, b) == "float":
        return floor(divide(a, b))
    a, b = as_number(a), _divisor(as_number(b))
    if _is_shift(b):  # >> rounds down
        return join(f"({{0}} >> {b.value.bit_length() - 1})", "int", a, natural=a.natural)
    if a.natural and b.natural:
        return join("({0} / {1})", "int", a, b, natural=True)
    wrong = "{0} % {1} < 0" if isinstance(b.value, int) and b.value > 0 else _OTHER_SIGN
    return join(f"({{0}} / {{1}} - select({wrong}, 1, 0))", "int", a, b)


_OTHER_SIGN = "({0} % {1} != 0) & (({0} % {1} < 0) != ({1} < 0))"


def remainder(a: Expr, b: Expr) -> Expr:
    """Returns a % b, which has the sign of b."""
    if _common(a, b) == "float":
        return subtract(as_float(a), multiply(floor_divide(a, b), as_float(b)))
    a, b = as_number(a), _divisor(as_number(b))
    if _is_shift(b):
        return join(f"({{0}} & {b.value - 1})", "int", a, natural=True)
    if a.natural and b.natural:
        return join("({0} % {1})", "int", a, b, natural=True)
    wrong = "{0} % {1} < 0" if isinstance(b.value, int) and b.value > 0 else _OTHER_SIGN
    return join(f"({{0}} % {{1}} + select({wrong}, {{1}}, 0))", "int", a, b, natural=b.natural)


def fmod(a: Expr, b: Expr) -> Expr:
    """Returns the remainder of a / b, which has the sign of a."""
    if _common(a, b) != "float":
        return join("({0} % {1})", "int", as_number(a), _divisor(as_number(b)), natural=a.natural)
    return subtract(as_float(a), multiply(divide(a, b, "trunc"), as_float(b)))


# ---- comparisons, bits and choices --------------------------------------------------------------


def _comparison(sign: str) -> Op:
    def of(a: Expr, b: Expr) -> Expr:
        sides = (  # a number beyond all integers of a snippet is still more, or less, than they are
            literal(float(x.value)) if isinstance(x.value, int) and abs(x.value) >= _BIG else x for x in (a, b)
        )
        return join(f"({{0}} {sign} {{1}})", "bool", *sides)

    return of


_greater, _less, _equal, _unequal = _comparison(">"), _comparison("<"), _comparison("=="), _comparison("!=")


def _bits(sign: str) -> Op:
    def of(a: Expr, b: Expr) -> Expr:
        kind = _common(a, b)
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
    c = as_bool(c)
    if c.value is not None:
        return a if c.value else b
    to = _TO[_common(a, b)]
    return join("select({0}, {1}, {2})", _common(a, b), c, to(a), to(b), natural=a.natural and b.natural)


def smaller(a: Expr, b: Expr) -> Expr:
    """Returns the smaller of two values."""
    return join("min({0}, {1})", _common(a, b), a, b, natural=a.natural and b.natural)


def larger(a: Expr, b: Expr) -> Expr:
    """Returns the larger of two values."""
    return join("max({0}, {1})", _common(a, b), a, b, natural=a.natural or b.natural)


def _clamp(x: Expr, min: Expr | None = None, max: Expr | None = None) -> Expr:
    x = x if min is None else larger(x, min)
    return x if max is None else smaller(x, max)


def _inverted(x: Expr) -> Expr:
    return join("(!{0})", "bool", x) if x.kind == "bool" else join("(~{0})", "int", x)


def _sign(x: Expr) -> Expr:
    one, none = (_ONE, _ZERO) if x.kind == "float" else (literal(1), literal(0))
    return choose(_greater(x, none), one, choose(_less(x, none), negative(one), none))


# ---- functions ----------------------------------------------------------------------------------


def _function(name: str, natural: bool = False) -> Op:
    return lambda x: join(f"{name}({{0}})", "float", as_float(x), natural=natural)


_exp, _exp2, _log, _log2 = _function("exp", True), _function("exp2", True), _function("log"), _function("log2")
_sqrt, _sin, _cos, _tanh = _function("sqrt", True), _function("sin"), _function("cos"), _function("tanh")


def negative(x: Expr) -> Expr:
    """Returns -x."""
    x = as_number(x)
    return literal(-x.value) if x.code and x.value is not None else join("(-{0})", x.kind, x)


def absolute(x: Expr) -> Expr:
    """Returns |x|."""
    x = as_number(x)
    return x if x.natural else join("abs({0})", x.kind, x, natural=True)


def floor(x: Expr) -> Expr:
    """Rounds down."""
    return x if x.kind != "float" else join("floor({0})", "float", x, natural=x.natural)


def _ceil(x: Expr) -> Expr:
    return x if x.kind != "float" else negative(floor(negative(x)))


def truncate(x: Expr) -> Expr:
    """Rounds towards zero."""
    return floor(x) if x.natural or x.kind != "float" else choose(_less(x, _ZERO), _ceil(x), floor(x))


def _round(x: Expr) -> Expr:
    """Rounds to the nearest integer, and to an even one where two are as near."""
    if x.kind != "float":
        return x
    below = floor(x)
    rest, half = subtract(x, below), multiply(below, _HALF)
    up = _logical("|")(_greater(rest, _HALF), _logical("&")(_equal(rest, _HALF), _unequal(half, floor(half))))
    return add(below, choose(up, _ONE, _ZERO))


def _reciprocal(x: Expr) -> Expr:
    return divide(_ONE, x)


def _sigmoid(x: Expr) -> Expr:
    return divide(_ONE, add(_ONE, _exp(negative(as_float(x)))))


_MOST_FACTORS = 64


def _power(x: Expr, n: Expr) -> Expr:
    if not n.code or n.value is None:
        if _common(x, n) != "float":
            if x.value != 2 or not n.natural:
                raise Refused("an integer to the power of another, which varies")
            return join("(1 << {0})", "int", n, natural=True)
        if x.code and x.value is not None and x.value > 0:
            return _exp2(multiply(as_float(n), literal(math.log2(x.value))))
        raise Refused("a power whose base and exponent vary")
    exponent = float(n.value)
    if exponent.is_integer() and 0 <= exponent <= _MOST_FACTORS:
        result, base, left = (_ONE if x.kind == "float" else literal(1)), as_number(x), int(exponent)
        while left:
            result = multiply(result, base) if left & 1 else result
            base, left = (multiply(base, base) if left > 1 else base), left >> 1
        return as_float(result) if n.kind == "float" else result
    x = as_float(x)
    if exponent < 0:
        return _reciprocal(_power(x, literal(-n.value)))
    if exponent == 0.5:
        return _sqrt(x)
    if exponent.is_integer():
        raise Refused(f"a power above {_MOST_FACTORS}")
    return _exp2(multiply(_log2(x), literal(exponent)))


def _log1p(x: Expr) -> Expr:
    """Returns log(1 + x), corrected by what 1 + x has lost."""
    x = as_float(x)
    more = add(_ONE, x)
    return choose(_equal(more, _ONE), x, multiply(_log(more), divide(x, subtract(more, _ONE))))


def _expm1(x: Expr) -> Expr:
    """Returns e^x - 1, near 0 by tanh(x / 2)."""
    x = as_float(x)
    half = _tanh(multiply(x, _HALF))
    near = divide(multiply(literal(2.0), half), subtract(_ONE, half))
    return choose(_less(absolute(x), _ONE), near, subtract(_exp(x), _ONE))


def _scaled(x: Expr, y: Expr, alpha: Expr | None, by: Op) -> Expr:
    return by(x, y if alpha is None else multiply(y, alpha))


def _of_bools(bits: str, by: Op) -> Op:
    """Returns an operation that keeps two bools bools."""
    return lambda a, b: _logical(bits)(a, b) if a.kind == b.kind == "bool" else by(a, b)


# By the names of torch's operators.
POINTWISE: dict[str, Op] = {
    "add": lambda a, b, alpha=None: _scaled(a, b, alpha, _of_bools("|", add)),
    "sub": lambda a, b, alpha=None: _scaled(a, b, alpha, subtract),
    "rsub": lambda a, b, alpha=None: _scaled(b, a, alpha, subtract),
    "mul": _of_bools("&", multiply),
    "div": divide,
    "true_divide": divide,
    "floor_divide": floor_divide,
    "remainder": remainder,
    "fmod": fmod,
    "neg": negative,
    "abs": absolute,
    "sign": _sign,
    **{
        name: _comparison(sign)
        for name, sign in zip(("eq", "ne", "lt", "le", "gt", "ge"), ("==", "!=", "<", "<=", ">", ">="))
    },
    "logical_and": _logical("&"),
    "logical_or": _logical("|"),
    "logical_xor": _logical("^"),
    "logical_not": lambda x: _inverted(as_bool(x)),
    "bitwise_and": _bits("&"),
    "bitwise_or": _bits("|"),
    "bitwise_xor": _bits("^"),
    "bitwise_not": _inverted,
    "__and__": _bits("&"),
    "__or__": _bits("|"),
    "__xor__": _bits("^"),
    "bitwise_left_shift": _shifted("<<"),
    "__lshift__": _shifted("<<"),
    "bitwise_right_shift": _shifted(">>"),
    "__rshift__": _shifted(">>"),
    "where": choose,
    "masked_fill": lambda x, mask, value: choose(mask, _TO[x.kind](value), x),
    "minimum": smaller,
    "maximum": larger,
    "clamp": _clamp,
    "clamp_min": larger,
    "clamp_max": smaller,
    "exp": _exp,
    "exp2": _exp2,
    "log": _log,
    "log2": _log2,
    "log10": lambda x: multiply(_log2(x), literal(math.log10(2))),
    "sqrt": _sqrt,
    "rsqrt": lambda x: _reciprocal(_sqrt(x)),
    "tanh": _tanh,
    "sin": _sin,
    "cos": _cos,
    "tan": lambda x: divide(_sin(x), _cos(x)),
    "floor": floor,
    "ceil": _ceil,
    "trunc": truncate,
    "round": _round,
    "reciprocal": _reciprocal,
    "sigmoid": _sigmoid,
    "silu": lambda x: multiply(x, _sigmoid(x)),
    "relu": lambda x: larger(x, _ZERO if x.kind == "float" else literal(0)),
    "square": lambda x: multiply(x, x),
    "pow": _power,
    "log1p": _log1p,
    "expm1": _expm1,
    "isinf": lambda x: _equal(absolute(x), literal(math.inf)),
    "isnan": lambda x: _unequal(x, x),
}
FOLDS: dict[str, Op] = {
    "sum": add,
    "prod": multiply,
    "amax": larger,
    "amin": smaller,
    "max": larger,
    "min": smaller,
    "any": _logical("|"),
    "all": _logical("&"),
}
