"""Kernels just in time: problem -> tile sizes -> source -> binary, from the wheel, the disk cache or the compiler."""

from xeflash.jit.precompile import compile_command, peak_kernel
from xeflash.jit.provide import provide

__all__ = ["compile_command", "peak_kernel", "provide"]
