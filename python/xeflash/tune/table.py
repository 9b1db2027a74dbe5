"""Picks a kernel's blocks for a problem, and a device's schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from xeflash.tune import cpu, tuned, xe, xe_gradients, xe_shares
from xeflash.tune.desc import Config, Desc
from xeflash.tune.schedule import Schedule


def schedule(arch: str, device: str = "", driver: str = "") -> Schedule:
    """Returns the numbers by which calls are shared out over a device: the tables', or a tuning's in their place."""
    numbers: dict[str, Any] = tuned.numbers_of(arch, device, driver, schedule_candidates(arch))[0]
    return replace(schedule_of_tables(arch), **numbers)


def level_of_schedule(arch: str, device: str = "", driver: str = "") -> tuned.Level:
    """Returns who chose the numbers of the schedule, the first of several."""
    return tuned.numbers_of(arch, device, driver, schedule_candidates(arch))[1]


def schedule_of_tables(arch: str) -> Schedule:
    """Returns the numbers that the tables have for an architecture."""
    if arch == "cpu-amx-bf16":
        return cpu.SCHEDULE_OF_AMX
    return cpu.SCHEDULE if arch.startswith("cpu-") else xe_shares.SCHEDULES[arch]


def schedule_candidates(arch: str) -> dict[str, tuple[int, ...]]:
    """Returns the values that a tuning may choose from, by the number's name; the first is the tables'.

    No number is among them on which the order of a sum of gradients depends.
    """
    own = cpu.SCHEDULE_CANDIDATES if arch.startswith("cpu-") else xe_shares.SCHEDULE_CANDIDATES
    first = schedule_of_tables(arch)
    return {name: tuple(dict.fromkeys((getattr(first, name), *values))) for name, values in own.items()}


def candidates(desc: Desc) -> tuple[tuple[int, int], ...]:
    """Returns the (block_q, block_k) that a kernel may have; the first is the tables' choice."""
    if desc.arch.startswith("cpu-"):
        return cpu.candidates(desc)
    if desc.arch in xe.ARCHITECTURES:
        return xe.candidates(desc)
    raise NotImplementedError(f"xeflash: no tuning table for {desc.arch}")


def pick(desc: Desc, blocks: tuple[int, int] | None = None) -> Config:
    """Returns the sizes of a kernel: with these rows and keys of a tile, else with a tuning's, else the tables'."""
    block_q, block_k = blocks or tuned.blocks_of(desc, candidates(desc))[0]
    if desc.arch.startswith("cpu-"):
        return Config(block_q, block_k, desc.head_dim_v, block_d=desc.head_dim)
    return replace(_pick_for_gpu(desc, block_q, block_k), in_order=xe.keeps_order(desc))


def pick_of_tables(desc: Desc) -> Config:
    """Returns the sizes that the tables have for a kernel, whatever a tuning says."""
    return pick(desc, candidates(desc)[0])


def level_of(desc: Desc) -> tuned.Level:
    """Returns who chose the rows and keys of a kernel's tiles."""
    return tuned.blocks_of(desc, candidates(desc))[1]


def _pick_for_gpu(desc: Desc, block_q: int, block_k: int) -> Config:
    if desc.algorithm in xe.BACKWARD:
        parts, team, threads, own, own_v, pairs = xe_gradients.teams(desc, block_q, block_k)
        return Config(block_q, block_k, own_v, parts, threads, team=team, block_d=own, pairs=pairs)
    if desc.algorithm in ("flash_bwd_bias", "attention_probs"):
        return Config(block_q, block_k, desc.head_dim_v, threads=xe_gradients.score_tiles(desc, block_q, block_k))
    if desc.algorithm in ("flash_bwd_captures", "flash_bwd_heads"):
        return Config(block_q, block_k, desc.head_dim_v)
    block_v, parts = xe_shares.columns(desc, block_q)
    if desc.algorithm == "flash_decode":
        threads = xe_shares.sharers(desc, block_q) if block_q % 8 == 0 else 1  # splits of the keys fill the device
        if desc.split_keys:
            return Config(block_q, block_k, block_v, parts, xe_shares.SCHEDULE.turns, turns=xe_shares.SCHEDULE.turns)
        if threads > 1:
            return Config(block_q, block_k, desc.head_dim_v // threads, threads, threads, team=threads)
        return Config(block_q, block_k, block_v, parts)
    if desc.split_keys:
        tiles, turns = xe_shares.turns(desc, block_q, block_k)
        return Config(block_q, block_k, block_v, parts, tiles * turns, turns=turns)
    if teamed := xe_shares.team(desc, block_q, block_k):
        block_k, block_v, parts, tiles, threads = teamed
        return Config(block_q, block_k, block_v, parts, tiles * threads, team=threads)
    return Config(block_q, block_k, block_v, parts, xe_shares.neighbours(desc, block_q))
