"""The probe of `xeflash doctor`, run in a child process because it may crash: `-m xeflash.cli.probe`.

Two libsycl of different major versions in one process end in a segmentation fault, so loading is
tried here. The last line of stdout is one JSON object.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LIBSYCL = re.compile(r"(/\S*/libsycl\.so\.\S+)$", re.MULTILINE)
_TOLERANCE = 1e-5


def mapped_libsycl(maps: str) -> list[str]:
    """Returns the libsycl files in the text of /proc/self/maps."""
    return sorted(set(_LIBSYCL.findall(maps)))


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _import_torch() -> dict[str, Any]:
    try:
        torch = importlib.import_module("torch")
        return {"version": torch.__version__, "xpu": bool(torch.xpu.is_available())}
    except Exception as error:
        return {"error": _describe(error)}


def _import_core() -> dict[str, Any]:
    try:
        importlib.import_module("xeflash.runtime.extension").load()
        core: Any = importlib.import_module("xeflash._core")
        devices = [dict(device) for device in core.devices()]
        tunings = {device["name"]: _tunings_of(device) for device in devices if device["arch"]}
        return {"devices": devices, "tunings": tunings, "rates": core.measure_cpu_rates()}
    except Exception as error:
        return {"error": _describe(error)}


def _tunings_of(device: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Returns who may choose tiles for a device before the tables do: their level, file, and why it is skipped."""
    files_of = importlib.import_module("xeflash.tune.tuned").files_of
    return [(*level, why) for level, why in files_of(device["arch"], device["name"], device["driver"])]


def _attention_numpy(put: Callable[[Any], Any] = lambda x: x, get: Callable[[Any], Any] = lambda x: x) -> float:
    """Returns the error of a tiny attention on numpy arrays, or on copies of them, against its formula."""
    np: Any = importlib.import_module("numpy")
    attention: Any = importlib.import_module("xeflash").attention
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 5, 16), dtype=np.float32) for _ in range(3))
    scores = np.exp(q @ k.swapaxes(-1, -2) / 4)
    want = scores / scores.sum(-1, keepdims=True) @ v
    return float(np.abs(get(attention(put(q), put(k), put(v))) - want).max())


def _attention_torch(device: str) -> float:
    """Returns the error of a tiny attention on torch tensors against SDPA."""
    torch: Any = importlib.import_module("torch")
    attention: Any = importlib.import_module("xeflash").attention
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 5, 16) for _ in range(3))
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    got = attention(q.to(device), k.to(device), v.to(device))
    return float((got.cpu() - want).abs().max())


def _attention_usm(device: int) -> float:
    """Returns the error of a tiny attention on arrays in USM of a GPU, given by its place among the devices."""
    arrays: Any = importlib.import_module("xeflash.selftest.arrays")
    values: Any = importlib.import_module("xeflash.selftest.values").Values
    core: Any = importlib.import_module("xeflash._core")
    gpu = arrays.UsmArrays(core.new_queue(device), on_gpu=True)
    return _attention_numpy(lambda x: gpu.put(values.of(x, "float32")), lambda x: gpu.get(x).numbers)


def _try_attention(torch_facts: dict[str, Any] | None, devices: list[dict[str, Any]]) -> dict[str, str]:
    """Tries attention on each kind of array and on the first GPU with kernels; returns "ok" or the fault for each."""
    trials: dict[str, Any] = {}
    has_torch = torch_facts is not None and "error" not in torch_facts
    has_numpy = importlib.util.find_spec("numpy") is not None
    gpu = next((i for i, d in enumerate(devices) if d["backend"] == "level_zero" and d["arch"]), None)
    if has_torch:
        trials["torch cpu"] = lambda: _attention_torch("cpu")
    elif has_numpy:
        trials["numpy"] = _attention_numpy
    if torch_facts is not None and torch_facts.get("xpu"):
        trials["torch xpu"] = lambda: _attention_torch("xpu")
    elif gpu is not None and has_numpy:
        trials["gpu"] = lambda: _attention_usm(gpu)
    outcome = {}
    for name, trial in trials.items():
        try:
            error = trial()
            outcome[name] = "ok" if error <= _TOLERANCE else f"wrong result, error {error:.1e}"
        except Exception as error:
            outcome[name] = _describe(error)
    return outcome


def probe(with_torch: bool) -> dict[str, Any]:
    """Imports torch, if asked, and our module, runs attention once, and returns the devices and the libsycl in use."""
    facts: dict[str, Any] = {"torch": _import_torch() if with_torch else None}
    facts["core"] = _import_core()
    core = facts["core"]
    facts["attention"] = {} if "error" in core else _try_attention(facts["torch"], core["devices"])
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        maps = ""
    facts["mapped"] = mapped_libsycl(maps)
    return facts


if __name__ == "__main__":
    print(json.dumps(probe("--torch" in sys.argv[1:]), default=str))
