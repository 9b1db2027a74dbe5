"""The way by which the extension gets a kernel that it has not loaded yet."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import os
import re
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from xeflash import _core
from xeflash.jit import cache, prebuilt
from xeflash.jit.headers import Headers, NoCompiler, standard_libraries
from xeflash.jit.kernel import KernelSource, digest_of_headers, render
from xeflash.jit.log import log_kernel
from xeflash.jit.product import render_head, render_product, render_softmax
from xeflash.jit.progress import progress
from xeflash.runtime.warn import warn_once
from xeflash.tune import Config
from xeflash.tune.desc import ALGORITHMS, AnyDesc, Desc, ProductDesc, SoftmaxDesc, desc_of
from xeflash.tune.table import pick_of_tables

# Beside the extension: an editable installation keeps the Python files elsewhere.
PACKAGE = Path(str(_core.__file__)).parent
HEADERS = PACKAGE / "kernels"
PREBUILT = PACKAGE / "prebuilt"
CXX_HEADERS = Headers(HEADERS / "libc")

_FORMAT = 4  # the format of entries; raise it when the content of kernel.bin changes
# The templates of SYCL that its own headers use are instantiated with what is parsed once, not in each kernel.
INSTANTIATE_EARLY = "-fpch-instantiate-templates"
_FRAME = re.compile(r"The program was built for \d+ devices|Build program log for '.*':")  # SYCL's, around logs

_locks: dict[str, threading.Lock] = {}
_locks_guard = threading.Lock()


@functools.cache
def _installed(name: str) -> str:
    """Returns the release of a distribution, and a digest of all that was installed with it."""
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:  # a driver may come from elsewhere
        return ""
    record = (found.read_text("RECORD") or "").splitlines()
    files = sorted(line for line in record if "sha256=" in line and ".dist-info/" not in line)
    return f"{name} {found.version} {hashlib.sha256(repr(files).encode()).hexdigest()[:16]}"


def provide(values: dict[str, Any], queue: int, again: bool = False) -> tuple[bytes, tuple[str, ...], Config, str]:
    """Returns native code, entry points, sizes and name of the kernel that a description asks for.

    `queue` is the address of a queue of its device; `again` says that the device refused what the cache had.
    """
    desc = desc_of(values)
    kernel = source_of(desc)
    try:
        native = find_or_build(kernel, desc, queue, again)
    except NoCompiler:
        plain = render(desc, pick_of_tables(desc)) if isinstance(desc, Desc) else kernel
        if plain.text == kernel.text:
            raise
        native = find_or_build(plain, desc, queue, again)  # a wheel has the tables' kernels
        warn_once(f"{kernel.name}, which a tuning chose, cannot be compiled here; the tables' takes its place")
        kernel = plain
    return native, desc.entries, kernel.config, kernel.name


def source_of(desc: AnyDesc) -> KernelSource:
    """Returns the source of the kernel that a description asks for."""
    if isinstance(desc, SoftmaxDesc):
        return (render_head if ALGORITHMS[desc.algorithm].of == "heads" else render_softmax)(desc)
    return render_product(desc) if isinstance(desc, ProductDesc) else render(desc)


def find_or_build(kernel: KernelSource, desc: AnyDesc, queue: int, again: bool = False) -> bytes:
    """Returns the native code of a kernel: from the disk cache, or made from device code, or from source, and kept."""

    def build() -> cache.Built:
        with progress(f"compiling {kernel.name}"):
            spirv = device_code(kernel)
            return _compile(kernel, desc, queue) if spirv is None else to_native(spirv, desc, queue)

    return kept_native(kernel, desc, build, again)


def device_code(kernel: KernelSource) -> bytes | None:
    """Returns SPIR-V of a kernel, which depends on no device or driver, from the wheel or the disk cache, or None.

    The wheel's kernels lie beside the extension, and are trusted as that is.
    """
    return prebuilt.read(PREBUILT, kernel, HEADERS) or cache.read(device_code_key(kernel), _inputs(kernel))


def to_native(spirv: bytes, desc: AnyDesc, queue: int) -> cache.Built:
    """Translates device code by the driver of the queue's device."""
    return cache.Built(_core.compile_spirv(queue, spirv, desc.entries[0]), "")


def kept_native(kernel: KernelSource, desc: AnyDesc, build: Callable[[], cache.Built], again: bool = False) -> bytes:
    """Returns the native code that the disk cache has for a kernel and device; else builds and keeps it."""
    return _kept(cache_key(kernel, desc), kernel, _native_inputs(kernel, desc), build, again)


def has_native(kernel: KernelSource, desc: AnyDesc) -> bool:
    """Returns whether the disk cache has the native code of a kernel for a device."""
    return cache.read(cache_key(kernel, desc), _native_inputs(kernel, desc)) is not None


def kept_device_code(kernel: KernelSource, build: Callable[[], cache.Built]) -> bytes:
    """Returns the SPIR-V that the disk cache has for a kernel; else builds and keeps it."""
    return _kept(device_code_key(kernel), kernel, _inputs(kernel), build, again=False)


def _kept(
    key: str, kernel: KernelSource, inputs: dict[str, object], build: Callable[[], cache.Built], again: bool
) -> bytes:
    compiling: list[float] = []

    def timed() -> cache.Built:
        start = time.monotonic()
        built = build()
        compiling.append(time.monotonic() - start)
        return built

    with _lock_of(key):
        binary = cache.get_or_build(key, kernel.text, inputs, timed, again)
    log_kernel(kernel.name, str(inputs.get("device", "")), bool(compiling), sum(compiling))
    return binary


@functools.cache
def _instructions() -> str:
    """Returns the instructions of this machine's CPU."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line for line in lines if line.startswith("flags")), "")


def _cpu() -> str:
    """Returns what native code for the CPU depends on besides the driver's version."""
    return f"{_instructions()} {_installed('intel-opencl-rt')} {_variables('CL_CONFIG_')}"


def _gpu() -> str:
    """Returns what native code for GPUs depends on besides the driver's version."""
    return f"{_core.GPU_BUILD_FLAGS} {_variables('IGC_')}"


def _variables(beginning: str) -> dict[str, str]:
    """Returns the environment variables with this beginning, which a driver's compiler reads."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(beginning)}


def cache_key(kernel: KernelSource, desc: AnyDesc) -> str:
    """Names the cache's entry of a kernel's native code: its name, and a hash of all that the code depends on."""
    return _key(kernel.name, _native_inputs(kernel, desc))


def device_code_key(kernel: KernelSource) -> str:
    """Names the cache's entry of a kernel's SPIR-V, which is the same for all devices of an architecture."""
    return _key(f"{kernel.name}-spirv", _inputs(kernel))


def _key(name: str, inputs: dict[str, object]) -> str:
    return f"{name}-{hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]}"


def _inputs(kernel: KernelSource) -> dict[str, object]:
    """Returns what a kernel's SPIR-V depends on; an entry of the cache repeats it."""
    return {
        "format": _FORMAT,
        "kernel": kernel.name,
        "source": hashlib.sha256(kernel.text.encode()).hexdigest(),
        "headers": digest_of_headers(HEADERS, kernel),
        "options": list(kernel.options),
        "compiler": _installed("intel-sycl-rt"),
    }


def _native_inputs(kernel: KernelSource, desc: AnyDesc) -> dict[str, object]:
    """Returns what a kernel's native code depends on."""
    # SPIR-V may have been made on another machine, as the wheel's, and for one that has no headers.
    more = {"C++ headers": standard_libraries(), "native": _cpu() if desc.arch.startswith("cpu-") else _gpu()}
    return {**_inputs(kernel), "device": desc.device, "driver": desc.driver, **more}


def _lock_of(key: str) -> threading.Lock:
    with _locks_guard:
        return _locks.setdefault(key, threading.Lock())


def _compile(kernel: KernelSource, desc: AnyDesc, queue: int) -> cache.Built:
    def compiler(header_options: tuple[str, ...]) -> cache.Built:
        # A process that compiles a second kernel will compile more: it parses once what they begin with alike.
        parse_once = ("--auto-pch", INSTANTIATE_EARLY) if CXX_HEADERS.proven else ()
        options = [*kernel.options, f"-I{HEADERS}", *header_options, *parse_once]
        return cache.Built(*_core.compile_source(queue, kernel.text, options, desc.entries[0]))

    try:
        return CXX_HEADERS.compile(kernel.name, compiler)
    except NoCompiler:
        raise
    except RuntimeError as error:
        raise RuntimeError(_explain(kernel, desc, str(error))) from None


def _explain(kernel: KernelSource, desc: AnyDesc, log: str) -> str:
    """Returns the first error of a build, else the first line of its own, and the place where its log was kept."""
    lines = [line for line in log.splitlines() if line.strip() and not _FRAME.fullmatch(line.strip())] or [log]
    first = next((line for line in lines if "error" in line), lines[0])
    what = kernel.name
    snippets = {name: x for name in ("score_mod", "mask_mod") if (x := getattr(desc, name, None))}
    if snippets:  # a snippet's author knows no names and lines of kernels
        what = " with ".join(f"{name} {textwrap.shorten(x.text, 300)!r}" for name, x in snippets.items())
        first = first[max(first.find("error: "), 0) :]
        if "undeclared identifier" in first:
            known = dict.fromkeys(word for x in snippets.values() for word in x.names())
            if "score_mod" not in snippets:  # a condition has no score
                known.pop("s")
            first = f"{first.strip()}. It may use {', '.join(known)}"
    message = f"xeflash: {what} did not compile: {first.strip()}"
    try:
        path = cache.keep_log(f"{kernel.name}.failed.log", f"{kernel.text}\n{' '.join(kernel.options)}\n\n{log}\n")
        return f"{message} (log: {path})"
    except OSError:
        return f"{message}\n{log}"


_core.set_kernel_provider(provide)
