"""The kernels that the package carries: the shapes of today's models, compiled to SPIR-V when it is built.

They lie in an archive per architecture, whose kernels are compressed together: they are so alike that one of them takes
a tenth of what it takes alone.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from xeflash.jit.kernel import KernelSource
from xeflash.tune.desc import Desc

_DTYPES = ("float32", "bfloat16", "float16")
_SOFTCAP = ("SoftCap",)
_IMAGE_DIMS = (40, 80, 160)  # head dims of Stable Diffusion 1.5: those of later models are 64 and 128


def default_set(release: bool) -> Iterator[Desc]:
    """Yields the default kernels for head dims 64 and 128 (Llama, Mistral, Qwen, GPT-OSS, Phi) and 256 (Gemma).

    A package that is built from its source has a compiler, and does with few kernels for GPUs. `release`: those of
    wheels, whose users may have none; Stable Diffusion's are among them.
    """
    for arch in ("cpu-avx512-bf16", "cpu-avx512", "cpu-generic"):
        for dtype in _DTYPES:
            if arch == "cpu-avx512" and dtype != "bfloat16":
                continue  # the same code as for cpu-avx512-bf16
            for head_dim in (64, 128):
                for rows in (32, 64):  # low tiles where they are few for the cores
                    yield Desc("flash_fwd", arch, dtype, head_dim, head_dim, rows)
                for rows in (1, 4, 8):  # heads that share a KV head
                    yield Desc("flash_decode", arch, dtype, head_dim, head_dim, rows)
            if arch != "cpu-generic":
                yield Desc("flash_fwd", arch, dtype, 256, 256, 64, hooks=_SOFTCAP)
                yield Desc("flash_decode", arch, dtype, 256, 256, 2, hooks=_SOFTCAP)
            for head_dim in _IMAGE_DIMS if release and dtype != "float16" else ():
                yield Desc("flash_fwd", arch, dtype, head_dim, head_dim, 64)
    for head_dim, hooks in ((64, ()), (128, ()), (256, _SOFTCAP)):
        for rows in (32, 64, 128):
            yield Desc("flash_fwd", "cpu-amx-bf16", "bfloat16", head_dim, head_dim, rows, hooks=hooks)
    for arch, access in (("pvc", "block2d"), ("bmg", "block2d"), ("dg2", "dwords")):
        for dtype in ("bfloat16", "float16"):
            if release:
                yield from _model_kernels(arch, dtype, access)
            else:
                for head_dim in (64, 128):
                    yield Desc("flash_fwd", arch, dtype, head_dim, head_dim, 128, access=access)


def _model_kernels(arch: str, dtype: str, access: str) -> Iterator[Desc]:
    """Yields kernels that serve models on a GPU without a compiler: prompts, decoding, caches, and training.

    A call takes a kernel of these where its own cannot be compiled: see stand_in_for in host/attention/schedule.hpp.
    The threads of a decoding kernel take turns at the keys: it fills a device with one sequence, and serves many, too.
    """
    for head_dim, hooks in ((64, ()), (128, ()), (256, ()), (128, _SOFTCAP), (256, _SOFTCAP)):
        for cache, unit in (("", 16), ("paged", 16), ("paged", 64)):
            for algorithm, rows in (("flash_fwd", 128), ("flash_decode", 8), ("flash_decode", 1)):
                if rows > 1 or not hooks:  # models that cap scores share KV heads
                    yield Desc(
                        algorithm, arch, dtype, head_dim, head_dim, rows,
                        hooks=hooks, split_keys=algorithm == "flash_decode", cache=cache, page_unit=unit, access=access,
                    )  # fmt: skip
    for head_dim in _IMAGE_DIMS:
        yield Desc("flash_fwd", arch, dtype, head_dim, head_dim, 128, access=access)
    for head_dim in (64, 128, 256) if arch != "pvc" else ():  # pvc's have the code of bmg's
        yield Desc("write_to_cache", arch, dtype, head_dim, head_dim, 0, access="dwords")
        for cache in ("", "paged"):
            yield Desc("append", arch, dtype, head_dim, head_dim, 0, cache=cache, access="dwords")
    for head_dim in (64, 128):
        for algorithm in ("flash_bwd_dq", "flash_bwd_dkv"):
            yield Desc(algorithm, arch, dtype, head_dim, head_dim, 128, access=access)
        yield Desc("flash_bwd_heads", arch, dtype, head_dim, head_dim, 1, access=access)


def member(kernel: KernelSource, headers: Path) -> str:
    """Returns the name of a kernel in its archive; another text of kernel or headers has another name."""
    return f"{kernel.digest(headers)}.spv"


def write(archive: Path, binaries: Iterable[Path]) -> None:
    """Packs files in this order; similar files should follow each other."""
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for binary in binaries:
            info = tarfile.TarInfo(binary.name)  # without owner and time: the same kernels, the same archive
            info.size = binary.stat().st_size
            with binary.open("rb") as file:
                tar.addfile(info, file)


def read(folder: Path, kernel: KernelSource, headers: Path) -> bytes | None:
    """Reads the SPIR-V of a kernel from the archives in `folder`, or returns None if it is not there."""
    wanted = member(kernel, headers)
    try:
        with tarfile.open(folder / f"{kernel.arch}.tar.xz", "r|xz") as tar:
            for info in tar:
                if info.name == wanted and (file := tar.extractfile(info)):
                    return file.read()
    except (FileNotFoundError, tarfile.CompressionError):  # a Python without lzma compiles instead
        return None
    return None
