"""What `perf/sweep.py` compares, a module for each kind of kernel: all have the same functions."""


def is_cpu(arch: str) -> bool:
    """Whether choices are timed, on this machine."""
    return arch.startswith("cpu-")
