"""The translation of a traced function into an expression of C++.

Each node of the graph gets a value: an expression, a captured tensor of which some dimensions are indexed, a small
array of expressions, or a Python value. What depends on no position is computed by torch once, and captured. So is what
C++ cannot say but depends on the position of the query, or of the key, alone: it becomes a table.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import SymInt, Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node
from torch.fx.node import map_aggregate, map_arg
from torch.utils._pytree import tree_leaves

from xeflash.integrations.flex.expressions import FOLDS, POINTWISE, TO, WRAP, Expr, Op, Refused, choose, literal
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
_SAME = {"alias", "clone", "contiguous", "lift_fresh", "lift_fresh_copy"}
_SHAPES = {"view", "reshape", "expand", "unsqueeze", "squeeze", "_reshape_copy"}
_GROW = {"add", "sub", "mul", "neg", "abs", "pow", "bitwise_not", "bitwise_left_shift", "__lshift__", "div"}
_FILLED = {"scalar_tensor": None, "full": None, "full_like": None, "zeros": 0, "ones": 1}


@dataclass(frozen=True)
class Capture:
    """An array that a snippet reads: a node's value for all positions of `side`, in that order of dimensions."""

    node: Node
    side: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class View:
    """A capture of which some dimensions are indexed: `at` has an expression, or None where one is free."""

    capture: Capture
    shape: tuple[Any, ...]
    dtype: torch.dtype
    at: tuple[Expr | None, ...]

    @property
    def free(self) -> tuple[Any, ...]:
        """Returns the sizes of the free dimensions."""
        return tuple(n for n, x in zip(self.shape, self.at, strict=True) if x is None)

    @property
    def deps(self) -> frozenset[str]:
        """Returns the positions that the indices depend on."""
        return frozenset().union(*(x.deps for x in self.at if x is not None))

    def bind(self, free: int, index: Expr) -> View:
        """Returns a view with an index in the free dimension of this number."""
        place = [i for i, x in enumerate(self.at) if x is None][free]
        return replace(self, at=(*self.at[:place], _from_end(index, self.shape[place]), *self.at[place + 1 :]))

    def read(self) -> Expr:
        """Returns the element where all dimensions are indexed."""
        if self.dtype not in (*READABLE, *_INTEGERS):
            raise Refused(f"captured tensors must be float32, float16, bfloat16, bool or integers, got {self.dtype}")
        if len(self.shape) > _MOST_RANK:
            raise Refused(f"captured tensors must have at most {_MOST_RANK} dimensions, got {len(self.shape)}")
        index = tuple(x for x in self.at if x is not None)
        return Expr("", _kind(self.dtype), index, self.deps, capture=self.capture)


def _view(node: Node, side: tuple[str, ...] = ()) -> View:
    value = node.meta["val"]
    at = (*(_INPUTS[name] for name in side), *[None] * value.dim())
    return View(Capture(node, side), (*[None] * len(side), *value.shape), value.dtype, at)


def _kind(dtype: torch.dtype) -> str:
    return "bool" if dtype is torch.bool else "float" if dtype.is_floating_point else "int"


def _from_end(x: Expr, size: Any) -> Expr:
    """Returns an index that counts from the beginning, as torch counts negative ones from the end."""
    if x.kind != "int":
        raise Refused(f"an index that is a {x.kind}")
    if x.is_literal and isinstance(size, int):
        return literal(x.value % size if -size <= x.value < size else x.value)
    return x if x.natural else choose(POINTWISE["lt"](x, literal(0)), x + literal(size), x)


@dataclass(frozen=True, eq=False)
class Unsaid:
    """A value that no expression says, for this reason; it may become a table."""

    why: str
    deps: frozenset[str]
    node: Node

    @property
    def side(self) -> tuple[str, ...] | None:
        """Returns the dimensions of its table, or None if it depends on the score or on both positions."""
        return None if "s" in self.deps or {"q", "k"} <= self.deps else tuple(x for x in SIDES if x in self.deps)


def translate(traced: Traced) -> Expr:
    """Returns a traced function's result as an expression; raises Refused."""
    values: dict[Any, Any] = {}
    for node in traced.graph.nodes:
        if node.op == "output":
            result = node.args[0]
            if isinstance(result, tuple | list) and len(result) == 1:  # of a graph
                result = result[0]
            if not isinstance(result, Node | bool | int | float):
                raise Refused(f"a result that is no tensor but {type(result).__name__}")
            return _scalar(_said(values[result] if isinstance(result, Node) else result))
        values[node] = _given(traced, node) if node.op in ("placeholder", "get_attr") else _called(node, values)
    raise AssertionError("a graph has an output")


def _given(traced: Traced, node: Node) -> Any:
    """Returns the value of an input, or of a captured tensor."""
    if node in traced.inputs:
        return _INPUTS[traced.inputs[node]]
    if node in traced.numbers:
        return literal(traced.numbers[node])
    number = traced.tensors[node]
    if number in traced.made and traced.own[number - traced.seen].dim() == 0:
        with unset_fake_temporarily():
            return literal(traced.own[number - traced.seen].item())
    return _view(next(first for first, i in traced.tensors.items() if i == number))


def _called(node: Node, values: dict[Any, Any]) -> Any:
    """Returns the value of an operation."""
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    leaves = [
        x for leaf in tree_leaves((args, kwargs)) for x in (leaf.flat if isinstance(leaf, np.ndarray) else [leaf])
    ]
    deps = frozenset().union(*(x.deps for x in leaves if isinstance(x, Expr | View | Unsaid)))
    unsaid = next((x for x in leaves if isinstance(x, Unsaid)), None)
    if not isinstance(node.meta.get("val"), Tensor) and not deps:
        return _of_numbers(node, args)
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        raise Refused("random numbers")
    if not deps and any(isinstance(x, View) for x in leaves):
        return _view(node)  # of captured tensors alone
    here = Unsaid(unsaid.why if unsaid else "", deps, node)
    if unsaid and here.side is not None:
        return here
    try:
        return _said_by(node, *map_aggregate((args, kwargs), _said))
    except Refused as error:
        if here.side is None:
            raise
        return replace(here, why=str(error)) if deps else _view(node)


def _of_numbers(node: Node, args: Sequence[Any]) -> Expr:
    """Computes with numbers of Python, and the sizes of traced tensors."""
    if isinstance(args[0], View):
        view = args[0]
        if "_local_scalar_dense" in str(node.target) and not view.free:  # Python's, once dynamo saw two
            return replace(view, dtype=torch.float32 if view.dtype is torch.float64 else view.dtype).read()
        if "sym_size" not in str(node.target):
            raise Refused(f"{node.target} of a captured tensor")
        return literal(args[0].shape[args[1]])
    return literal(node.target(*(x.value if isinstance(x, Expr) else x for x in args)))


def _said(x: Any) -> Any:
    """Returns x, or a table in its place."""
    if not isinstance(x, Unsaid):
        return x
    if x.side is None or not isinstance(x.node.meta.get("val"), Tensor):
        raise Refused(x.why)
    return _view(x.node, x.side)


# ---- forms of a value ---------------------------------------------------------------------------


def _scalar(x: Any) -> Expr:
    if isinstance(x, View) and x.free:
        if math.prod(x.free) != 1:
            raise Refused(f"a tensor of shape {list(x.free)} where a score has one value")
        return _scalar(x.bind(0, literal(0)))
    if isinstance(x, np.ndarray) and x.size != 1:
        raise Refused(f"a tensor of shape {list(x.shape)} where a score has one value")
    made: Expr = x.read() if isinstance(x, View) else x.item() if isinstance(x, np.ndarray) else x
    return made if isinstance(made, Expr) else literal(made)


def _elements(x: Any) -> np.ndarray:
    """Returns an array of expressions."""
    if isinstance(x, np.ndarray):
        return x
    free = x.free if isinstance(x, View) else ()
    _check_size(math.prod(free))
    made = np.empty(free, object)
    for place in np.ndindex(*free):
        one = x
        for i in place:
            one = one.bind(0, literal(i))
        made[place] = _scalar(one)
    return made


def _check_size(size: int) -> None:
    if size > _MOST_UNROLLED:
        raise Refused(f"{size} elements in the computation of a score (at most {_MOST_UNROLLED})")


# ---- operations ---------------------------------------------------------------------------------


def _said_by(node: Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Applies an operation of torch."""
    target: Any = node.target
    name = str(getattr(target, "_schema", target)).partition("(")[0].rpartition("::")[2].partition(".")[0]
    value = node.meta["val"]
    if isinstance(value, Tensor) and value.dtype.is_complex:
        raise Refused("complex numbers")
    if name in _SPECIAL:
        special: Any = _SPECIAL[name]
        return special(*args, **kwargs)
    if name in _SAME:
        return args[0]
    if name in _SHAPES:
        made, shape = _elements(args[0]), [int(n) for n in value.shape]
        return made.reshape(shape) if made.size == math.prod(shape) else np.broadcast_to(made, shape)
    if name in _FILLED:
        _check_size(value.numel())
        made = np.empty(value.shape, object)
        made.fill(TO[_kind(value.dtype)](_scalar(args[-1] if _FILLED[name] is None else _FILLED[name])))
        return made if made.ndim else made.item()
    if name in POINTWISE:
        made = _pointwise(POINTWISE[name], args, kwargs)
        return _pointwise(WRAP[value.dtype], [made], {}) if value.dtype in WRAP and name in _GROW else made
    if name in FOLDS:
        return _fold(FOLDS[name], _pointwise(TO[_kind(value.dtype)], [args[0]], {}), *args[1:], **kwargs)
    raise Refused(f"{name} of what depends on the score or on both positions")


def _pointwise(f: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    given = [*args, *kwargs.values()]
    values = [i for i, x in enumerate(given) if isinstance(x, Expr | View | np.ndarray | bool | int | float | SymInt)]
    arrays = np.broadcast_arrays(*(_elements(given[i]) for i in values))
    made = np.empty(arrays[0].shape, object)
    for place in np.ndindex(*made.shape):
        one = {**dict(enumerate(given)), **{i: x[place] for i, x in zip(values, arrays, strict=True)}}
        each = list(one.values())
        made[place] = f(*each[: len(args)], **dict(zip(kwargs, each[len(args) :], strict=True)))
    return made if made.ndim else made.item()


def _fold(f: Op, x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    made = _elements(x)
    dims = [dim] if isinstance(dim, int) else list(dim or range(made.ndim))
    for d in sorted((d % max(1, made.ndim) for d in dims), reverse=True):
        if made.ndim:
            made = np.asarray(np.frompyfunc(f, 2, 1).reduce(made, axis=d, keepdims=keepdim), object)
    return made if made.ndim else made.item()


def _mean(x: Any, *args: Any, **kwargs: Any) -> Any:
    total = _fold(operator.add, x, *args, **kwargs)
    return _pointwise(operator.truediv, [total, float(_elements(x).size // _elements(total).size)], {})


def _index(x: Any, indices: Sequence[Any]) -> Any:
    if not isinstance(x, View):
        at = [slice(None) if i is None else _scalar(i).value for i in indices]
        if None in at:
            raise Refused("an index of a computed tensor")
        return np.asarray(_elements(x)[tuple(at)], object)
    free = 0
    for i in indices:
        x, free = (x, free + 1) if i is None else (x.bind(free, _scalar(i)), free)
    return x


def _select(x: Any, dim: int, index: int) -> Any:
    if isinstance(x, View):
        return x.bind(dim % len(x.free), literal(index))
    return np.asarray(np.take(_elements(x), index, axis=dim), object)


def _to_copy(x: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
    """Returns x in another type; scores stay floats of 32 bits, as in torch's compiled kernels."""
    if dtype is None:
        return x
    if dtype is torch.float64 or dtype.is_complex:
        raise Refused(f"a conversion to {dtype}, as snippets compute in float32")
    made = _pointwise(TO[_kind(dtype)], [x], {})
    return _pointwise(WRAP[dtype], [made], {}) if dtype in WRAP else made


_SPECIAL = {
    "index": _index,
    "select": _select,
    "mean": _mean,
    "_to_copy": _to_copy,
    "permute": lambda x, dims: np.transpose(_elements(x), dims),
    "cat": lambda xs, dim=0: np.concatenate([_elements(x) for x in xs], axis=dim),
}
