"""Sweeps of attention: a choice is rows and keys of a tile, for a GPU; `xeflash tune` times those of a CPU."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from counting.tables import Row
from xeflash.sim.binary import vector_engines
from xeflash.tune import cpu, pick, xe
from xeflash.tune.desc import DTYPE_NAMES, Desc
from xeflash.tune.table import candidates
from xeflash.tuner import counts

from sweeping import is_cpu

SIZES = ("block_q", "block_k")
FIGURES = {"loop": "", "per 1000 scores": ".0f", "dpas": ".1%", "moves": "", "sends": ""}
FIGURES |= {"threads": "", "groups": "", "scratch": ""}
ROWS = {"flash_fwd": (16, 32, 64, 128), "flash_decode": (1, 2, 4, 7, 8, 15, 16)}
ROWS |= dict.fromkeys(xe.BACKWARD, (128,))  # on GPUs
# Tiles are multiples of these.
UNITS = {"flash_fwd": (8, 16), "flash_decode": (1, 16)} | dict.fromkeys(xe.BACKWARD, (8, 16))
FOUR_BITS: dict[str, Any] = {"cache_dtype": "int8", "cache_scales": True, "nibbles": True}


def problems(arch: str, algorithm: str, dtypes: tuple[str, ...], dims: tuple[int, ...]) -> Iterator[Desc]:
    """Yields problems, small ones first."""
    accesses = ("",) if is_cpu(arch) else ("elements", "dwords") + ("block2d",) * (arch != "dg2")
    changes: tuple[dict[str, Any], ...] = ({"cache_dtype": "int8"}, {"hooks": ("SoftCap",)}, {})
    changes = changes[1:] if algorithm in xe.BACKWARD else changes
    changes = ({"mask": "Documents"}, *changes, *[{"packed_heads": True}] * (algorithm == "flash_fwd"))
    changes += (FOUR_BITS,) * (algorithm not in xe.BACKWARD)
    changes = ({},) if is_cpu(arch) else changes
    for dim, rows, dtype, access, change in itertools.product(sorted(dims), ROWS[algorithm], dtypes, accesses, changes):
        if change is not FOUR_BITS or (dtype != "fp32" and dim % 64 == 0):
            yield Desc(algorithm, arch, DTYPE_NAMES[dtype], dim, dim, rows, access=access, **change)


def tune_of(arch: str) -> ModuleType:
    """Returns the module that has the tables."""
    return cpu if is_cpu(arch) else xe


def chosen_of(desc: Desc) -> tuple[int, int]:
    """Returns the choice of the table."""
    config = pick(desc)
    return config.block_q, config.block_k


def choices(desc: Desc, options: argparse.Namespace) -> list[tuple[int, int]]:
    """Returns the candidates, or the sizes that were asked for, else half, the same and twice the table's, in units."""
    if options.candidates:
        return list(candidates(desc))
    around = (
        sorted({max(unit, size // 2 // unit * unit), size, 2 * size})
        for size, unit in zip(chosen_of(desc), UNITS[desc.algorithm], strict=True)
    )
    asked = (options.block_q, options.block_k)
    return list(itertools.product(*(own or near for own, near in zip(asked, around, strict=True))))


def count(desc: Desc, blocks: tuple[int, int]) -> Row:
    """Counts the machine code of these blocks; groups are those that a device runs at a time."""
    threads = pick(desc, blocks).threads
    return {**counts.count(desc, blocks), "threads": threads, "groups": 4 * vector_engines(desc.arch) // threads}
