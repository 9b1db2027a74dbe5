"""Finds and loads the simulator's library."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path


def library_path() -> Path:
    """Return where the simulator's library is; XEFLASH_SIM_LIBRARY overrides it."""
    override = os.environ.get("XEFLASH_SIM_LIBRARY")
    return Path(override) if override else Path(__file__).parent / "lib" / "libze_loader.so.1"


@functools.cache
def load_library() -> ctypes.CDLL:
    """Load the library and declare what its functions return."""
    path = library_path()
    if not path.exists():
        raise FileNotFoundError(
            f"the simulator {path} was not built with this installation: it needs Level Zero's headers when xeflash is "
            "built (apt install libze-dev), then pip install --force-reinstall --no-deps ."
        )
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    returning_text = ("load", "allocate", "release", "launch", "execute", "decode", "describe", "inspect", "compile")
    for name in (f"xesim_{function}" for function in returning_text):
        if hasattr(library, name):  # a library built without the driver lacks some
            getattr(library, name).restype = ctypes.c_void_p
    library.xesim_free.argtypes = [ctypes.c_void_p]
    library.xesim_free.restype = None
    return library
