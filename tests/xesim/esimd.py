"""ESIMD kernels for the simulated machine: SYCL sources built to native code without a device, and their launches.

The front end is the package's own build tool on libsycl-jit, the back end ocloc; one run of each per source and device.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from offline_compiler import need_ocloc
from xeflash.sim import binary, machine
from xeflash.sim.library import load_library

Fault = machine.Fault

DEVICES = ("pvc", "bmg", "dg2")
BLOCK2D_DEVICES = ("pvc", "bmg")
LANES = {"pvc": 16, "bmg": 16, "dg2": 8}  # of dpas
PREFIX = "__sycl_kernel_"  # of the native names of free functions
FOLDER = Path(__file__).parent / "kernels"


@functools.cache
def simulator() -> ctypes.CDLL:
    """The library, with all checks on."""
    library = load_library()
    for name in ("xesim_set_check", "xesim_get_check", "xesim_last_launches"):
        getattr(library, name).restype = ctypes.c_char_p
    library.xesim_set_check(b"all")  # whatever the environment says
    return library


def errors_of(log: str) -> str:
    lines = log.splitlines()
    first = next((i for i, line in enumerate(lines) if "error:" in line), 0)
    return "\n".join(lines[first : first + 12])


@functools.cache
def spirv(source: str, options: tuple[str, ...], choices: str) -> bytes:
    """What the front end makes of kernels/<source>.cpp, which may include the choices as choices.hpp."""
    from xeflash.jit.provide import HEADERS, PACKAGE
    from xeflash.runtime import extension

    tool = PACKAGE / "bin" / "spirv"
    library = extension.in_distribution("intel-sycl-rt", "libsycl-jit.so")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "kernel.spv")
        Path(folder, "choices.hpp").write_text(choices)
        includes = (f"-I{path}" for path in (FOLDER, folder, HEADERS))
        # Kernels that use fp16 or fp64 stay in the image of the others.
        common = [*includes, "-std=c++20", "-DNDEBUG", "-fsycl-device-code-split=off"]
        command = [str(tool), str(library), str(FOLDER / f"{source}.cpp"), str(output), *common, *options]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise AssertionError(f"{source}.cpp does not compile:\n{errors_of(done.stderr)}")
        return output.read_bytes()


@functools.cache
def native(source: str, device: str, registers: int, lanes: int) -> bytes:
    """The native binary, or skip."""
    need_ocloc()
    # Sources that are the same for all devices go through the front end once.
    text = (FOLDER / f"{source}.cpp").read_text()
    choices, options = choices_of(device) if '"choices.hpp"' in text else ("", ())
    if "XE_LANES" in text:
        options = (*options, f"-DXE_LANES={lanes}")
    flags = "-vc-codegen" + (" -doubleGRF" if registers == 256 else "")
    return binary.compile_spirv(device, spirv(source, options, choices), flags)


def choices_of(arch: str) -> tuple[str, tuple[str, ...]]:
    """What the package's kernels of one thread begin with, whose messages of dwords any device has, and their options."""
    from xeflash.jit.kernel import backend_of
    from xeflash.tune.desc import Config

    choices, options = backend_of(arch, "dwords", Config(block_q=1, block_k=1, block_v=1))
    return "\n".join(choices), options


@functools.cache
def load(source: str, device: str, registers: int, lanes: int) -> Any:
    simulator()
    return machine.Machine(device).load(native(source, device, registers, lanes))


class Kernels:
    """The kernels of kernels/<source>.cpp on a device, and that device's memory."""

    def __init__(self, source: str, device: str, registers: int = 128, lanes: int | None = None) -> None:
        self.device, self.registers, self.lanes = device, registers, lanes or LANES[device]
        self.module = load(source, device, registers, self.lanes)
        self.machine = machine.Machine(device)
        self.binary = native(source, device, registers, self.lanes)

    def has(self, kernel: str) -> bool:
        return any(entry["name"] == PREFIX + kernel for entry in binary.inspect(self.device, self.binary))

    def array(self, values: Any) -> Any:
        return self.machine.array(np.asarray(values))

    def zeros(self, count: int, kind: Any) -> Any:
        return self.array(np.zeros(count, kind))

    def run(self, kernel: str, *arguments: Any, groups: int = 1, local: int = 1) -> None:
        self.module.launch(PREFIX + kernel, (groups, 1, 1), (local, 1, 1), list(arguments))

    def fault(self, kernel: str, *arguments: Any, groups: int = 1, local: int = 1) -> str:
        """The text of the fault that the launch ends with."""
        with pytest.raises(Fault) as caught:
            self.run(kernel, *arguments, groups=groups, local=local)
        return str(caught.value)


def set_check(text: str) -> None:
    wrong = simulator().xesim_set_check(text.encode())
    assert not wrong, wrong


@contextlib.contextmanager
def checking(text: str) -> Iterator[None]:
    """Other checks for the launches inside."""
    before = simulator().xesim_get_check().decode()
    set_check(text)
    try:
        yield
    finally:
        set_check(before)


def last_record() -> dict[str, Any]:
    """What the newest launch did."""
    return json.loads(simulator().xesim_last_launches())[-1]


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """The upper halves of floats, rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def bf16_values(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)
