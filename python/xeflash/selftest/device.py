"""The device that a --device names, opened in this process, and facts about it."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Any

from xeflash.bench.environ import package_version
from xeflash.selftest.arrays import Arrays, TorchArrays, UsmArrays

_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")


def open_device(name: str) -> tuple[Arrays, dict[str, Any]]:
    """Opens auto, cpu, xpu, or a simulated GPU such as sim:bmg; returns its arrays, and facts for the report.

    torch makes them where it is there and has the device, else they are in USM.
    """
    sim: Any = importlib.import_module("xeflash.sim")
    if name.startswith("sim:"):
        sim.enable(name.removeprefix("sim:"))
    xeflash: Any = importlib.import_module("xeflash")
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        torch = None
    assert xeflash.attention  # loads the extension
    core: Any = importlib.import_module("xeflash._core")
    devices = [dict(device) for device in core.devices()]
    gpus = [device for device in devices if device["backend"] == "level_zero" and device["arch"]]
    torch_has_it = torch is not None and not name.startswith("sim:") and bool(torch.xpu.is_available())
    if name != "cpu" and (gpus or torch_has_it):
        device, simulated = gpus[0] if gpus else {}, bool(sim.enabled())
        if simulated and device and "+ocloc." not in device["driver"]:  # it would fail at the first kernel
            why = "found none that works; get one: python -m xeflash.sim.get_ocloc"
            if named := os.environ.get("XEFLASH_OCLOC"):
                why = f"XEFLASH_OCLOC={named} is none that works; try: unset XEFLASH_OCLOC"
            raise RuntimeError(f"--device {name} needs ocloc, Intel's offline compiler, and {why}")
        if torch_has_it:
            wanted = torch.xpu.get_device_name(0)
            device = next((gpu for gpu in gpus if gpu["name"] == wanted), {"name": wanted})
            return TorchArrays("xpu"), {**device, "arrays": "torch on xpu", "simulated": simulated}
        queue = core.new_queue(devices.index(device))
        return UsmArrays(queue, True), {**device, "arrays": "USM", "simulated": simulated}
    if name not in ("auto", "cpu"):
        found = ", ".join(f"{device['name']} ({device['arch'] or 'no kernels'})" for device in devices) or "none"
        raise RuntimeError(f"--device {name} needs a GPU that has kernels; devices of this machine: {found}")
    device = next((device for device in devices if device["type"] == "cpu" and device["usm_system_allocations"]), {})
    if torch is not None:
        return TorchArrays("cpu"), {**device, "arrays": "torch on cpu", "simulated": False}
    return UsmArrays(core.host_queue(), False), {**device, "arrays": "USM", "simulated": False}


def software(driver: str) -> dict[str, Any]:
    """Returns the libraries that took part; of libsycl and IGC, the driver's compiler, the files."""
    maps = Path("/proc/self/maps").read_text()
    libsycl = sorted(set(re.findall(r"(/\S*/libsycl\.so\.\S+)$", maps, re.MULTILINE)))
    return {
        "libsycl": libsycl,
        "intel-sycl-rt": package_version("intel-sycl-rt"),
        "torch": package_version("torch"),
        "igc": _igc(maps, driver),
    }


def _igc(maps: str, driver: str) -> str | None:
    """Returns the version of Intel's graphics compiler: as loaded, of a simulator's ocloc, or as installed."""
    loaded = re.search(r"/libigc\.so\.([\d.]+\d)", maps)
    if loaded:
        return loaded[1]
    ocloc = re.search(r"\+(ocloc\.\S+)", driver)
    if ocloc:
        return ocloc[1]
    links = [path.resolve().name for folder in _FOLDERS for path in sorted(Path(folder).glob("libigc.so.*"))]
    versions = sorted({name.removeprefix("libigc.so.") for name in links})
    return f"{', '.join(versions)} (installed)" if versions else None
