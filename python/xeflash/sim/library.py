"""Finds and loads the simulator's library."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from pathlib import Path


def library_path() -> Path:
    """Returns the path of the simulator's library; XEFLASH_SIM_LIBRARY overrides it."""
    override = os.environ.get("XEFLASH_SIM_LIBRARY")
    if override:
        return Path(override)
    built = importlib.util.find_spec(
        "xeflash._core"
    )  # an editable installation has what is built in a folder of its own
    assert built is not None and built.origin is not None
    return Path(built.origin).parent / "sim" / "lib" / "libze_loader.so.1"


@functools.cache
def load_library() -> ctypes.CDLL:
    """Loads the library and declares what its functions return."""
    library = ctypes.CDLL(str(library_path()), mode=ctypes.RTLD_GLOBAL)
    returning_text = ("load", "allocate", "release", "launch", "execute", "decode", "describe", "inspect", "compile")
    for function in returning_text:
        getattr(library, f"xesim_{function}").restype = ctypes.c_void_p
    library.xesim_free.argtypes = [ctypes.c_void_p]
    library.xesim_free.restype = None
    return library
