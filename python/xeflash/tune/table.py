"""Picks a kernel's blocks for a problem, and a device's schedule."""

from __future__ import annotations

from dataclasses import replace

from xeflash.tune import cpu, xe, xe_gradients
from xeflash.tune.desc import Config, Desc
from xeflash.tune.schedule import Schedule


def schedule(arch: str) -> Schedule:
    """Returns the numbers by which calls are shared out over a device."""
    if arch == "cpu-amx-bf16":
        return cpu.SCHEDULE_OF_AMX
    return cpu.SCHEDULE if arch.startswith("cpu-") else xe.SCHEDULES[arch]


def pick(desc: Desc, blocks: tuple[int, int] | None = None) -> Config:
    """Returns the sizes that the device's tables have for `desc`; `blocks` replaces a tile's rows and keys."""
    if desc.arch.startswith("cpu-"):
        return Config(*(blocks or cpu.blocks(desc)), desc.head_dim_v, block_d=desc.head_dim)
    if desc.arch in xe.ARCHITECTURES:
        return replace(_pick_for_gpu(desc, blocks), in_order=xe.keeps_order(desc))
    raise NotImplementedError(f"xeflash: no tuning table for {desc.arch}")


def _pick_for_gpu(desc: Desc, blocks: tuple[int, int] | None) -> Config:
    block_q, block_k = blocks or xe.blocks(desc)
    if desc.algorithm in xe.BACKWARD:
        parts, team, threads, own, own_v, pairs = xe_gradients.teams(desc, block_q, block_k)
        return Config(block_q, block_k, own_v, parts, threads, team=team, block_d=own, pairs=pairs)
    if desc.algorithm in ("flash_bwd_bias", "attention_probs"):
        return Config(block_q, block_k, desc.head_dim_v, threads=xe_gradients.score_tiles(desc, block_q, block_k))
    if desc.algorithm in ("flash_bwd_captures", "flash_bwd_heads"):
        return Config(block_q, block_k, desc.head_dim_v)
    block_v, parts = xe.columns(desc, block_q)
    if desc.algorithm == "flash_decode":
        threads = xe.sharers(desc, block_q) if block_q % 8 == 0 else 1  # splits of the keys fill the device
        if desc.split_keys:
            return Config(block_q, block_k, block_v, parts, xe.SCHEDULE.turns, turns=xe.SCHEDULE.turns)
        if threads > 1:
            return Config(block_q, block_k, desc.head_dim_v // threads, threads, threads, team=threads)
        return Config(block_q, block_k, block_v, parts)
    if desc.split_keys:
        tiles, turns = xe.turns(desc, block_q, block_k)
        return Config(block_q, block_k, block_v, parts, tiles * turns, turns=turns)
    if teamed := xe.team(desc, block_q, block_k):
        block_k, block_v, parts, tiles, threads = teamed
        return Config(block_q, block_k, block_v, parts, tiles * threads, team=threads)
    return Config(block_q, block_k, block_v, parts, xe.neighbours(desc, block_q))
