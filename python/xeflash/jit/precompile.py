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
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from xeflash import _core
from xeflash.jit import cache, provide
from xeflash.jit.calls import kernels_of as calls_kernels
from xeflash.jit.kernel import KernelSource, render
from xeflash.jit.model_calls import calls_of, check_choices, shape_of_rank
from xeflash.jit.offline import Compilers
from xeflash.jit.provide import source_of
from xeflash.runtime import extension
from xeflash.tune import xe
from xeflash.tune.desc import DTYPE_NAMES, AnyDesc, Desc
from xeflash.tune.model_config import ModelConfig
from xeflash.tune.models import SHAPES, ModelShape


@dataclass(frozen=True)
class Target:
    """A device that kernels are compiled for. Without a queue it is a GPU of which only the architecture is known."""

    arch: str
    device: str = ""
    driver: str = ""
    queue: int | None = None
    compute_units: int = 1 << 16


def target(name: str) -> Target:
    """Returns the device that a --device names: this machine's for cpu and xpu, else a GPU that need not be here."""
    if name in xe.DEVICES:
        return Target(xe.DEVICES[name])
    if name not in ("cpu", "xpu"):
        raise ValueError(f"device must be of cpu, xpu, {', '.join(xe.DEVICES)}, got {str(name)!r}")
    found = _core.devices()
    for index, device in enumerate(found):
        arch, facts = str(device["arch"]), (str(device["name"]), str(device["driver"]))
        if name == "cpu" and device["type"] == "cpu" and device["usm_system_allocations"]:
            return Target(arch, *facts, _core.host_queue(), device["compute_units"])
        if name == "xpu" and device["backend"] == "level_zero" and arch in xe.ARCHITECTURES:
            return Target(arch, *facts, _core.new_queue(index), device["compute_units"])
    if name == "cpu":
        raise RuntimeError(f"no SYCL CPU device was found; mend it with: {extension.REMEDY}")
    others = ", ".join(str(device["name"]) for device in found) or "none"
    raise RuntimeError(f"device xpu needs a GPU that has kernels; devices of this machine: {others}")


def kernels_of(
    function: str,
    shapes: Iterable[ModelShape],
    target: Target,
    dtypes: Collection[str],
    caches: Collection[str],
    page_size: int,
    tensor_parallel_size: int,
    training: bool,
) -> Iterator[tuple[AnyDesc, KernelSource]]:
    """Yields the kernels that the layers of models ask for; a kernel that several of them share comes once."""
    check_choices(function, dtypes, caches, page_size)
    seen: set[tuple[str, str]] = set()
    # A batch of sequences leaves each of them a share of the device.
    units = {1 << n for n in range(target.compute_units.bit_length())} | {target.compute_units}
    for shape, dtype in itertools.product(shapes, dtypes):
        share = shape_of_rank(function, shape, tensor_parallel_size)
        calls = calls_of(function, share, dtype, caches, page_size, training)
        for call, count in itertools.product(calls, sorted(units)):
            for desc in calls_kernels(call, target.arch, count, target.device, target.driver):
                kernel = source_of(desc)
                if (kernel.name, kernel.text) not in seen:
                    seen.add((kernel.name, kernel.text))
                    yield desc, kernel


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


def _fill_all(
    wanted: list[tuple[AnyDesc, KernelSource]],
    target: Target,
    pool: ThreadPoolExecutor,
    compilers: Compilers,
    say: Callable[[str], None],
) -> list[str]:
    """Fills the cache, with a bar on a terminal, and says a line per kernel; returns the errors."""
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
                say(future.result())
            except RuntimeError as error:
                failures.append(str(error))
            progress.advance(task)
    return failures


def _usable(function: str, device: str) -> Target:
    """Returns the device that a name says, where its kernels can be kept."""
    try:
        found = target(device)
    except (RuntimeError, ValueError) as error:
        raise type(error)(f"{function}: {error}") from None
    if why := cache.why_nothing_is_kept():
        raise RuntimeError(f"{function}: {why}; set XEFLASH_CACHE_DIR to a writable folder of your own")
    return found


def warm_up(
    config: Any,
    *,
    device: Any,
    dtype: Any = None,
    caches: Collection[str] = ("dense", "paged"),
    page_size: int = 16,
    tensor_parallel_size: int = 1,
    training: bool = False,
    jobs: int = 1,
) -> list[str]:
    """Compiles the attention kernels of a model into the cache of kernels, and returns their names.

    Calls of these kinds then compile nothing, in this process and later ones; `xeflash compile --config` does the same.

    Args:
        config: a model's folder or its config.json, a mapping with such keys, or a configuration of Transformers. It
            tells the heads, head dims, softcap and ALiBi of the language model; a mapping of num_attention_heads,
            num_key_value_heads, head_dim and dtype is enough.
        device: "cpu", "xpu" (the GPU of this machine), or a GPU that need not be here, such as "bmg", whose driver then
            translates each kernel once.
        dtype: of the model, a torch.dtype or its name; default that of config.
        caches: "dense": calls without a cache, and on one in the order of the sequence; "paged": packed queries on
            pages, as of vLLM and SGLang; "fp8": the same in float8_e4m3fn.
        page_size: keys of a page.
        tensor_parallel_size: ranks that share out the heads.
        training: the gradients of prompts, too.
        jobs: compilers at a time.

    >>> import xeflash
    >>> config = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "dtype": "float32"}
    >>> names = xeflash.warm_up(config, device="cpu", caches=["dense"])
    >>> any("flash_decode" in name for name in names)
    True
    """
    caches = [caches] if isinstance(caches, str) else caches
    read = ModelConfig("warm_up", config)
    shapes, dtypes = [read.shape], (read.dtype if dtype is None else str(dtype).removeprefix("torch."),)
    if jobs < 1:
        raise ValueError(f"warm_up: jobs must be positive, got {jobs}")
    where = _usable("warm_up", str(device))
    wanted = list(kernels_of("warm_up", shapes, where, dtypes, caches, page_size, tensor_parallel_size, training))
    compilers, pool = Compilers(), ThreadPoolExecutor(jobs)
    try:
        failures = _fill_all(wanted, where, pool, compilers, lambda _: None)
    finally:
        compilers.end()
        pool.shutdown(cancel_futures=True)
    if failures:
        raise RuntimeError(f"warm_up: {len(failures)} of {len(wanted)} kernels failed: {failures[0]}")
    return [kernel.name for _, kernel in wanted]


def compile_command(arguments: argparse.Namespace) -> int:
    """Fills the cache; returns 1 if a kernel failed, 2 if none could be kept, 130 if it was interrupted."""
    try:
        where = _usable("xeflash compile", arguments.device)
        shapes = [shape for name in arguments.model_shapes or () for shape in SHAPES[name]]
        dtypes = arguments.dtype or ("bf16",)
        if arguments.config is not None:
            config = ModelConfig("xeflash compile", arguments.config)
            shapes, dtypes = [config.shape], arguments.dtype or (config.dtype,)
        dtypes = tuple(DTYPE_NAMES.get(name, name) for name in dtypes)
        choices = (arguments.caches, arguments.page_size, arguments.tensor_parallel_size, arguments.training)
        wanted = list(kernels_of("xeflash compile", shapes, where, dtypes, *choices))
    except (RuntimeError, ValueError) as error:  # NotImplementedError is a RuntimeError
        print(error, file=sys.stderr)
        return 2
    compilers, pool = Compilers(), ThreadPoolExecutor(arguments.jobs)
    try:
        failures = _fill_all(wanted, where, pool, compilers, functools.partial(print, flush=True))
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
