"""Snippets of functions that were translated before, by what a function is made of.

A key holds the code of a function, and the values of what the code names: defaults, cells of closures, globals,
attributes of objects. Tensors count by shape and type, so that another mask of the same shape costs no translation; the
snippet reads those of the call. What has no key is translated in each call.
"""

from __future__ import annotations

import abc
import dis
import enum
import functools
import operator
import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
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
_ATOMS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket, operator.itemgetter)
_BUILTINS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_METACLASSES = {type, abc.ABCMeta, enum.EnumMeta}
_DESCRIPTORS = (property, functools.cached_property, staticmethod, classmethod, types.FunctionType, *_BUILTINS)
# Names of what reads anything, and of what a tensor is beside its type and shape.
_DYNAMIC = {
    "getattr", "vars", "globals", "locals", "eval", "exec", "__dict__", "__getattribute__", "__import__",
    "attrgetter", "methodcaller", "environ", "getenv", "is_grad_enabled", "is_inference_mode_enabled",
}  # fmt: skip
_OF_TENSORS = {"requires_grad", "is_leaf", "grad", "grad_fn", "stride", "storage_offset", "is_contiguous", "_version"}
# Methods of classes that Python calls without a name in code, but for those that no result depends on.
_NOT_SPECIAL = {"__init__", "__new__", "__post_init__", "__repr__", "__str__", "__hash__", "__del__", "__setattr__"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
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
    are_all: bool  # it reads nothing else


@functools.lru_cache(4096)
def _names_of(code: types.CodeType) -> _Names:
    inner = [_names_of(x) for x in code.co_consts if isinstance(x, types.CodeType)]
    strings = (x for x in code.co_consts if isinstance(x, str) and x.isidentifier())
    names = frozenset(code.co_names).union(strings, *(x.all for x in inner))
    imported = (x.argval for x in dis.get_instructions(code) if x.opname == "IMPORT_NAME")
    are_all = all(map(_of_library, imported)) and names.isdisjoint(_DYNAMIC) and all(x.are_all for x in inner)
    return _Names(names, tuple(sorted(names)), are_all)


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
            if not names.isdisjoint(_OF_TENSORS):
                raise _Unknown
            return place, x.dtype, x.shape, x.device, self._attributes(vars(x), names)
        if kind is types.FunctionType:
            return self._function(x, names)
        if kind in _CONTAINERS:
            return kind, tuple([self.key(y, names) for y in (x if kind in (tuple, list) else sorted(x))])
        if kind is dict:
            return kind, tuple([(self.key(a, names), self.key(b, names)) for a, b in x.items()])
        if kind is functools.partial:
            own = self._attributes(vars(x), names)
            return kind, self.key(x.func, names), self.key(x.args, names), self.key(x.keywords, names), own
        if kind is types.MethodType:
            of_function = _names_of(x.__func__.__code__).all
            return kind, self.key(x.__func__, names), self.key(x.__self__, names | of_function)
        if kind is types.ModuleType:
            if _of_library(x.__name__):
                return kind, x.__name__
            if "__getattr__" in vars(x):
                raise _Unknown
            return kind, x.__name__, self._attributes(vars(x), names)
        return self._other(x, kind, names)

    def _function(self, x: types.FunctionType, read_by: frozenset[str]) -> Hashable:
        """Returns the key of a function, of which other code reads attributes of these names."""
        if (id(x), read_by) in self._seen:
            return "again", self._seen[id(x), read_by]
        self._seen[id(x), read_by] = len(self._seen)
        code, known = x.__code__, x.__globals__
        names = _names_of(code)
        if _of_library(known.get("__name__")):  # its __module__ may be that of a function that it wraps
            read: tuple[Hashable, ...] = ()
        elif names.are_all:
            read = tuple([(n, self.key(known[n], names.all)) for n in names.ordered if n in known])
        else:
            raise _Unknown
        try:
            cells = tuple([self.key(cell.cell_contents, names.all) for cell in x.__closure__ or ()])
        except ValueError as error:  # a cell that is empty yet
            raise _Unknown from error
        own = self._attributes(vars(x), read_by | names.all)
        return code, cells, read, own, self.key(x.__defaults__, names.all), self.key(x.__kwdefaults__, names.all)

    def _other(self, x: Any, kind: type, names: frozenset[str]) -> Hashable:
        if isinstance(x, _BUILTINS):
            if x is not getattr and isinstance(getattr(x, "__self__", None), types.ModuleType | type | None):
                return x
            raise _Unknown  # a method of some object, or what reads any attribute
        if isinstance(x, _ATOMS):
            return x
        if isinstance(x, staticmethod | classmethod):
            return kind, self.key(x.__func__, names)
        if isinstance(x, property | functools.cached_property):
            return kind, self.key(_function_of(x), names)
        if isinstance(x, type):
            return x if _of_library(x.__module__) else self._class(x, names)
        if isinstance(x, tuple):
            return self._class(kind, names), tuple([self.key(y, names) for y in x])
        if isinstance(x, enum.Enum):
            return x, self._class(kind, names)
        return self._object(x, kind, names)

    def _class(self, x: type, names: frozenset[str]) -> Hashable:
        """Returns the key of a class, whose objects code may make."""
        if type(x) not in _METACLASSES:
            raise _Unknown
        return x, self._layers(x, [dict(vars(c)) for c in _classes_of(x)], names | {"__init__", "__new__"})

    def _object(self, x: Any, kind: type, names: frozenset[str]) -> Hashable:
        """Returns the key of an object: its class, and attributes that code reads, or methods that code calls."""
        is_module = isinstance(x, torch.nn.Module)
        of_python = all(c is object or c.__flags__ & _HEAP_TYPE for c in kind.__mro__)
        layers = [dict(vars(c)) for c in _classes_of(kind)]
        computed = any(name in layer for layer in layers for name in ("__getattr__", "__getattribute__"))
        if isinstance(x, Tensor) or not of_python or not hasattr(x, "__dict__") or computed:
            raise _Unknown
        if is_module and any(vars(x)[hooks] for hooks in _HOOKS):
            raise _Unknown
        layers += [vars(x)[group] for group in ("_parameters", "_buffers", "_modules")] if is_module else []
        return kind, self._layers(x, [*layers, vars(x)], names | ({"forward"} if is_module else set()))

    def _layers(self, x: Any, layers: Sequence[Mapping[str, Any]], names: frozenset[str]) -> Hashable:
        """Returns the key of attributes in several places: of those that code reads, and of those that these read."""
        if (id(x), names) in self._seen:
            return "again", self._seen[id(x), names]
        self._seen[id(x), names] = len(self._seen)
        special = {n for layer in layers for n, y in layer.items() if n[:2] == "__" and isinstance(y, _DESCRIPTORS)}
        reached, more = frozenset[str](), names | (special - _NOT_SPECIAL)
        while more != reached:
            reached = more
            held = [_function_of(layer[name]) for layer in layers for name in reached & layer.keys()]
            more = reached.union(*(_names_of(y.__code__).all for y in held if isinstance(y, types.FunctionType)))
        for layer in layers[: -1 if layers and layers[-1] is getattr(x, "__dict__", None) else None]:
            for name in reached & layer.keys():
                if hasattr(type(layer[name]), "__get__") and not isinstance(layer[name], _DESCRIPTORS):
                    raise _Unknown
        return tuple([self._attributes(layer, reached) for layer in layers])

    def _attributes(self, held: Mapping[str, Any], names: Iterable[str]) -> Hashable:
        return tuple([(n, self.key(held[n], frozenset(names))) for n in sorted(held.keys() & names)])


def _classes_of(kind: type) -> list[type]:
    """Returns a class and its bases, but for those of libraries."""
    return [c for c in reversed(kind.__mro__) if not _of_library(c.__module__)]


def _function_of(x: Any) -> Any:
    """Returns the function of a method or a property."""
    if isinstance(x, property):
        return x.fget
    return x.func if isinstance(x, functools.cached_property) else getattr(x, "__func__", x)
