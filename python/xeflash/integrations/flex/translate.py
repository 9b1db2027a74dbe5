"""The translation of a traced function into an expression of C++.

Each node of the graph gets a value: an expression, a captured tensor of which some dimensions are indexed, a small
array of expressions, or a Python value. What depends on no position is computed by torch once, and captured. So is what
C++ cannot say but depends on the position of the query, or of the key, alone: it becomes a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from xeflash.integrations.flex.expressions import (
    FOLDS,
    POINTWISE,
    Expr,
    Refused,
    as_bool,
    as_float,
    as_int,
    choose,
    add,
    divide,
    join,
    literal,
)
from xeflash.integrations.flex.traced import SIDES, Traced

_MOST_UNROLLED = 64  # elements of an array of expressions
_MOST_RANK = 4  # of a captured array
READABLE = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.bool)  # by a kernel
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int64)
_INPUTS = {
    "s": Expr("s", "float", deps=frozenset("s")),
    **{name: Expr(name, "int", deps=frozenset(name), natural=True) for name in "bh"},
    **{name: Expr(f"{name}_idx", "int", deps=frozenset(name), natural=True) for name in "qk"},
}


def _kind(dtype: torch.dtype) -> str:
    return "bool" if dtype is torch.bool else "float" if dtype.is_floating_point else "int"


@dataclass(frozen=True)
class Capture:
    """An array that a snippet reads: a node's value for all positions of `side`, in that order of dimensions."""

    node: Node
    side: tuple[str, ...] = ()


@dataclass(eq=False)
class View:
    """A capture of which some dimensions are indexed: `at` has an expression, or None where one is free."""

    capture: Capture
    shape: tuple[Any, ...]
    dtype: torch.dtype
    at: tuple[Expr | None, ...]

    @staticmethod
    def of(node: Node, side: tuple[str, ...] = ()) -> View:
        value = node.meta["val"]
        at = (*(_INPUTS[name] for name in side), *[None] * value.dim())
        return View(Capture(node, side), (*[None] * len(side), *value.shape), value.dtype, at)

    def bind(self, free: int, index: Expr) -> View:
        """Indexes the free dimension of this number."""
        place = [i for i, x in enumerate(self.at) if x is None][free]
        return View(self.capture, self.shape, self.dtype, (*self.at[:place], index, *self.at[place + 1 :]))

    @property
    def free(self) -> tuple[int, ...]:
        """The sizes of the free dimensions."""
        return tuple(n for n, x in zip(self.shape, self.at, strict=True) if x is None)

    @property
    def deps(self) -> frozenset[str]:
        """What the indices depend on."""
        return frozenset().union(*(x.deps for x in self.at if x is not None))

    def read(self) -> Expr:
        """Returns the element where all dimensions are indexed."""
        if self.dtype not in (*READABLE, *_INTEGERS):
            raise Refused(f"captured tensors must be float32, float16, bfloat16, bool or integers, got {self.dtype}")
        if len(self.shape) > _MOST_RANK:
            raise Refused(f"captured tensors must have at most {_MOST_RANK} dimensions, got {len(self.shape)}")
        index = tuple(_from_end(x, n) for x, n in zip(self.at, self.shape, strict=True) if x is not None)
        return Expr("", _kind(self.dtype), index, self.deps, capture=self.capture)


def _from_end(x: Expr, size: Any) -> Expr:
    """Returns an index that counts from the beginning, as torch counts negative ones from the end."""
    if x.kind != "int":
        raise Refused(f"an index that is a {x.kind}")
    if isinstance(x.value, int) and isinstance(size, int):
        return literal(x.value % size if -size <= x.value < size else x.value)
    if x.natural:
        return x
    return choose(POINTWISE["lt"](x, literal(0)), add(x, literal(size)), x)


@dataclass(eq=False)
class Unsaid:
    """A value that no expression says, for this reason; it may become a table."""

    why: str
    deps: frozenset[str]
    node: Node


def translate(traced: Traced) -> Expr:
    """Returns a traced function's result as an expression; raises Refused."""
    return _Translator(traced).result()


class _Translator:
    def __init__(self, traced: Traced) -> None:
        self._traced = traced
        self._values: dict[Node, Any] = {}

    def result(self) -> Expr:
        for node in self._traced.graph.nodes:
            if node.op == "output":
                result = node.args[0][0] if isinstance(node.args[0], tuple | list) else node.args[0]
                return self._scalar(self._said(self._values[result] if isinstance(result, Node) else result))
            self._values[node] = self._value(node)
        raise AssertionError("a graph has an output")

    def _value(self, node: Node) -> Any:
        if node in self._traced.inputs:
            return _INPUTS[self._traced.inputs[node]]
        if node in self._traced.numbers:
            return literal(self._traced.numbers[node])
        if node.op in ("placeholder", "get_attr"):
            return self._captured(node)
        given = [map_arg(node.args, self._values.__getitem__), map_arg(node.kwargs, self._values.__getitem__)]
        leaves = [x for leaf in tree_leaves(given) for x in (leaf.flat if isinstance(leaf, np.ndarray) else (leaf,))]
        deps = frozenset().union(*(x.deps for x in leaves if isinstance(x, Expr | View | Unsaid)))
        if not isinstance(node.meta.get("val"), Tensor) and not deps:
            return _of_numbers(node, given)
        unsaid = next((x for x in leaves if isinstance(x, Unsaid)), None)
        if _side(deps) is not None and unsaid is not None:
            return Unsaid(unsaid.why, deps, node)
        if not deps and any(isinstance(x, View) for x in leaves):
            return View.of(node)  # of captured tensors alone
        try:
            arguments, more = map_arg_said(given, self._said)
            return self._call(node, arguments, more)
        except Refused as error:
            if not deps:
                return View.of(node)
            if _side(deps) is None:
                raise
            return Unsaid(str(error), deps, node)

    def _captured(self, node: Node) -> Any:
        number = self._traced.tensors[node]
        own = self._traced.own[number - self._traced.seen :] if number >= self._traced.seen else ()
        if own and own[0].dim() == 0 and type(own[0]) is Tensor:
            return literal(own[0].item())
        return View.of(next(n for n, i in self._traced.tensors.items() if i == number))

    def _said(self, x: Any) -> Any:
        """Returns x, or a table in its place."""
        if not isinstance(x, Unsaid):
            return x
        side = _side(x.deps)
        if side is None or not isinstance(x.node.meta.get("val"), Tensor):
            raise Refused(x.why)
        return View.of(x.node, side)

    # ---- forms of a value

    def _scalar(self, x: Any) -> Expr:
        if isinstance(x, Expr):
            return x
        if isinstance(x, View):
            for n in x.free:
                if n != 1:
                    raise Refused(f"a tensor of shape {list(x.free)} where a score has one value")
                x = x.bind(0, literal(0))
            return x.read()
        if isinstance(x, np.ndarray):
            if x.size != 1:
                raise Refused(f"a tensor of shape {list(x.shape)} where a score has one value")
            return x.item()
        return literal(x)

    def _elements(self, x: Any) -> np.ndarray:
        """Returns an array of expressions."""
        if isinstance(x, np.ndarray):
            return x
        free = x.free if isinstance(x, View) else ()
        if math.prod(free) > _MOST_UNROLLED:
            raise Refused(f"{math.prod(free)} elements in the computation of a score (at most {_MOST_UNROLLED})")
        made = np.empty(free, object)
        for place in np.ndindex(*free):
            one = x
            for i in place:
                one = one.bind(0, literal(i))
            made[place] = self._scalar(one)
        return made

    # ---- operations

    def _call(self, node: Node, arguments: Sequence[Any], more: dict[str, Any]) -> Any:
        name = (
            str(node.target._schema.name).rpartition("::")[2] if hasattr(node.target, "_schema") else str(node.target)
        )
        if (special := getattr(self, f"_op_{name}", None)) is not None:
            return special(node, *arguments, **more)
        if name in _SAME:
            return arguments[0]
        if name in _SHAPES:
            return self._shaped(node, arguments[0])
        if name in _FILLED:
            return self._filled(node, arguments, _FILLED[name])
        if name in FOLDS and not (name in ("max", "min") and isinstance(arguments[1:2], Expr)):
            return self._fold(FOLDS[name], *arguments, **more)
        if name in POINTWISE:
            return self._pointwise(POINTWISE[name], arguments, more)
        raise Refused(f"{name} of what depends on the score or on both positions")

    def _pointwise(self, f: Callable[..., Expr], arguments: Sequence[Any], more: dict[str, Any]) -> Any:
        keys, given = list(more), [*arguments, *more.values()]
        are_values = [isinstance(x, Expr | View | np.ndarray | bool | int | float | torch.SymInt) for x in given]
        arrays = np.broadcast_arrays(
            *(self._elements(x) for x, is_value in zip(given, are_values, strict=True) if is_value)
        )
        made = np.empty(arrays[0].shape, object)
        for place in np.ndindex(*made.shape):
            each = iter(arrays)
            one = [next(each)[place] if is_value else x for x, is_value in zip(given, are_values, strict=True)]
            made[place] = f(*one[: len(arguments)], **dict(zip(keys, one[len(arguments) :], strict=True)))
        return made if made.ndim else made.item()

    def _fold(self, f: Callable[[Expr, Expr], Expr], x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
        made = self._elements(x)
        dims = [dim] if isinstance(dim, int) else list(dim or range(made.ndim))
        for d in sorted((d % max(1, made.ndim) for d in dims), reverse=True):
            if made.ndim:
                made = np.asarray(_folded(f, np.moveaxis(made, d, 0)), object)
                made = np.expand_dims(made, d) if keepdim else made
        return made if made.ndim else made.item()

    def _op_mean(self, node: Node, x: Any, *arguments: Any, **more: Any) -> Any:
        total = self._fold(add, x, *arguments, **more)
        count = self._elements(x).size // max(1, self._elements(total).size)
        return self._pointwise(divide, [total, float(count)], {})

    def _op_index(self, node: Node, x: Any, indices: Sequence[Any]) -> Any:
        if not isinstance(x, View):
            raise Refused("an index of a computed tensor")
        free = 0
        for i in indices:
            if i is None:
                free += 1
            else:
                x = x.bind(free, self._scalar(i))
        return x

    def _op_select(self, node: Node, x: Any, dim: int, index: int) -> Any:
        if isinstance(x, View):
            return x.bind(dim % len(x.free), literal(index))
        return np.asarray(np.take(self._elements(x), index, axis=dim), object)

    def _op_getitem(self, node: Node, x: Any, index: int) -> Any:
        return x[index]

    def _op_unsqueeze(self, node: Node, x: Any, dim: int) -> Any:
        return np.expand_dims(self._elements(x), dim)

    def _shaped(self, node: Node, x: Any) -> np.ndarray:
        shape, made = [int(n) for n in node.meta["val"].shape], self._elements(x)
        return made.reshape(shape) if made.size == math.prod(shape) else np.broadcast_to(made, shape)

    def _op_stack(self, node: Node, xs: Sequence[Any], dim: int = 0) -> np.ndarray:
        return np.stack([self._elements(x) for x in xs], axis=dim)

    def _op_cat(self, node: Node, xs: Sequence[Any], dim: int = 0) -> np.ndarray:
        return np.concatenate([self._elements(x) for x in xs], axis=dim)

    def _op__to_copy(self, node: Node, x: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
        if dtype is None:
            return x
        if dtype is torch.float64 or dtype.is_complex:
            raise Refused(f"a conversion to {dtype}, as snippets compute in float32")
        if dtype.is_floating_point:  # scores are float32, as in torch's compiled kernels
            return self._pointwise(as_float, [x], {})
        return self._pointwise(as_bool if dtype is torch.bool else as_int, [x], {})

    _op_convert_element_type = _op__to_copy

    def _op_scalar_tensor(self, node: Node, value: Any, **_: Any) -> Expr:
        return self._typed(node, value)

    def _typed(self, node: Node, value: Any) -> Expr:
        """Returns a number in the type of a node."""
        x = self._scalar(value)
        to = {"float": as_float, "int": as_int, "bool": as_bool}[_kind(node.meta["val"].dtype)]
        return (
            literal({"float": float, "int": int, "bool": bool}[_kind(node.meta["val"].dtype)](x.value))
            if x.code and x.value is not None
            else to(x)
        )

    def _filled(self, node: Node, arguments: Sequence[Any], value: float | None) -> Any:
        made = np.empty([int(n) for n in node.meta["val"].shape], object)
        if made.size > _MOST_UNROLLED:
            raise Refused(f"{made.size} elements in the computation of a score (at most {_MOST_UNROLLED})")
        made.fill(self._typed(node, arguments[-1] if value is None else value))
        return made if made.ndim else made.item()


_SAME = ("alias", "detach", "clone", "lift_fresh_copy", "lift_fresh", "contiguous")
_SHAPES = ("view", "reshape", "expand", "squeeze", "_unsafe_view", "_reshape_copy")
_FILLED = {
    name: value
    for kind, value in (("full", None), ("zeros", 0), ("ones", 1))
    for name in (kind, f"{kind}_like", f"new_{kind}")
}


def _folded(f: Callable[[Expr, Expr], Expr], parts: np.ndarray) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = np.vectorize(f, otypes=[object])(total, part) if isinstance(total, np.ndarray) else f(total, part)
    return total


def map_arg_said(given: Any, said: Callable[[Any], Any]) -> Any:
    """Applies `said` to the values in nested lists and dicts."""
    if isinstance(given, dict):
        return {name: map_arg_said(x, said) for name, x in given.items()}
    return [map_arg_said(x, said) for x in given] if isinstance(given, list | tuple) else said(given)


def _of_numbers(node: Node, given: Sequence[Any]) -> Any:
    """Computes with numbers of Python, and those of traced shapes."""

    def number(x: Any) -> Any:
        return x.value if isinstance(x, Expr) else x

    arguments, more = map_arg_said(given, number)
    if any(isinstance(x, View) for x in arguments):  # a size
        name = str(node.target)
        if "sym_size" not in name:
            raise Refused(f"{name} of a captured tensor")
        return literal(arguments[0].shape[arguments[1]])
    return literal(node.target(*arguments, **more))


def _side(deps: frozenset[str]) -> tuple[str, ...] | None:
    """Returns the dimensions of a table of what depends on these, or None if there can be none."""
    return None if "s" in deps or {"q", "k"} <= deps else tuple(x for x in SIDES if x in deps)
