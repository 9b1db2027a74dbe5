"""Snippets of functions that were translated before, by what a function is made of.

A key holds the code of a function, and the values of what the code names: defaults, cells of closures, globals,
attributes of objects. Tensors count by shape and type, so that another mask of the same shape costs no translation; the
snippet reads those of the call. What has no key is translated in each call.
"""

from __future__ import annotations

import enum
import functools
import operator
import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from xeflash.integrations.flex.expressions import Refused
from xeflash.integrations.flex.snippet import Snippet

_MOST = 256  # snippets
_MOST_VALUES = 300  # of a key
_PLAIN = {type(None), bool, int, float, complex, str, bytes, range, torch.dtype, torch.device, torch.Size}
_CONTAINERS = {tuple, list, set, frozenset}
_LIBRARIES = {"torch", "math", "operator", "numpy", "builtins", "functools", "typing"}  # these do not change
_ATOMS = (enum.Enum, torch._ops.OpOverload, torch._ops.OpOverloadPacket, operator.itemgetter, operator.attrgetter)
_BUILTINS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_DYNAMIC = {"getattr", "vars", "globals", "locals", "eval", "exec", "__dict__", "__getattribute__", "__import__"}
_HEAP_TYPE = 1 << 9  # the flag of classes that Python's code makes
_lock = threading.Lock()
_kept: OrderedDict[Hashable, Snippet | Refused] = OrderedDict()


class Found(NamedTuple):
    """A function's snippet, and the tensors that it captures."""

    snippet: Snippet
    tensors: list[Tensor]


class _Unknown(Exception):
    """A function is made of something that has no key."""


def snippet_of(function: Callable[..., Any], scores: bool, device: torch.device) -> Found:
    """Returns the snippet of a score_mod, or of a mask_mod; raises Refused."""
    walk = _Walk()
    try:
        key: Hashable = (scores, device, walk.key(function, frozenset()))
        with _lock:
            found = _kept.get(key)
            if found is not None:
                _kept.move_to_end(key)
    except (_Unknown, TypeError):
        key = found = None
    if found is None:
        try:
            found = Snippet(function, scores, device, (), walk.tensors)
        except Refused as error:
            found = error
        if key is not None and (isinstance(found, Refused) or not found.traced.looks):
            with _lock:
                _kept[key] = found
                if len(_kept) > _MOST:
                    _kept.popitem(last=False)
    if isinstance(found, Refused):
        raise Refused(*found.args)
    return Found(found, walk.tensors)


class _Names(NamedTuple):
    """The names that code reads, with strings that may be names, and those of functions in it."""

    all: frozenset[str]
    ordered: tuple[str, ...]


@functools.lru_cache(4096)
def _names_of(code: types.CodeType) -> _Names:
    inner = (_names_of(x).all for x in code.co_consts if isinstance(x, types.CodeType))
    strings = (x for x in code.co_consts if isinstance(x, str) and x.isidentifier())
    names = frozenset(code.co_names).union(strings, *inner)
    return _Names(names, tuple(sorted(names)))


def _of_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _LIBRARIES


class _Walk:
    """Makes a function's key, and lists the tensors that it finds."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._places: dict[Any, int] = {}  # of tensors by identity
        self._seen: dict[Any, int] = {}  # functions, and objects with the names that are read of them
        self._left = _MOST_VALUES

    def key(self, x: Any, names: frozenset[str]) -> Hashable:
        """Returns the key of a value, of whose attributes code reads those of these names."""
        kind = type(x)
        if kind in _PLAIN:
            return kind, x
        self._left -= 1
        if self._left < 0:
            raise _Unknown
        if kind is Tensor or kind is torch.nn.Parameter:
            place = self._places.setdefault(id(x), len(self.tensors))
            if place == len(self.tensors):
                self.tensors.append(x)
            return place, x.dtype, x.shape, x.device
        if kind is types.FunctionType:
            return self._function(x)
        if kind in _CONTAINERS:
            return kind, tuple([self.key(y, names) for y in (x if kind in (tuple, list) else sorted(x))])
        if kind is dict:
            return kind, tuple([(self.key(a, names), self.key(b, names)) for a, b in x.items()])
        if kind is functools.partial:
            return kind, self.key(x.func, names), self.key(x.args, names), self.key(x.keywords, names)
        if kind is types.MethodType:
            of_function = _names_of(x.__func__.__code__).all
            return kind, self.key(x.__func__, names), self.key(x.__self__, names | of_function)
        if kind is types.ModuleType:
            return kind, x.__name__, () if _of_library(x.__name__) else self._attributes(vars(x), names)
        return self._other(x, kind, names)

    def _function(self, x: types.FunctionType) -> Hashable:
        if x in self._seen:
            return "again", self._seen[x]
        self._seen[x] = len(self._seen)
        code, known = x.__code__, x.__globals__
        names = _names_of(code)
        if _of_library(x.__module__):
            read: tuple[Hashable, ...] = ()
        elif names.all.isdisjoint(_DYNAMIC):
            read = tuple([(n, self.key(known[n], names.all)) for n in names.ordered if n in known])
        else:
            raise _Unknown
        try:
            cells = tuple([self.key(cell.cell_contents, names.all) for cell in x.__closure__ or ()])
        except ValueError as error:  # a cell that is empty yet
            raise _Unknown from error
        return code, cells, read, self.key(x.__defaults__, names.all), self.key(x.__kwdefaults__, names.all)

    def _other(self, x: Any, kind: type, names: frozenset[str]) -> Hashable:
        if isinstance(x, _BUILTINS):
            if isinstance(getattr(x, "__self__", None), types.ModuleType | type | None):
                return x
            raise _Unknown  # a method of some object
        if isinstance(x, _ATOMS):
            return x
        if isinstance(x, staticmethod | classmethod):
            return kind, self.key(x.__func__, names)
        if isinstance(x, property):
            return kind, self.key(x.fget, names)
        if isinstance(x, type):
            return x if _of_library(x.__module__) else (x, self._attributes(_held_by(x), names))
        if isinstance(x, tuple):
            return kind, tuple([self.key(y, names) for y in x])
        return self._object(x, kind, names)

    def _object(self, x: Any, kind: type, names: frozenset[str]) -> Hashable:
        """Returns the key of an object: its class, and attributes that code reads, or methods that code calls."""
        if (id(x), names) in self._seen:
            return "again", self._seen[id(x), names]
        self._seen[id(x), names] = len(self._seen)
        is_module = isinstance(x, torch.nn.Module)
        of_python = all(c is object or c.__flags__ & _HEAP_TYPE for c in kind.__mro__)
        held = _held_by(kind)
        if isinstance(x, Tensor) or not of_python or not hasattr(x, "__dict__") or "__getattr__" in held:
            raise _Unknown
        for group in ("_parameters", "_buffers", "_modules") if is_module else ():
            held |= vars(x)[group]
        held |= vars(x)
        reached, more = frozenset[str](), names | ({"forward"} if is_module else {"__call__"})
        while more != reached:
            reached = more
            codes = [_code_of(held[name]) for name in reached & held.keys()]
            more = reached.union(*(_names_of(code).all for code in codes if code is not None))
        return kind, self._attributes(held, reached)

    def _attributes(self, held: Mapping[str, Any], names: Iterable[str]) -> Hashable:
        return tuple([(n, self.key(held[n], frozenset(names))) for n in sorted(held.keys() & names)])


def _held_by(kind: type) -> dict[str, Any]:
    """Returns the attributes of a class that no library has made."""
    held: dict[str, Any] = {}
    for c in reversed(kind.__mro__):
        if not _of_library(c.__module__):
            held |= vars(c)
    return held


def _code_of(x: Any) -> Any:
    x = x.fget if isinstance(x, property) else getattr(x, "__func__", x)
    return getattr(x, "__code__", None)
