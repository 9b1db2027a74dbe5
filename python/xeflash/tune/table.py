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
    threads: int = 1  # of a work-group: neighbouring blocks of rows, or
    split_keys: bool = False  # one block of rows, whose keys they share out

    @property
    def rows_in_group(self) -> int:
        """Of a work-group."""
        return self.block_q * (1 if self.split_keys else self.threads)


def pick(desc: Desc) -> Config:
    """What the tables of the device say for `desc`."""
    if desc.arch.startswith("cpu-"):
        return Config(*cpu.blocks(desc), desc.head_dim_v)
    if desc.arch in xe.ARCHITECTURES:
        block_q, block_k = xe.blocks(desc)
        return Config(block_q, block_k, *xe.columns(desc, block_q), *xe.threads(desc, block_q, block_k))
    raise NotImplementedError(f"xeflash: no kernels for {desc.device} yet; xeflash doctor lists the devices that work")
