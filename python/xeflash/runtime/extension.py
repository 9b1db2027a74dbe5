"""Finds SYCL's libraries and loads the extension next to whatever libsycl the process already has."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import re
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from xeflash.runtime import cpu_rates

LIBSYCL = "libsycl.so.9"
REMEDY = 'pip install "intel-sycl-rt>=2026.0,<2027" "intel-opencl-rt>=2026.0,<2027"'


def in_distribution(distribution: str, name: str) -> Path | None:
    """Finds the file `name` that a PyPI distribution installed, wherever its environment puts libraries."""
    direct = Path(sys.prefix) / "lib" / name
    if direct.exists():
        return direct
    for file in _files_of(distribution):
        if file.name == name:
            return Path(str(file.locate())).resolve()
    return None


def _files_of(distribution: str) -> list[Any]:
    from importlib import metadata  # takes longer than all else that `import xeflash` does

    try:
        return metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        return []


def libcxx() -> Path | None:
    """Finds the folder of libc++'s headers, which intel-sycl-rt has from 2026.2 on."""
    files = _files_of("intel-sycl-rt")
    configs = (file for file in files if file.as_posix().endswith("include/c++/v1/__config"))
    return next((Path(str(file.locate())).resolve().parent for file in configs), None)


def check_interpreter() -> None:
    """Raises ImportError in a subinterpreter, where loading would wait for ever for the main interpreter's lock."""
    python = ctypes.PyDLL(None)
    python.PyInterpreterState_Get.restype = python.PyInterpreterState_Main.restype = ctypes.c_void_p
    if python.PyInterpreterState_Get() != python.PyInterpreterState_Main():
        raise ImportError(
            "xeflash must be imported in the main interpreter of a process, not in a subinterpreter; use processes or "
            "threads instead (with mod_wsgi: WSGIApplicationGroup %{GLOBAL})"
        )


def mapped_libsycl() -> dict[str, str]:
    """Returns the libsycl files that this process has loaded, as {soname: path}."""
    found: dict[str, str] = {}
    with open("/proc/self/maps") as maps:
        for line in maps:
            match = re.search(r"(/\S*/(libsycl\.so\.\d+)\S*)$", line)
            if match:
                found[match[2]] = match[1]
    return found


def show_cpu_device() -> None:
    """Names Intel's OpenCL CPU driver to the OpenCL loader: the wheel's own .icd file holds a placeholder."""
    driver = in_distribution("intel-opencl-rt", "libintelocl.so")
    present = os.environ.get("OCL_ICD_FILENAMES", "")
    if driver and "libintelocl" not in present:
        os.environ["OCL_ICD_FILENAMES"] = f"{present}:{driver}" if present else str(driver)


def load() -> None:
    """Imports xeflash._core; raises ImportError with the remedy when libsycl is missing or of another major."""
    foreign = {name: path for name, path in mapped_libsycl().items() if name != LIBSYCL}
    if foreign:
        name, path = next(iter(foreign.items()))
        raise ImportError(
            f"xeflash needs {LIBSYCL}, but this process has loaded {name} ({path}); two majors in one process crash. "
            f"torch 2.13 and newer (xpu) and dpctl 0.22 and newer carry {LIBSYCL}: upgrade what loaded {name}, "
            f"then: {REMEDY}"
        )
    try:
        importlib.import_module("xeflash._core")
    except ImportError as error:
        # An unusual layout (an editable build, a zipped environment): satisfy the dependency by its soname.
        library = in_distribution("intel-sycl-rt", LIBSYCL)
        if library is None:
            raise ImportError(f"xeflash needs {LIBSYCL} and found none ({error}); mend it with: {REMEDY}") from error
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        importlib.import_module("xeflash._core")
    core = sys.modules["xeflash._core"]
    if cpu := core.cpu_with_a_choice():
        core.set_cpu_rates(**cpu_rates.kept(cpu, core.measure_cpu_rates))


class _AfterImport:
    """A finder for one module, which others find: it makes their loader run `then` once the module is there."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        others: list[Any] = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target))), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._watch(spec.loader)
        return spec

    def _watch(self, loader: Any) -> None:
        """Replaces the loader's function for this one import; the loader itself stays as it is."""

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            loader.exec_module(module)
            with contextlib.suppress(ValueError):
                sys.meta_path.remove(self)
            self._then()

        with contextlib.suppress(AttributeError):  # the loader may take no attributes
            loader.exec_module = exec_module


def after_import(name: str, then: Callable[[], None]) -> None:
    """Runs a function once a module, which is not there yet, has been imported."""
    sys.meta_path.insert(0, _AfterImport(name, then))
