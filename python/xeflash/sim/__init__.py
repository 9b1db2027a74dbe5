"""A simulated Intel GPU for SYCL in this process: it runs the native kernels of real cards, and checks what they do.

>>> import xeflash.sim
>>> xeflash.sim.enable("bmg")  # or XEFLASH_SIM=bmg in the environment; before SYCL is asked for devices
>>> import dpctl
>>> dpctl.SyclDevice("level_zero:gpu").name
'Intel(R) Arc(TM) B580 Graphics (simulated)'

Devices: ``pvc`` (Data Center GPU Max 1550, one stack), ``bmg`` (Arc B580), ``dg2`` (Arc A770); and their relatives
``bmg-g31`` (Arc Pro B70), ``lnl`` (Lunar Lake), ``ptl`` (Panther Lake), ``ats-m`` (Flex 170), ``arl-h`` (Arrow Lake H),
``mtl-h`` (Meteor Lake H, which has no matrix unit). ``bmg@20.1.9`` is one that says that it has this IP version.
Results are those of the machine code; times mean nothing. Kernels are compiled by Intel's ``ocloc``:
``python -m xeflash.sim.get_ocloc`` fetches one. What is checked: ``check``, a comma list of bounds, uninit, host,
deferred, slm-races, global-races, interleave, block2d, math; ``all`` (the default) or ``none``; ``spills``, which is
not one of ``all``: kernels whose values do not fit in registers; ``listing``, nor is it: records then say how often
each instruction ran; ``seed=N``, ``dpas=exact|stepwise``, ``denormals=keep|flush``: what the compiler makes of kernels
that do not say it (those of 2024 flush);
``caches=l2|l1+l2``: records then say what passes the L2 of the device to and from memory; ``caches=l2:24`` has one of
24 MiB. What is in it stays from launch to launch, until ``clear_caches()``.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xeflash.sim.library import library_path, load_library

DEVICES = ("pvc", "bmg", "dg2", "bmg-g31", "lnl", "ptl", "ats-m", "arl-h", "mtl-h")

__all__ = [
    "DEVICES",
    "LaunchRecord",
    "clear_caches",
    "clear_fault",
    "clear_launches",
    "enable",
    "enabled",
    "get_check",
    "last_fault",
    "last_launches",
    "library_path",
    "set_check",
]


@dataclass(frozen=True)
class LaunchRecord:
    """The record of one launch.

    Instructions count once per hardware thread; bytes are those of active lanes.

    The fields are those of perf/xesim/observe/record_fields.inc, in its order.
    """

    kernel: str
    device: str
    groups: tuple[int, int, int]
    local: tuple[int, int, int]
    simd: int
    grf: int
    threads: int
    instructions: int
    dpas: int
    math: int
    moves: int
    float_alu: int
    integer_alu: int
    control: int
    sync: int
    sends: int
    dpas_macs: int
    dpas_useful: float
    barriers: int
    block2d_read: int
    block2d_written: int
    block_read: int
    block_written: int
    gather_read: int
    scatter_written: int
    atomic_bytes: int
    prefetch_bytes: int
    global_read: int
    global_written: int
    lines_read: int
    lines_written: int
    # With caches=...: bytes of whole lines, and the number of lines that were prefetched and left L2 before their use.
    l2_read: int
    memory_read: int
    memory_written: int
    prefetches_lost: int
    slm_read: int
    slm_written: int
    scratch_read: int
    scratch_written: int
    block2d_small_surfaces: int
    slm_size: int
    spill_bytes: int
    scratch_size: int
    # With check=listing: address, how often it ran, class (a field's name above) and text of each instruction.
    listing: tuple[tuple[int, int, str, str], ...]
    # Times of the simulator itself; with XEFLASH_SIM_PROFILE=1 also the share of dpas, math, moves, float ALU, integer
    # ALU, control, sync and sends in its time.
    simulation_seconds: float
    simulation_threads: int
    simulation_class_share: tuple[float, ...]


_library: ctypes.CDLL | None = None
_devices: tuple[str, ...] = ()


def enabled() -> tuple[str, ...]:
    """Returns the devices that this process simulates."""
    return _devices


def _mapped(pattern: str) -> str | None:
    """Finds a file in this process's memory map whose name matches."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            match = re.search(r"\s(/.*)$", line)
            if match and re.search(pattern, match[1]):
                return match[1]
    return None


def _refuse_late() -> None:
    """Raises an error if SYCL has already chosen this process's devices."""
    adapter = _mapped(r"/libur_adapter_level_zero[^/]*$")
    if adapter:
        raise RuntimeError(
            f"xeflash.sim.enable: SYCL has looked for devices in this process already ({adapter} is loaded), and "
            "looks once; call enable() before the first use of SYCL (dpctl, torch.xpu, xeflash functions), or start "
            "Python with XEFLASH_SIM set and import xeflash first"
        )
    loader = _mapped(r"/libze_loader\.so\.1[^/]*$")
    if loader and Path(loader).resolve() != library_path().resolve():
        raise RuntimeError(
            f"xeflash.sim.enable: a real Level Zero loader ({loader}) is in this process; call enable() before "
            "what loaded it"
        )


def enable(*devices: str, check: str | None = None) -> None:
    """Gives this process simulated GPUs: ``enable("pvc")``, ``enable("bmg", "dg2")`` or ``enable("bmg,dg2")``.

    Args:
        devices: their names, see the module.
        check: what is checked, see the module; default as ``XEFLASH_SIM_CHECK`` says, or all.
    """
    global _library, _devices
    names = tuple(name.strip() for text in devices for name in text.split(",") if name.strip())
    if not names:
        raise ValueError(f"xeflash.sim.enable: name at least one device, of {', '.join(DEVICES)}")
    for name in names:
        device, _, version = name.partition("@")
        if device not in DEVICES or ("@" in name and not re.fullmatch(r"\d+\.\d+\.\d+", version)):
            known = ", ".join(DEVICES)
            raise ValueError(f"xeflash.sim.enable: there is no simulated device {name!r}; known are {known}")
    if _library is not None:
        if names != _devices:
            raise RuntimeError(
                f"xeflash.sim.enable: this process simulates {', '.join(_devices)} already and cannot change to "
                f"{', '.join(names)}; use another process"
            )
        if check is not None:
            set_check(check)
        return
    _refuse_late()
    os.environ["XEFLASH_SIM"] = ",".join(names)
    # The runtime's loader looks here, and finds the library in the process already.
    os.environ["ZEL_LIBRARY_PATH"] = str(library_path().resolve().parent)
    if check != "none" and os.environ.get("XEFLASH_SIM_CHECK") != "none":
        # Every allocation then is one of the simulator's, and ends where the program said.
        os.environ.setdefault("UR_L0_DISABLE_USM_ALLOCATOR", "1")
    # The runtime's adapter for older devices otherwise corrupts its own lock when a wait reports a fault.
    os.environ.setdefault("UR_L0_QUEUE_SYNCHRONIZE_NON_BLOCKING", "0")
    loaded = load_library()
    for function in ("xesim_last_launches", "xesim_last_fault", "xesim_get_check", "xesim_set_check"):
        getattr(loaded, function).restype = ctypes.c_char_p
    loaded.xesim_set_check.argtypes = [ctypes.c_char_p]
    if check is None:
        check = os.environ.get("XEFLASH_SIM_CHECK")
    if check is not None:
        _set_check(loaded, check)
    _library, _devices = loaded, names


def _loaded(function: str) -> ctypes.CDLL:
    if _library is None:
        raise RuntimeError(f"xeflash.sim.{function}: no device is simulated; call xeflash.sim.enable() first")
    return _library


def _set_check(library: ctypes.CDLL, text: str) -> None:
    wrong = library.xesim_set_check(text.encode())
    if wrong:
        raise ValueError(f"xeflash.sim: {wrong.decode()}")


def set_check(text: str) -> None:
    """Sets the checks from now on; see the module's text for their names."""
    _set_check(_loaded("set_check"), text)


def get_check() -> str:
    """Returns the checks, in the form that set_check() takes."""
    value: bytes = _loaded("get_check").xesim_get_check()
    return value.decode()


def last_launches() -> list[LaunchRecord]:
    """Returns the launches that have run, oldest first; the newest 4096 are kept."""
    value: bytes = _loaded("last_launches").xesim_last_launches()
    records = []
    for entry in json.loads(value.decode()):
        values: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in entry.items()}
        records.append(LaunchRecord(**values))
    return records


def clear_launches() -> None:
    """Forgets the launches that have run."""
    _loaded("clear_launches").xesim_clear_launches()


def clear_caches() -> None:
    """Forgets what is in the caches that caches=... counts; nothing is written back."""
    _loaded("clear_caches").xesim_clear_caches()


def last_fault() -> str:
    """Returns the text of the last fault, as it was printed, or "" if there was none."""
    value: bytes = _loaded("last_fault").xesim_last_fault()
    return value.decode(errors="replace")


def clear_fault() -> None:
    """Forgets the last fault."""
    _loaded("clear_fault").xesim_clear_fault()
