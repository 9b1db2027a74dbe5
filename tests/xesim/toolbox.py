"""The simulator's library for its tests, and OpenCL C for the code that they run."""

import ctypes
import functools
import subprocess
from pathlib import Path

from offline_compiler import need_ocloc
from xeflash.sim import library_path


@functools.cache
def library() -> ctypes.CDLL:
    """The simulator's C functions."""
    result = ctypes.CDLL(str(library_path()))
    result.xesim_free.argtypes = [ctypes.c_void_p]
    result.xesim_free.restype = None
    return result


def function(name: str, *argtypes: object):
    """A function of the library that returns text to be freed, as a callable that returns bytes or None."""
    raw = getattr(library(), name)
    raw.argtypes, raw.restype = list(argtypes), ctypes.c_void_p

    def call(*arguments: object) -> bytes | None:
        address = raw(*arguments)
        if not address:
            return None
        try:
            return ctypes.string_at(address)
        finally:
            library().xesim_free(address)

    return call


IGA_PLATFORM = {"dg2": "xehpg", "pvc": "xehpc", "bmg": "xe2", "ptl": "xe3"}
OCLOC_DEVICE = {"ptl": "ptl-h"}  # where it is not the simulator's name


def compile_opencl(source: Path, family: str, folder: Path, options: str = "-cl-std=CL3.0") -> bytes:
    """The native binary of OpenCL C, or skip where there is no ocloc."""
    device = OCLOC_DEVICE.get(family, family)
    command = [need_ocloc(), "compile", "-q", "-file", str(source), "-device", device, "-output", "kernel"]
    command += ["-output_no_suffix", "-out_dir", str(folder), "-options", options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(path for path in folder.iterdir() if path.name in ("kernel", "kernel.bin")).read_bytes()
