"""Tables of Xe GPUs. The kernels compile for them; running them is not there yet, see jit.provide."""

from __future__ import annotations

Row = tuple[str, str, int, int, int, int]

ARCHITECTURES = ("pvc", "bmg")

# arch, dtype, rows <=, head dim <=, block_q (rows a thread), block_k (keys)
FLASH_FWD: list[Row] = [
    ("*", "bfloat16", 255, 128, 8, 64),
    ("*", "float16", 255, 128, 8, 64),
]

TABLES: dict[str, list[Row]] = {"flash_fwd": FLASH_FWD, "flash_decode": []}
