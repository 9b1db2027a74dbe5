"""Where the tests of the simulator find its library, IGA's assembler and ocloc."""

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
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


def private_folder() -> Path:
    cache = os.environ.get("XEFLASH_CACHE_DIR")
    return (Path(cache) if cache else Path.home() / ".cache" / "xeflash") / "ocloc"


@functools.cache
def find_tool(name: str) -> str | None:
    """ocloc or iga64: named by the environment, in get-ocloc's folder, on PATH."""
    named = os.environ.get({"ocloc": "XEFLASH_OCLOC", "iga64": "XEFLASH_IGA64"}[name])
    ocloc = os.environ.get("XEFLASH_OCLOC")
    places = [named, ocloc and str(Path(ocloc).with_name(name)), str(private_folder() / name), shutil.which(name)]
    return next((place for place in places if place and os.access(place, os.X_OK)), None)


IGA_PLATFORM = {"dg2": "xehpg", "pvc": "xehpc", "bmg": "xe2"}


@functools.cache
def iga_knows(family: str) -> bool:
    """Debian 12's iga64 lacks Xe2."""
    tool = find_tool("iga64")
    if tool is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "nop.asm")
        source.write_text("nop\n")
        command = [tool, "-a", f"-p={IGA_PLATFORM[family]}", "-o", str(source) + ".bin", str(source)]
        return subprocess.run(command, capture_output=True).returncode == 0


def compile_opencl(source: Path, family: str, folder: Path, options: str = "-cl-std=CL3.0") -> bytes:
    """The native binary of OpenCL C, or skip where no ocloc can make it."""
    tool = find_tool("ocloc")
    if tool is None:
        pytest.skip("no ocloc (set XEFLASH_OCLOC or run get-ocloc)")
    command = [tool, "compile", "-q", "-file", str(source), "-device", family, "-output", "kernel"]
    command += ["-output_no_suffix", "-out_dir", str(folder), "-options", options]
    # Debian 12's ocloc writes zebins only when asked; later ones refuse the option.
    for more in ([], ["-internal_options", "-cl-intel-allow-zebin"]):
        done = subprocess.run(command + more, capture_output=True, text=True)
        found = [path for path in folder.iterdir() if path.name in ("kernel", "kernel.bin")]
        if done.returncode == 0 and found and b".ze_info" in found[0].read_bytes():
            return found[0].read_bytes()
    pytest.skip(f"this ocloc does not build for {family}: {(done.stdout + done.stderr)[-300:]}")
