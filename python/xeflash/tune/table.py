"""Picks a kernel's blocks for a problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xeflash.tune import cpu, xe

if TYPE_CHECKING:
    from xeflash.jit.kernel import Desc


@dataclass(frozen=True)
class Config:
    """Our choice for a kernel: rows and keys of a tile, and how the rest is shared out."""

    block_q: int
    block_k: int
    block_v: int  # columns of the output that a thread owns
    parts: int = 1  # of the output's columns
    threads: int = 1  # of a work-group: neighbouring blocks of rows


def pick(desc: Desc) -> Config:
    """The first row of the device's table that fits `desc`."""
    if desc.arch.startswith("cpu-"):
        tables = cpu.TABLES
    elif desc.arch in xe.ARCHITECTURES:
        tables = xe.TABLES
        xe.check(desc)
    else:
        raise NotImplementedError(
            f"xeflash: no kernels for {desc.device} yet; xeflash doctor lists the devices that work"
        )
    for arch, dtype, max_rows, max_head_dim, block_q, block_k in tables[desc.algorithm]:
        if (
            arch in ("*", desc.arch)
            and dtype in ("*", desc.dtype)
            and desc.rows <= max_rows
            and max(desc.head_dim, desc.head_dim_v) <= max_head_dim
        ):
            rows = desc.rows if block_q == 0 else block_q
            if tables is cpu.TABLES:
                return Config(rows, block_k, desc.head_dim_v)
            return Config(rows, block_k, *xe.split_columns(desc), xe.threads(desc, rows))
    raise NotImplementedError(f"xeflash: no {desc.algorithm} kernel for {desc}")
