"""Comparisons of `perf/sweep.py`, a module for each kind of kernel: all have the same functions."""


def is_cpu(arch: str) -> bool:
    """Returns whether choices are timed on this machine."""
    return arch.startswith("cpu-")
