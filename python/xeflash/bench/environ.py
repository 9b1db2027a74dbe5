"""The environment block of a result: what ran, where, started how."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import platform
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

PACKAGES = ("xeflash", "torch", "intel-sycl-rt", "intel-opencl-rt", "intel-cmplr-lib-ur", "dpctl")
_ISA_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16")
_VARIABLES = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "DPCPP_CPU_NUM_CUS",
    "DPCPP_CPU_PLACES",
    "DPCPP_CPU_SCHEDULE",
    "CL_CONFIG_CPU_TARGET_ARCH",
    "ONEAPI_DEVICE_SELECTOR",
    "XEFLASH_TUNED",
)

_CPUS = Path("/sys/devices/system/cpu")
MOST_OF_MEMORY = 0.6


def package_version(name: str) -> str | None:
    """Returns the version of an installed distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpuinfo(key: str) -> str:
    """Returns the first value of a key in /proc/cpuinfo, "" elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def cpu_name() -> str:
    """Returns the processor's name."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def cpu_isa() -> tuple[str, ...]:
    """Returns the vector extensions that matter to our kernels, in rising order."""
    present = set(_cpuinfo("flags").split())
    return tuple(flag for flag in _ISA_FLAGS if flag in present)


def cpus() -> list[int]:
    """Returns the CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_cpus() -> int:
    """Returns how many these are."""
    return len(cpus())


def available_memory(device: str = "cpu") -> int | None:
    """Returns the bytes that can be allocated without swapping and within this process's cgroup, None if unknown."""
    if device.startswith("xpu"):
        return _available_on_gpu()
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return min([*found, *_left_in_cgroups(Path("/sys/fs/cgroup"))], default=None)


def _left_in_cgroups(root: Path) -> list[int]:
    """Returns the bytes free under each cgroup limit: in v2 our group's and its parents', in v1 the mounted one."""
    try:
        group = Path("/proc/self/cgroup").read_text(encoding="utf-8").strip().rpartition("::")[2].lstrip("/")
    except OSError:
        group = ""
    folders = [root / group, *(root / group).parents]
    pairs = [(x / "memory.max", x / "memory.current") for x in folders if x == root or root in x.parents]
    pairs.append((root / "memory/memory.limit_in_bytes", root / "memory/memory.usage_in_bytes"))
    left = []
    for most, used in pairs:
        with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit
            files = _of_files(used.with_name("memory.stat"))
            left.append(max(0, int(most.read_text()) - int(used.read_text()) + files))
    return left


def _of_files(statistics: Path) -> int:
    """Returns the bytes of inactive files in a cgroup, which the system gives back where memory is short."""
    with contextlib.suppress(OSError):
        words = dict(line.split() for line in statistics.read_text().splitlines())
        return int(words.get("total_inactive_file", words.get("inactive_file", 0)))
    return 0


def _available_on_gpu() -> int | None:
    """Returns the memory that torch's device says is free, or that torch has not taken.

    Drivers that do not know say 0, or raise.
    """
    xpu: Any = sys.modules["torch"].xpu
    ways: tuple[Callable[[], Any], ...] = (
        lambda: xpu.mem_get_info()[0],
        lambda: xpu.get_device_properties().total_memory - xpu.memory_reserved(),
    )
    for free in ways:
        with contextlib.suppress(RuntimeError, AttributeError):  # older versions of torch do not have all of these
            if found := int(free()):
                return found
    return None


def too_large(needed: float, free: int | None) -> str:
    """Returns why a case that needs so many bytes is left out, or "": none takes more than 60 % of the free ones."""
    if free is None or needed <= MOST_OF_MEMORY * free:
        return ""
    return f"needs about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free, of which {MOST_OF_MEMORY:.0%} are used"


def data_caches(cpus: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Returns level -> (bytes of one cache, how many there are) for these CPUs, from level 2 on."""
    found: dict[tuple[int, str], int] = {}
    for cpu in cpus:
        for folder in (_CPUS / f"cpu{cpu}" / "cache").glob("index*"):
            level, kind, size, shared = (
                (folder / name).read_text(encoding="ascii").strip()
                for name in ("level", "type", "size", "shared_cpu_list")
            )
            if int(level) > 1 and kind != "Instruction" and size.endswith("K"):
                found[int(level), shared] = int(size[:-1]) * 1024
    levels = sorted({level for level, _ in found})
    sizes = {level: [size for (other, _), size in found.items() if other == level] for level in levels}
    return {level: (min(some), len(some)) for level, some in sizes.items()}


def last_level_cache() -> int | None:
    """Returns the bytes of the last-level cache CPU 0 sees, None if unknown."""
    return max((size for size, _ in data_caches([0]).values()), default=None)


def load_average() -> float | None:
    """Returns the mean number of running threads of the last minute, None if unknown."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def described(device: str) -> str:
    """Returns torch's device with what SYCL says of it, if it is a GPU."""
    if not device.startswith("xpu"):
        return device
    torch: Any = importlib.import_module("torch")
    core: Any = importlib.import_module("xeflash._core")
    name = str(torch.xpu.get_device_name(device))
    for gpu in core.devices():
        if gpu["name"] == name and gpu["type"] == "gpu":
            note = "; its times mean nothing" if "(simulated)" in name else ""
            return f"{device}, {name} ({gpu['arch']}, IP version {gpu['ip_version']}), driver {gpu['driver']}{note}"
    return f"{device}, {name}"


def environment() -> dict[str, object]:
    """Returns the block that every JSON result carries; all values are JSON types."""
    return {
        "cpu": cpu_name(),
        "isa": list(cpu_isa()),
        "cpus": usable_cpus(),
        "load_average": load_average(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: package_version(name) for name in PACKAGES},
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "command": shlex.join(["xeflash", *sys.argv[1:]]),
    }
