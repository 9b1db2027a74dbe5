"""Search for the C++ headers that kernels are compiled with.

SYCL's own headers ask for a standard library. g++'s is taken where there is one. Elsewhere libc++ is, which
intel-sycl-rt brings from its release 2026.2 on, over the few headers of C in kernels/libc: SPIR-V is the same.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from xeflash.runtime import extension

_INSTALL = (
    "kernels are compiled with the C++ headers of g++: install it (apt install g++, dnf install gcc-c++, conda install "
    "gxx), or intel-sycl-rt 2026.2 or newer, which has headers of its own"
)
# A header of C or C++, not one of ours.
_MISSING = re.compile(r"(?:fatal )?error: '(?:bits/|sys/)?\w+(?:\.h)?' file not found")

_Built = TypeVar("_Built")

_GLIBCXX = re.compile(r"^#define __GLIBCXX__ (\d+)", re.MULTILINE)
_CONFIGS = (  # paths of Debian, Red Hat, conda and g++'s own installation
    "include/*/c++/*/bits/c++config.h",
    "include/c++/*/*/bits/c++config.h",
    "lib/gcc/*/*/include/c++/*/bits/c++config.h",
)


@functools.cache
def standard_libraries() -> list[str]:
    """Returns the paths and days of g++'s libraries that the compiler may find; without them it takes libc++."""
    prefixes = {Path(p) for p in ("/usr", "/usr/local", sys.prefix, os.environ.get("CONDA_PREFIX", sys.prefix))}
    configs = sorted(path for prefix in prefixes for pattern in _CONFIGS for path in prefix.glob(pattern))
    return [f"{config} {(_GLIBCXX.findall(config.read_text()) or '?')[0]}" for config in configs]


class NoCompiler(RuntimeError):
    """A kernel is neither in the package nor in the cache, and there are no headers to compile it with.

    The extension knows this error, and looks for another kernel that serves the call.
    """


def _options_of(libcxx: Path, libc: Path) -> tuple[str, ...]:
    target = libcxx.parents[1] / "x86_64-unknown-linux-gnu" / "c++" / "v1"
    return ("-nostdinc++", *(f"-isystem{folder}" for folder in (libcxx, target, libc)))


class Headers:
    """The headers that this process has found to work, or to be missing."""

    def __init__(self, libc: Path) -> None:
        """Takes the folder of our headers of C."""
        self._libc = libc
        self._options: tuple[str, ...] = ()
        self._proven = False
        self._missing = ""  # the header that the last compiler did not find
        self._guard = threading.Lock()

    @property
    def proven(self) -> bool:
        """Returns whether a kernel has been compiled with the headers."""
        return self._proven

    def compile(self, name: str, compiler: Callable[[tuple[str, ...]], _Built]) -> _Built:
        """Returns what compiler(options) returns for the kernel `name`.

        Until one kernel has been compiled, one is at a time: the compiler, which keeps what kernels begin with alike,
        must not be asked again after a header was not found.
        """
        if self._proven:
            return compiler(self._options)
        with self._guard:
            while not self._missing:
                try:
                    built = compiler(self._options)
                except RuntimeError as error:
                    missing = _MISSING.search(str(error))
                    if missing is None:
                        raise
                    folder = None if self._options else extension.libcxx()
                    if folder is None:
                        self._missing = missing[0]
                    else:
                        self._options = _options_of(folder, self._libc)
                else:
                    self._proven = True
                    return built
            raise NoCompiler(f"xeflash: {name} did not compile: {self._missing}; {_INSTALL}")
