"""A log of the kernels that were asked for: lines of JSON in the file that XEFLASH_KERNEL_LOG names.

Processes may share the file. A kernel is told once by each process that loads it.
"""

from __future__ import annotations

import json
import os


def log_kernel(name: str, device: str, compiled: bool, seconds: float) -> None:
    """Appends a line for a kernel; `compiled` says that it was made in so many seconds, else the cache had it."""
    path = os.environ.get("XEFLASH_KERNEL_LOG")
    if not path:
        return
    line = json.dumps({"kernel": name, "device": device, "compiled": compiled, "seconds": round(seconds, 3)})
    with open(path, "a") as file:  # short lines that are appended arrive whole
        file.write(line + "\n")
