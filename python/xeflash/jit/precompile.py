"""`xeflash compile`: kernels into the cache before they are needed; for GPUs as SPIR-V, which needs no GPU."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from xeflash import _core, _runtime
from xeflash.jit import cache
from xeflash.jit.kernel import DTYPE_NAMES, Desc, KernelSource, render
from xeflash.jit.provide import HEADERS, PACKAGE, find_or_build, kept
from xeflash.models import SHAPES

_ACCESS = {"pvc": "block2d", "bmg": "block2d", "dg2": "dwords"}  # of contiguous arrays


def kernels_of(
    models: tuple[str, ...], device: dict[str, str], dtypes: tuple[str, ...]
) -> Iterator[tuple[Desc, KernelSource]]:
    """Prefill and one-token decode of each model's layers; a kernel that several models share comes once."""
    seen: set[str] = set()
    for model in models:
        shape = SHAPES[model]
        for dtype in dtypes:
            for layer in shape.features:
                for algorithm, rows in (
                    ("flash_fwd", 128),
                    ("flash_decode", shape.heads_q // shape.heads_k),
                ):
                    desc = Desc(algorithm, device["arch"], DTYPE_NAMES[dtype], shape.head_dim, shape.head_dim_v, rows,
                                softcap=layer.softcap > 0, alibi=layer.alibi, access=_ACCESS.get(device["arch"], ""),
                                device=device["name"], driver=device["driver"])  # fmt: skip
                    try:
                        kernel = render(desc)
                    except NotImplementedError as error:
                        print(f"skipped: {model} {dtype} {algorithm}: {error}", file=sys.stderr)
                        continue
                    if kernel.name not in seen:
                        seen.add(kernel.name)
                        yield desc, kernel


def target(name: str) -> dict[str, str]:
    """The device that a --device names: the one of this machine for cpu, a family for GPUs."""
    if name != "cpu":
        return {"arch": name, "name": "", "driver": ""}
    for device in _core.devices():
        if device["type"] == "cpu" and device["usm_system_allocations"]:
            return {key: str(device[key]) for key in ("arch", "name", "driver")}
    raise RuntimeError(f"no SYCL CPU device was found; mend it with: {_runtime.REMEDY}")


def peak_kernel(dtype: str) -> tuple[bytes, int]:
    """(native code, multiply-adds of a step) of kernels/peak.hpp on this machine's CPU device."""
    device = target("cpu")
    arch = device["arch"]
    desc = Desc("peak", arch, DTYPE_NAMES[dtype], 1, 1, 1, device=device["name"], driver=device["driver"])
    if dtype == "bf16" and arch == "cpu-amx-bf16":
        multiply_adds = 32 * 32 * 32  # multiply_in_registers in cpu/amx.hpp
    else:
        vectors = 6 * (1 if arch == "cpu-generic" else 4)  # RegisterTile in cpu/mma.hpp
        multiply_adds = 16 * vectors * (2 if dtype == "bf16" and arch == "cpu-avx512-bf16" else 1)
    return find_or_build(render(desc), desc, _core.host_queue()), multiply_adds


def compile_offline(kernel: KernelSource) -> cache.Built:
    """SPIR-V from libsycl-jit in a process of its own, without a device."""
    library = _runtime.in_distribution("intel-sycl-rt", "libsycl-jit.so")
    if library is None:
        raise RuntimeError(f"libsycl-jit.so was not found; mend it with: {_runtime.REMEDY}")
    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder) / "source.cpp", Path(folder) / "kernel.spv"
        source.write_text(kernel.text)
        command = [
            str(PACKAGE / "bin" / "spirv"),
            str(library),
            str(source),
            str(output),
            *kernel.options,
            f"-I{HEADERS}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{kernel.name} did not compile:\n{done.stderr}")
        return cache.Built(output.read_bytes(), done.stderr)


def compile_command(arguments: argparse.Namespace) -> int:
    """Fills the cache; prints a line per kernel."""
    wanted = list(kernels_of(arguments.model_shapes, target(arguments.device), arguments.dtype))

    def one(item: tuple[Desc, KernelSource]) -> str:
        desc, kernel = item
        start = time.perf_counter()
        if arguments.device == "cpu":
            binary = find_or_build(kernel, desc, _core.host_queue())
        else:
            binary = kept(kernel, desc, lambda: compile_offline(kernel))
        return f"{kernel.name}: {len(binary)} bytes, {time.perf_counter() - start:.1f} s"

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for line in pool.map(one, wanted):
            print(line)
    print(f"{len(wanted)} kernels in {cache.cache_folder()}")
    return 0
