"""Compiles the extension against the installed torch and SYCL, into the cache folder, once."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = ("devices.cpp", "memory.cpp", "hooks.cpp", "operators.cpp", "graph.cpp", "module.cpp")
# A header that torch's wheels for CPUs lack: it says how the library was built.
LACKING = {"c10/xpu/impl/xpu_cmake_macros.h": ""}


class BuildError(Exception):
    """The extension cannot be had here; the text says why."""


def torch_folder() -> Path:
    """Where torch is installed; it is not imported for the question."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise BuildError("torch is not installed")
    return Path(spec.origin).parent


def options(folder: Path) -> list[str]:
    """What every source is compiled with."""
    torch = torch_folder() / "include"
    includes = [folder, torch, torch / "torch/csrc/api/include", sysconfig.get_path("include")]
    includes += [Path(sys.prefix) / "include"]  # SYCL's
    defines = ["C10_XPU_BUILD_MAIN_LIB", "SYCL_DISABLE_FSYCL_SYCLHPP_WARNING", "TORCH_EXTENSION_NAME=_torch_xpu"]
    # -O0 takes as long, and debug information twice.
    return ["-std=c++20", "-O1", "-fPIC", "-w", *(f"-D{name}" for name in defines), *(f"-isystem{i}" for i in includes)]


def compiler() -> str:
    found = shutil.which(os.environ.get("CXX", "g++"))
    if found is None:
        raise BuildError("torch's XPU backend for tests needs g++ (apt install g++)")
    return found


def key() -> str:
    """Names the extension of this torch, this SYCL, the folders that it loads them from, this compiler and these sources."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "intel-sycl-rt")]
    versions += [subprocess.run([compiler(), "--version"], capture_output=True, text=True, check=True).stdout]
    files = (*SOURCES, "graph.hpp", Path(__file__).name)
    parts = [*versions, sys.version, str(torch_folder()), sys.prefix, *((HERE / name).read_text() for name in files)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        first = next((line for line in done.stdout.splitlines() if "error" in line), done.stdout[:500])
        raise BuildError(f"torch's XPU backend for tests did not compile: {first}")


def compile_all(folder: Path, result: Path) -> None:
    for name, text in LACKING.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)

    def compile_one(source: str) -> str:
        output = folder / f"{source}.o"
        run([compiler(), *options(folder), "-c", str(HERE / source), "-o", str(output)])
        return str(output)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, SOURCES))
    libraries = [torch_folder() / "lib", Path(sys.prefix) / "lib"]
    found = [option for path in libraries for option in (f"-L{path}", f"-Wl,-rpath,{path}")]
    needed = ["-ltorch_python", "-ltorch_cpu", "-lc10", "-l:libsycl.so.9"]
    run([compiler(), "-shared", *objects, *found, *needed, "-o", str(result)])


def build() -> Path:
    """The extension, compiled if it is not there yet; processes wait for the first that does it."""
    from xeflash.runtime.cache_folder import cache_folder, is_private, open_folder

    target = cache_folder() / "torch_xpu" / key() / "_torch_xpu.so"
    if is_private(target):
        return target
    with open_folder(target.parent, make=True) as parent, parent.lock("lock"):
        if not is_private(target):
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                compile_all(Path(folder), Path(folder) / target.name)
                os.chmod(Path(folder) / target.name, 0o700)
                (Path(folder) / target.name).rename(target)
    return target
