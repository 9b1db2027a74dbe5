"""The environment block of a result: what ran, where, started how."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import shlex
import sys
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
)


def package_version(name: str) -> str | None:
    """Return the version of an installed distribution."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpuinfo(key: str) -> str:
    """Return the first value of a key in /proc/cpuinfo, "" elsewhere."""
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
    """Return the processor's name."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def cpu_isa() -> tuple[str, ...]:
    """Return the vector extensions that matter to our kernels, in rising order."""
    present = set(_cpuinfo("flags").split())
    return tuple(flag for flag in _ISA_FLAGS if flag in present)


def usable_cpus() -> int:
    """Return the number of CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory() -> int | None:
    """Return the bytes that can be allocated without swapping, None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def last_level_cache() -> int | None:
    """Return the bytes of the last-level cache CPU 0 sees, None if unknown."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="utf-8").strip()
        if text.endswith("K"):
            sizes.append(int(text[:-1]) * 1024)
    return max(sizes, default=None)


def load_average() -> float | None:
    """Return the mean number of running threads of the last minute, None if unknown."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def described(device: str) -> str:
    """Return torch's device with what SYCL says of it, if it is a GPU."""
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
    """Return the block that every JSON result carries; all values are JSON types."""
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
