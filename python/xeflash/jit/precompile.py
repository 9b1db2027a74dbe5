"""`xeflash compile`: compiles kernels into the cache before they are needed.

For a device of this machine that is native code, and a run compiles nothing. For a GPU that is not here it is device
code (SPIR-V) of its architecture, which a run has its driver translate: about a quarter of the time from source.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from xeflash import _core
from xeflash.call.schema import BSHD
from xeflash.jit import cache, provide
from xeflash.jit.calls import kernels_of as calls_kernels
from xeflash.jit.kernel import KernelSource, render
from xeflash.jit.offline import Compilers
from xeflash.jit.provide import source_of
from xeflash.runtime import extension
from xeflash.runtime.interop import Placeholder
from xeflash.tune import xe
from xeflash.tune.desc import DTYPE_NAMES, AnyDesc, Desc
from xeflash.tune.models import SHAPES, Features, ModelShape

_LENGTHS = (32, 64, 128)  # tokens of prompts: longer ones have the tiles of the last
_KEYS = 1024


@dataclass(frozen=True)
class Target:
    """A device that kernels are compiled for. Without a queue it is a GPU of which only the architecture is known."""

    arch: str
    device: str = ""
    driver: str = ""
    queue: int | None = None


def target(name: str) -> Target:
    """Returns the device that a --device names: this machine's for cpu and xpu, else a GPU that need not be here."""
    if name in xe.DEVICES:
        return Target(xe.DEVICES[name])
    found = _core.devices()
    for index, device in enumerate(found):
        arch, facts = str(device["arch"]), (str(device["name"]), str(device["driver"]))
        if name == "cpu" and device["type"] == "cpu" and device["usm_system_allocations"]:
            return Target(arch, *facts, _core.host_queue())
        if name == "xpu" and device["backend"] == "level_zero" and arch in xe.ARCHITECTURES:
            return Target(arch, *facts, _core.new_queue(index))
    if name == "cpu":
        raise RuntimeError(f"no SYCL CPU device was found; mend it with: {extension.REMEDY}")
    others = ", ".join(str(device["name"]) for device in found) or "none"
    raise RuntimeError(f"--device xpu needs a GPU that has kernels; devices of this machine: {others}")


def kernels_of(
    models: tuple[str, ...], target: Target, dtypes: tuple[str, ...], training: bool = False
) -> Iterator[tuple[AnyDesc, KernelSource]]:
    """Yields the kernels that the layers of models ask for; a kernel that several of them share comes once."""
    seen: set[tuple[str, str]] = set()
    shapes = [(model, shape) for model in models for shape in SHAPES[model]]
    for model, shape in shapes:
        # Counts of compute units for which tiles are many, for which all heads are few for one pass of the gradients,
        # and for which tiles are few.
        units = (1, shape.heads_k * 3 // 2, 1 << 16)
        for dtype, layer in itertools.product(dtypes, shape.features):
            calls = _calls_of(shape, layer, DTYPE_NAMES[dtype], training)
            for call, count in itertools.product(calls, units):
                try:
                    asked = calls_kernels(call, target.arch, count, target.device, target.driver)
                except NotImplementedError as error:
                    print(f"skipped: {model} {dtype}: {error}", file=sys.stderr)
                    continue
                for desc in asked:
                    kernel = source_of(desc)
                    if (kernel.name, kernel.text) not in seen:
                        seen.add((kernel.name, kernel.text))
                        yield desc, kernel


def _calls_of(shape: ModelShape, layer: Features, dtype: str, training: bool) -> Iterator[Callable[[], object]]:
    """Yields a layer's calls: prompts of more than 16 tokens, new tokens on a plain cache, gradients of prompts."""
    heads, dim, dim_v = shape.heads_q, shape.head_dim, shape.head_dim_v

    def rows(length: int, heads: int, dim: int) -> Placeholder:
        return Placeholder((1, length, heads, dim), dtype)

    def arrays(length: int, keys: int) -> dict[str, Any]:
        return {
            "q": rows(length, heads, dim),
            "k": rows(keys, shape.heads_k, dim),
            "v": rows(keys, shape.heads_k, dim_v),
        }

    def per_head(wanted: bool) -> Placeholder | None:
        return Placeholder((heads,), "float32") if wanted else None

    more: dict[str, Any] = {"function": "xeflash compile", "layout": BSHD, "softcap": layer.softcap}
    more |= {"alibi_slopes": per_head(layer.alibi), "s_aux": per_head(layer.sinks)}
    for length in _LENGTHS:
        yield functools.partial(_core.forward, **arrays(length, _KEYS), **more)
    if any(kind.causal for kind in shape.features):  # others have no new tokens
        cache: dict[str, Any] = {f"{name}_cache": arrays(1, _KEYS)[name] for name in ("k", "v")}
        yield functools.partial(_core.forward, **arrays(1, 1), **cache, cache_length=0, **more)
    for length in _LENGTHS if training else ():
        results: dict[str, Any] = {name: rows(length, heads, dim_v) for name in ("out", "dout")}
        results["lse"] = Placeholder((1, heads, length), "float32")
        wanted = ("q", "k", "v", *(("s_aux",) if layer.sinks else ()))
        yield functools.partial(_core.backward, wanted=wanted, **arrays(length, length), **results, **more)


def peak_kernel(arch: str, dtype: str) -> tuple[bytes, int]:
    """Compiles kernels/peak.hpp for the CPU in code of `arch`; returns (native code, multiply-adds of a step)."""
    cpu = target("cpu")
    desc = Desc("peak", arch, DTYPE_NAMES[dtype], 1, 1, 1, device=cpu.device, driver=cpu.driver)
    if dtype == "bf16" and arch == "cpu-amx-bf16":
        multiply_adds = 32 * 32 * 32  # multiply_in_registers in cpu/amx.hpp
    else:
        vectors = 6 * (1 if arch == "cpu-generic" else 4)  # RegisterTile in cpu/mma.hpp
        multiply_adds = 16 * vectors * (2 if dtype == "bf16" and arch == "cpu-avx512-bf16" else 1)
    return provide.find_or_build(render(desc), desc, _core.host_queue()), multiply_adds


def _fill(kernel: KernelSource, desc: AnyDesc, target: Target, compilers: Compilers) -> str:
    """Keeps a kernel in the target's form; returns a line about it."""

    def device_code() -> bytes:
        return provide.device_code(kernel) or provide.kept_device_code(kernel, lambda: compilers.compile(kernel))

    start = time.perf_counter()
    if target.queue is None:
        binary = device_code()
    else:
        queue = target.queue
        binary = provide.kept_native(kernel, desc, lambda: provide.to_native(device_code(), desc, queue))
    return f"{kernel.name}: {len(binary)} bytes, {time.perf_counter() - start:.1f} s"


def _run_all(
    wanted: list[tuple[AnyDesc, KernelSource]], target: Target, pool: ThreadPoolExecutor, compilers: Compilers
) -> list[str]:
    """Fills the cache, with a bar on a terminal and a line per kernel; returns the errors."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    screen = Console(stderr=True)
    failures = []
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal, transient=True) as progress:
        task = progress.add_task("compiling", total=len(wanted))
        futures: list[Future[str]] = [pool.submit(_fill, kernel, desc, target, compilers) for desc, kernel in wanted]
        for future in as_completed(futures):
            try:
                print(future.result(), flush=True)
            except RuntimeError as error:
                failures.append(str(error))
            progress.advance(task)
    return failures


def compile_command(arguments: argparse.Namespace) -> int:
    """Fills the cache; returns 1 if a kernel failed, 2 if none could be kept, 130 if it was interrupted."""
    try:
        where = target(arguments.device)
    except RuntimeError as error:
        print(f"xeflash compile: {error}", file=sys.stderr)
        return 2
    if why := cache.why_nothing_is_kept():
        print(f"xeflash compile: {why}; set XEFLASH_CACHE_DIR to a writable folder of your own", file=sys.stderr)
        return 2
    wanted = list(kernels_of(arguments.model_shapes, where, arguments.dtype, arguments.training))
    compilers, pool = Compilers(), ThreadPoolExecutor(arguments.jobs)
    try:
        failures = _run_all(wanted, where, pool, compilers)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # once is enough
        compilers.end()
        pool.shutdown(cancel_futures=True)  # kernels that a driver is translating are waited for, and kept
        print("xeflash compile: interrupted; what was compiled is kept", file=sys.stderr)
        return 130
    for failure in failures:
        print(f"xeflash compile: {failure}", file=sys.stderr)
    kept = "native code" if where.queue is not None else "device code, which the first run translates for its GPU"
    print(f"{len(wanted) - len(failures)} kernels in {cache.cache_folder()}: {kept}")
    return 1 if failures else 0
