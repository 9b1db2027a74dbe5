"""A true XPU backend for a CPU build of torch, on the GPUs that SYCL sees in this process: simulated ones, as a rule.

Tensors on "xpu" then are torch's own: its dispatcher, guards, streams, events, DLPack and Python code are used as they
are. Devices, memory and a few operators are written here, against torch's headers, and behave as those of torch+xpu;
every other operator runs on the CPU. The extension fits the installed torch only, so it is compiled on this machine,
once, into the cache folder.

>>> import torch_xpu
>>> torch_xpu.install()  # before torch is imported
>>> import torch
>>> torch.ones(3, device="xpu")
tensor([1., 1., 1.], device='xpu:0')
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from torch_xpu.build import BuildError, build, torch_folder

__all__ = ["BuildError", "build", "install", "installed"]

_extension: ModuleType | None = None


def install(extension: Path | None = None) -> None:
    """Makes the next `import torch` one with an XPU backend, unless it has one of its own; BuildError says why not.

    extension: what `build` gave before, for a machine that can compile nothing.
    """
    if "torch" in sys.modules:
        raise RuntimeError("torch_xpu.install: torch is imported already, and binds its backends when it is")
    if not (torch_folder() / "lib" / "libc10_xpu.so").exists():
        sys.meta_path.insert(0, _WhenTorchXpuIsImported(extension or build()))


def installed() -> bool:
    """Whether torch's XPU backend is this one."""
    return _extension is not None


class _WhenTorchXpuIsImported(importlib.abc.MetaPathFinder):
    """torch.xpu takes its functions from torch._C when it is imported: they have to be there just before."""

    def __init__(self, extension: Path) -> None:
        self._extension = extension

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "torch.xpu":
            sys.meta_path.remove(self)
            _bind(sys.modules["torch._C"], _load(self._extension))


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("_torch_xpu", path)
    assert spec is not None and spec.loader is not None
    extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    return extension


def _bind(core: Any, extension: Any) -> None:
    global _extension
    _extension = extension
    for name in dir(extension):
        if name.startswith(("_xpu_", "_XPU")):
            setattr(core, name, getattr(extension, name))
    core._XpuDeviceProperties = _Properties
    core._XpuStreamBase, core._XpuEventBase = _stream_base(core), _event_base(core)
    core._xpu_XPUAllocator = type("_xpu_XPUAllocator", (), {})
    core._xpu_init = _initialize
    core._has_xpu = True
    _keep_contexts_in_the_main_thread(core)


def _keep_contexts_in_the_main_thread(core: Any) -> None:
    """So that no thread of torch's is the last to hold the context of a backward pass.

    torch stashes a contextvars context for each pass, its device's thread copies it, and the thread that called forgets
    it at the end. Whoever lets go of it last takes the GIL. A thread of torch's that does so while Python ends is ended
    by CPython before 3.14 in the midst of a destructor, and the process aborts ("terminate called without an active
    exception") after right results. In other threads than the main one torch has to forget it, as it did.
    """
    forget = core._remove_obj_from_tls

    def forget_elsewhere(key: str) -> None:
        if threading.current_thread() is not threading.main_thread():
            forget(key)

    core._remove_obj_from_tls = forget_elsewhere


def _initialize() -> None:
    import torch

    extension: Any = _extension
    extension.initialize()
    known: dict[int, _Properties] = {}

    def properties_of(device: int | None) -> _Properties:
        index = torch.xpu.current_device() if device is None or device < 0 else device
        return known.setdefault(index, _Properties(extension.properties(index)))

    torch.xpu._get_device_properties = properties_of
    torch.xpu.default_generators = tuple(extension.generators())


class _Properties:
    type, uuid = "gpu", "0"
    has_bfloat16_conversions = has_subgroup_matrix_multiply_accumulate = has_subgroup_2d_block_io = True
    is_integrated_gpu = False

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)

    def __repr__(self) -> str:
        return f"_XpuDeviceProperties(name={self.name!r}, platform_name={self.platform_name!r})"


def _stream_base(core: Any) -> type:
    class XpuStreamBase(core.Stream):
        def __new__(cls, priority: int = 0, stream_id: int = 0, device_index: int = 0, device_type: int = 0) -> Any:
            if device_type:
                place = {"stream_id": stream_id, "device_index": device_index, "device_type": device_type}
                return super().__new__(cls, **place)
            return super().__new__(cls, device=f"xpu:{core._xpu_getDevice()}", priority=priority)

        @property
        def sycl_queue(self) -> int:
            return self.native_handle

    return XpuStreamBase


def _event_base(core: Any) -> type:
    class XpuEventBase:
        """torch.Event of any device; it takes no subclasses in its own methods."""

        def __new__(cls, enable_timing: bool = False) -> Any:
            self = object.__new__(cls)
            self.event = core.Event(device="xpu", enable_timing=enable_timing)
            return self

        @property
        def device(self) -> Any:
            return self.event.device

        @property
        def sycl_event(self) -> int:
            return self.event.event_id

        def record(self, stream: Any) -> None:
            self.event.record(stream)

        def wait(self, stream: Any) -> None:
            self.event.wait(stream)

        def query(self) -> bool:
            return self.event.query()

        def synchronize(self) -> None:
            self.event.synchronize()

        def elapsed_time(self, other: Any) -> float:
            return self.event.elapsed_time(other.event)

    return XpuEventBase
