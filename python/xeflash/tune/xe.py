"""Tables of Xe GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xeflash.jit.kernel import Desc

Row = tuple[str, str, str, int, int, int, int]

ARCHITECTURES = ("pvc", "bmg", "dg2")
MAX_HEAD_DIM = 576

# arch, dtype, access, rows <=, head dim <=, block_q (rows a thread), block_k (keys)
FLASH_FWD: list[Row] = [
    # 8 KiB of registers a thread, half of the others'
    ("dg2", "float32", "*", 255, MAX_HEAD_DIM, 8, 16),
    ("dg2", "*", "*", 255, 64, 8, 32),
    ("dg2", "*", "*", 255, MAX_HEAD_DIM, 8, 16),
    ("*", "float32", "*", 255, 64, 8, 32),
    ("*", "float32", "*", 255, MAX_HEAD_DIM, 8, 16),
    ("*", "*", "*", 16, 128, 8, 64),
    ("*", "*", "block2d", 255, 64, 16, 64),  # K and V are read once for 16 rows; at 128 this spills
    ("*", "*", "block2d", 255, 128, 16, 32),
    ("*", "*", "*", 255, 128, 8, 64),
    ("*", "*", "*", 255, MAX_HEAD_DIM, 8, 32),
]

# Rows are the heads that share a KV head. Eights of them go to the matrix unit, whether they are there or not; any
# other number to the vector unit, which has to fit Q and O in fp32.
# arch, dtype, access, rows <=, head dim <=, most rows a thread, block_k (keys)
FLASH_DECODE: list[Row] = [
    ("dg2", "*", "*", 255, 64, 7, 16),
    ("dg2", "*", "*", 255, 128, 4, 16),
    ("dg2", "*", "*", 255, 256, 2, 16),
    ("dg2", "*", "*", 255, MAX_HEAD_DIM, 1, 16),
    ("*", "float32", "*", 255, 128, 7, 32),
    ("*", "*", "block2d", 1, 128, 1, 32),
    ("*", "*", "block2d", 1, 256, 1, 16),
    ("*", "*", "block2d", 8, 128, 8, 64),
    ("*", "*", "block2d", 255, 128, 16, 32),  # K and V are read once for 16 rows
    ("*", "float16", "block2d", 255, MAX_HEAD_DIM, 8, 32),
    ("*", "bfloat16", "block2d", 255, MAX_HEAD_DIM, 8, 32),
    ("*", "*", "*", 255, 128, 7, 32),
    ("*", "*", "*", 255, 256, 4, 16),
    ("*", "*", "*", 255, MAX_HEAD_DIM, 2, 16),
]

# Which kernel serves one query: the vector unit's up to so many heads that share a KV head, then the forward kernel,
# whose matrix unit works on 8 rows whether they are there or not.
# arch, dtype, head dim <=, heads <=
DECODE: list[tuple[str, str, int, int]] = [
    ("dg2", "float32", MAX_HEAD_DIM, 255),
    ("dg2", "*", 128, 16),
    ("dg2", "*", 256, 4),
    ("dg2", "*", MAX_HEAD_DIM, 2),
    ("*", "*", MAX_HEAD_DIM, 255),
]

# Most columns of O in the registers of a thread: half of them.
_MAX_COLUMNS = {"pvc": 256, "bmg": 256, "dg2": 128}


def blocks(desc: Desc) -> tuple[int, int]:
    """(block_q, block_k): of the first row of the table that fits."""
    for name, dim in (("q.head_dim", desc.head_dim), ("v.head_dim", desc.head_dim_v)):
        if dim % 8 or dim > MAX_HEAD_DIM:
            raise NotImplementedError(
                f"xeflash: {name} on a GPU must be a multiple of 8, at most {MAX_HEAD_DIM}, got {dim}; "
                "the SYCL CPU device takes any"
            )
    if desc.algorithm == "flash_fwd":
        for arch, dtype, access, max_rows, max_head_dim, block_q, block_k in FLASH_FWD:
            if (
                arch in ("*", desc.arch)
                and dtype in ("*", desc.dtype)
                and access in ("*", desc.access)
                and desc.rows <= max_rows
                and max(desc.head_dim, desc.head_dim_v) <= max_head_dim
            ):
                return block_q, block_k
    if desc.algorithm == "flash_decode":
        for arch, dtype, access, max_rows, max_head_dim, most_rows, block_k in FLASH_DECODE:
            if (
                arch in ("*", desc.arch)
                and dtype in ("*", desc.dtype)
                and access in ("*", desc.access)
                and desc.rows <= max_rows
                and max(desc.head_dim, desc.head_dim_v) <= max_head_dim
            ):
                tiles = -(-desc.rows // most_rows)
                return most_rows if most_rows % 8 == 0 else -(-desc.rows // tiles), block_k  # of equal height
    raise NotImplementedError(f"xeflash: no {desc.algorithm} kernel for {desc}")


def takes_decode(desc: Desc) -> bool:
    """Whether one query goes to flash_decode: what the table says."""
    for arch, dtype, max_head_dim, heads in DECODE:
        if arch in ("*", desc.arch) and dtype in ("*", desc.dtype) and desc.head_dim <= max_head_dim:
            return desc.rows <= heads
    return False


def columns(desc: Desc, block_q: int) -> tuple[int, int]:
    """(columns of O that a thread owns, number of such parts): as few parts as fit, of equal width."""
    if desc.algorithm == "flash_decode" and block_q % 8:
        return desc.head_dim_v, 1
    most = _MAX_COLUMNS[desc.arch]
    if desc.arch == "dg2" and desc.dropout:
        most //= 2  # the random numbers take what is left of its registers
    parts = -(-desc.head_dim_v // most)
    width = -(-desc.head_dim_v // parts)
    return (desc.head_dim_v if parts == 1 else -(-width // 16) * 16), parts


def threads(desc: Desc, block_q: int) -> int:
    """Threads of a work-group: they read the same keys, which then come from their Xe-core's cache or shared memory.

    Eight are one for each vector engine; no more than there are blocks of rows, or have room for Q in 32 KiB.
    """
    if desc.algorithm == "flash_decode":
        return 1  # splits of the keys fill the device instead
    row_bytes = desc.head_dim * (4 if desc.dtype == "float32" else 2)
    fit = 8 if desc.access == "block2d" else 32768 // (block_q * row_bytes)
    return max(1, min(8, desc.rows // block_q, fit))
