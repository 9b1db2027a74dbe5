"""`xeflash compile`: kernels into the cache before they are needed.

For a device of this machine that is native code, and a run compiles nothing. For a GPU that is not here it is device
code (SPIR-V) of its architecture, which a run has its driver translate: about a quarter of the time from source.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from xeflash import _core, tune
from xeflash.jit import cache, provide
from xeflash.jit.calls import describe, describe_backward
from xeflash.jit.kernel import KernelSource, render
from xeflash.jit.offline import Compilers
from xeflash.runtime import extension
from xeflash.tune import xe
from xeflash.tune.desc import DTYPE_NAMES, Desc
from xeflash.tune.models import SHAPES, Features, ModelShape


@dataclass(frozen=True)
class Target:
    """What kernels are compiled for. Without a queue it is a GPU of which only the architecture is known."""

    arch: str
    device: str = ""
    driver: str = ""
    queue: int | None = None


def target(name: str) -> Target:
    """The device that a --device names: this machine's for cpu and xpu, else a GPU that need not be here."""
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
) -> Iterator[tuple[Desc, KernelSource]]:
    """What the layers of models ask for; a kernel that several of them share comes once."""
    seen: set[tuple[str, str]] = set()
    for model in models:
        for dtype in dtypes:
            for layer in SHAPES[model].features:
                for desc in _descs_of(SHAPES[model], layer, DTYPE_NAMES[dtype], target, training):
                    try:
                        kernel = render(desc)
                    except NotImplementedError as error:
                        print(f"skipped: {model} {dtype} {desc.algorithm}: {error}", file=sys.stderr)
                        continue
                    if (kernel.name, kernel.text) not in seen:
                        seen.add((kernel.name, kernel.text))
                        yield desc, kernel


def _descs_of(shape: ModelShape, layer: Features, dtype: str, target: Target, training: bool) -> Iterator[Desc]:
    """Of prompts of more than 16 tokens, one query token, and new keys into a plain cache; the gradients of prompts."""
    dims = (shape.head_dim, shape.head_dim_v)
    device: dict[str, Any] = {"device": target.device, "driver": target.driver}
    hooks = ("SoftCap",) * (layer.softcap > 0) + ("Alibi",) * layer.alibi
    score = {"hooks": hooks, **device}
    group = shape.heads_q // shape.heads_k
    for few_tiles in (False, True):
        for queries in (32, 64, 128):
            yield describe(target.arch, dtype, *dims, queries, group, few_tiles=few_tiles, **score)
    yield describe(target.arch, dtype, *dims, 1, group, **score)
    access = "dwords" if target.arch in xe.ARCHITECTURES else ""
    yield Desc("append", target.arch, dtype, *dims, 0, access=access, **device)
    if not training:
        return
    schedule = tune.schedule(target.arch)
    one_pass = schedule.one_pass_bf16 if dtype == "bfloat16" else schedule.one_pass
    for rows in (32, 64, 128):
        for algorithm in ("flash_bwd_dq", "flash_bwd_dkv", *(("flash_bwd",) if one_pass else ())):
            yield describe_backward(algorithm, target.arch, dtype, *dims, rows, rows, **score)
    if layer.sinks:
        yield describe_backward("flash_bwd_heads", target.arch, dtype, *dims, 1, 1, **device)


def peak_kernel(arch: str, dtype: str) -> tuple[bytes, int]:
    """(native code, multiply-adds of a step) of kernels/peak.hpp on this machine's CPU device, in code of `arch`."""
    cpu = target("cpu")
    desc = Desc("peak", arch, DTYPE_NAMES[dtype], 1, 1, 1, device=cpu.device, driver=cpu.driver)
    if dtype == "bf16" and arch == "cpu-amx-bf16":
        multiply_adds = 32 * 32 * 32  # multiply_in_registers in cpu/amx.hpp
    else:
        vectors = 6 * (1 if arch == "cpu-generic" else 4)  # RegisterTile in cpu/mma.hpp
        multiply_adds = 16 * vectors * (2 if dtype == "bf16" and arch == "cpu-avx512-bf16" else 1)
    return provide.find_or_build(render(desc), desc, _core.host_queue()), multiply_adds


def _fill(kernel: KernelSource, desc: Desc, target: Target, compilers: Compilers) -> str:
    """Keeps what the target takes of a kernel; returns a line about it."""

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
    wanted: list[tuple[Desc, KernelSource]], target: Target, pool: ThreadPoolExecutor, compilers: Compilers
) -> list[str]:
    """Fills the cache, with a bar on a terminal and a line per kernel; returns what went wrong."""
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
    """Fills the cache; 1 if a kernel failed, 2 if none could be kept, 130 if it was interrupted."""
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
        pool.shutdown(cancel_futures=True)  # what a driver is translating is waited for, and kept
        print("xeflash compile: interrupted; what was compiled is kept", file=sys.stderr)
        return 130
    for failure in failures:
        print(f"xeflash compile: {failure}", file=sys.stderr)
    kept = "native code" if where.queue is not None else "device code, which the first run translates for its GPU"
    print(f"{len(wanted) - len(failures)} kernels in {cache.cache_folder()}: {kept}")
    return 1 if failures else 0
