"""Kernels just in time: problem -> tile sizes -> source -> binary, from the wheel, the disk cache or the compiler."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from xeflash.jit import provide

if TYPE_CHECKING:
    from xeflash.jit.precompile import compile_command, peak_kernel, warm_up

__all__ = ["compile_command", "peak_kernel", "provide", "warm_up"]


def __getattr__(name: str) -> Any:
    """Imports a name of precompile when it is asked for, as few processes need it."""
    if name not in __all__:
        raise AttributeError(f"module 'xeflash.jit' has no attribute {name!r}")
    return getattr(importlib.import_module("xeflash.jit.precompile"), name)
