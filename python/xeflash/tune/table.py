"""Picks a kernel's blocks for a problem, and a device's schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xeflash.tune import cpu, xe
from xeflash.tune.schedule import Schedule

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
    block_d: int = 0  # backward: columns of dQ or dK that a thread owns; those of dV are block_v
    team: int = 1  # threads of a block of rows: each owns a part of the columns, and scores some of the keys
    pairs: bool = False  # two teams have the same rows, and each does half of the work

    @property
    def rows_in_group(self) -> int:
        """Of a work-group."""
        return self.block_q * (1 if self.split_keys else self.threads // (2 * self.team if self.pairs else self.team))

    @property
    def groups_of_rows(self) -> int:
        """Work-groups that have the same rows: one, or one for each part of the columns."""
        return self.parts // self.team


def schedule(arch: str) -> Schedule:
    """How calls are shared out over a device."""
    return cpu.SCHEDULE if arch.startswith("cpu-") else xe.SCHEDULE


def pick(desc: Desc, blocks: tuple[int, int] | None = None) -> Config:
    """What the tables of the device say for `desc`; with these rows and keys of a tile, for sweeps."""
    if desc.arch.startswith("cpu-"):
        return Config(*(blocks or cpu.blocks(desc)), desc.head_dim_v, block_d=desc.head_dim)
    if desc.arch in xe.ARCHITECTURES:
        block_q, block_k = blocks or xe.blocks(desc)
        if desc.algorithm in xe.BACKWARD:
            parts, team, threads, own, own_v, pairs = xe.backward(desc, block_q, block_k)
            return Config(block_q, block_k, own_v, parts, threads, team=team, block_d=own, pairs=pairs)
        if desc.algorithm in ("flash_bwd_bias", "attention_probs"):
            return Config(block_q, block_k, desc.head_dim_v, threads=xe.score_tiles(desc, block_q, block_k))
        if desc.algorithm in ("flash_bwd_captures", "flash_bwd_heads"):
            return Config(block_q, block_k, desc.head_dim_v)
        block_v, parts = xe.columns(desc, block_q)
        if desc.algorithm == "flash_decode":
            threads = xe.sharers(desc, block_q) if block_q % 8 == 0 else 1  # splits of the keys fill the device
            if threads > 1:
                return Config(block_q, block_k, desc.head_dim_v // threads, threads, threads, team=threads)
            return Config(block_q, block_k, block_v, parts)
        if desc.split_keys and (turns := xe.turns(desc, block_q, block_k)) > 1:
            return Config(block_q, block_k, block_v, parts, turns, split_keys=True)
        if of_team := xe.team(desc, block_q, block_k):
            block_k, block_v, parts, tiles, threads = of_team
            return Config(block_q, block_k, block_v, parts, tiles * threads, team=threads)
        return Config(block_q, block_k, block_v, parts, xe.neighbours(desc, block_q))
    raise NotImplementedError(f"xeflash: no tuning table for {desc.arch}")
