"""Native binaries outside of a launch: compilation of SPIR-V, counts of their code, facts about devices."""

from __future__ import annotations

import ctypes
import json
from typing import Any

from xeflash.sim.library import load_library

SPIRV_MAGIC = (0x07230203).to_bytes(4, "little")


class CompileError(RuntimeError):
    """A compilation failed; the text is the offline compiler's log, or says why there is none."""


def compile_spirv(device: str, spirv: bytes, flags: str = "") -> bytes:
    """Returns the native binary that the offline compiler makes; it is cached on disk.

    `flags` are Level Zero's build flags: ESIMD kernels need "-vc-codegen", and "-doubleGRF" gives 256 registers.
    """
    library = load_library()
    binary, size = ctypes.c_void_p(), ctypes.c_uint64()
    log = library.xesim_compile(
        device.encode(), spirv, ctypes.c_uint64(len(spirv)), flags.encode(), ctypes.byref(binary), ctypes.byref(size)
    )
    if log:
        text = ctypes.string_at(log).decode(errors="replace").strip()
        library.xesim_free(log)
        raise CompileError(text)
    code = ctypes.string_at(binary, size.value)
    library.xesim_free(binary)
    return code


def inspect(device: str, binary: bytes) -> list[dict[str, Any]]:
    """Returns counts of each kernel's code in a native binary; raises ValueError if it is none."""
    library = load_library()
    pointer = library.xesim_inspect(device.encode(), binary, ctypes.c_uint64(len(binary)))
    found = json.loads(ctypes.string_at(pointer))
    library.xesim_free(pointer)
    if isinstance(found, dict):
        raise ValueError(found["error"])
    kernels: list[dict[str, Any]] = found
    return kernels


def vector_engines(device: str) -> int:
    """Returns the number of a simulated device's vector engines; raises ValueError for any other device."""
    found: int = load_library().xesim_vector_engines(device.encode())
    if not found:
        raise ValueError(f"there is no simulated device {device!r}")
    return found
