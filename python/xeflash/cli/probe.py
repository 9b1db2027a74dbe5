"""What `xeflash doctor` tries in a child process, because it may crash: `-m xeflash.cli.probe`.

Two libsycl of different major versions in one process end in a segmentation fault, so loading is
tried here. The last line of stdout is one JSON object.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

_LIBSYCL = re.compile(r"(/\S*/libsycl\.so\.\S+)$", re.MULTILINE)
_TOLERANCE = 1e-5


def mapped_libsycl(maps: str) -> list[str]:
    """Return the libsycl files in the text of /proc/self/maps."""
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
        importlib.import_module("xeflash._runtime").load()
        core: Any = importlib.import_module("xeflash._core")
        return {"devices": [dict(device) for device in core.devices()]}
    except Exception as error:
        return {"error": _describe(error)}


def _attention_numpy() -> float:
    """Return the error of a tiny attention on numpy arrays against its formula."""
    np: Any = importlib.import_module("numpy")
    attention: Any = importlib.import_module("xeflash").attention
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, 5, 16), dtype=np.float32) for _ in range(3))
    scores = np.exp(q @ k.swapaxes(-1, -2) / 4)
    want = scores / scores.sum(-1, keepdims=True) @ v
    return float(np.abs(attention(q, k, v) - want).max())


def _attention_torch(device: str) -> float:
    """Return the error of a tiny attention on torch tensors against SDPA."""
    torch: Any = importlib.import_module("torch")
    attention: Any = importlib.import_module("xeflash").attention
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 5, 16) for _ in range(3))
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    got = attention(q.to(device), k.to(device), v.to(device))
    return float((got.cpu() - want).abs().max())


def _try_attention(torch_facts: dict[str, Any] | None) -> dict[str, str]:
    """Return "ok" or what went wrong for each kind of array that can be tried."""
    trials: dict[str, Any] = {}
    if torch_facts is not None and "error" not in torch_facts:
        trials["torch cpu"] = lambda: _attention_torch("cpu")
        if torch_facts["xpu"]:
            trials["torch xpu"] = lambda: _attention_torch("xpu")
    elif importlib.util.find_spec("numpy") is not None:
        trials["numpy"] = _attention_numpy
    outcome = {}
    for name, trial in trials.items():
        try:
            error = trial()
            outcome[name] = "ok" if error <= _TOLERANCE else f"wrong result, error {error:.1e}"
        except Exception as error:
            outcome[name] = _describe(error)
    return outcome


def probe(with_torch: bool) -> dict[str, Any]:
    """Load (torch and) our module, list devices, run attention once, list the libsycl in use."""
    facts: dict[str, Any] = {"torch": _import_torch() if with_torch else None}
    facts["core"] = _import_core()
    facts["attention"] = {} if "error" in facts["core"] else _try_attention(facts["torch"])
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        maps = ""
    facts["mapped"] = mapped_libsycl(maps)
    return facts


if __name__ == "__main__":
    print(json.dumps(probe("--torch" in sys.argv[1:]), default=str))
