"""Packages that SGLang imports at its start, and that are not here: any of their modules and names can be imported.

Who makes an object of one or calls it gets a NotImplementedError.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any


class _Named(type):
    def __getattr__(cls, name: str) -> Any:
        return missing_name(name)


class Missing(metaclass=_Named):
    """Any class, function or constant."""

    def __init__(self, *given: Any, **named: Any) -> None:
        raise NotImplementedError("a stand-in of SGLang's tests was called")


def missing_name(name: str) -> Any:
    """What a module or class has under a name."""
    if name.startswith("__"):
        raise AttributeError(name)
    return Missing


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules inside a package."""

    def __init__(self, package: str) -> None:
        self.package = package
        sys.meta_path.append(self)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        inside = name.startswith(f"{self.package}.")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if inside else None

    def create_module(self, spec: Any) -> None:
        """As usual."""

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["__getattr__"] = missing_name
