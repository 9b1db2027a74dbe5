"""Sweeps of attention: a choice is rows and keys of a tile."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from counting.compiled import kernel_of
from counting.tables import Row
from xeflash.bench.cases import Case
from xeflash.tune import cpu, pick, xe
from xeflash.tune.desc import DTYPE_NAMES, Desc

from sweeping import is_cpu

KV_HEADS, LENGTH, DECODE_KEYS = 8, 1024, 4096  # sizes of timed calls
SIZES = ("block_q", "block_k")
FIGURES = {"loop": "", "per 1000 scores": ".0f", "dpas": ".1%", "moves": "", "sends": "", "scratch": ""}
ROWS = {"flash_fwd": (16, 32, 64, 128), "flash_decode": (1, 2, 4, 7, 8, 15, 16)}
ROWS |= dict.fromkeys(xe.BACKWARD, (128,))  # on GPUs
# Tiles are multiples of these, by algorithm and whether the device is a CPU.
UNITS = {("flash_fwd", True): (16, 12), ("flash_fwd", False): (8, 16)}
UNITS |= {("flash_decode", True): (1, 16), ("flash_decode", False): (1, 16)}
UNITS |= {(algorithm, False): (8, 16) for algorithm in xe.BACKWARD}


def problems(arch: str, algorithm: str, dtypes: tuple[str, ...], dims: tuple[int, ...]) -> Iterator[Desc]:
    """Yields problems, small ones first."""
    accesses = ("",) if is_cpu(arch) else ("elements", "dwords") + ("block2d",) * (arch != "dg2")
    changes: tuple[dict[str, Any], ...] = ({"cache_dtype": "int8"}, {"hooks": ("SoftCap",)}, {})
    changes = changes[1:] if algorithm in xe.BACKWARD else changes
    changes = ({},) if is_cpu(arch) else (*changes, *[{"packed_heads": True}] * (algorithm == "flash_fwd"))
    for dim, rows, dtype, access, change in itertools.product(sorted(dims), ROWS[algorithm], dtypes, accesses, changes):
        yield Desc(algorithm, arch, DTYPE_NAMES[dtype], dim, dim, rows, access=access, **change)


def tune_of(arch: str) -> ModuleType:
    """Returns the module that has the tables."""
    return cpu if is_cpu(arch) else xe


def chosen_of(desc: Desc) -> tuple[int, int]:
    """Returns the choice of the table."""
    config = pick(desc)
    return config.block_q, config.block_k


def choices(desc: Desc, options: argparse.Namespace) -> list[tuple[int, int]]:
    """Returns the sizes that were asked for, else the half, the same and twice the table's, in units."""
    around = (
        sorted({max(unit, size // 2 // unit * unit), size, 2 * size})
        for size, unit in zip(chosen_of(desc), UNITS[desc.algorithm, is_cpu(desc.arch)], strict=True)
    )
    asked = (options.block_q, options.block_k)
    return list(itertools.product(*(own or near for own, near in zip(asked, around, strict=True))))


def count(desc: Desc, blocks: tuple[int, int]) -> Row:
    """Counts the machine code of these blocks; scores are those of all threads of a tile."""
    config = pick(desc, blocks)
    kernel = kernel_of(desc, config)
    loop, tiles = kernel["loop"], -(-desc.rows // config.block_q)
    threads = config.parts * (2 if config.pairs else 1)
    return {
        "loop": loop["instructions"],
        "per 1000 scores": 1000 * loop["instructions"] * threads * tiles / (desc.rows * config.block_k),
        "dpas": loop["dpas"] / loop["instructions"], "moves": loop["moves"], "sends": loop["sends"],
        "scratch": kernel["scratch"],
    }  # fmt: skip


def use(desc: Desc, blocks: tuple[int, int]) -> None:
    """Gives this process one row in the table of its CPU."""
    cpu.TABLES[desc.algorithm] = [("*", "*", 255, xe.MAX_HEAD_DIM, *blocks)]


def sample(desc: Desc, check: bool) -> float:
    """Times a call in milliseconds; raises an error for a wrong result."""
    from xeflash.bench import forms
    from xeflash.bench.check import check as errors_of
    from xeflash.bench.timing import interleave

    case = case_of(desc)
    inputs = forms.make_inputs(case, "cpu", seed=0)
    call = forms.our_form(case, inputs)
    if check:
        errors = errors_of(case, inputs, call, next(iter(forms.torch_forms(case, inputs).values())))
        if not errors.ok:
            raise ArithmeticError(f"the error is {errors.ours}, {errors.allowed} is allowed")
    return 1e3 * interleave({"ours": call}, 1)["ours"][0]


def case_of(desc: Desc) -> Case:
    """Returns a call that asks for the kernel."""
    dtype = next(short for short, name in DTYPE_NAMES.items() if name == desc.dtype)
    if desc.algorithm == "flash_decode":
        return Case("decode", dtype, 1, KV_HEADS * desc.rows, KV_HEADS, desc.head_dim, 1, DECODE_KEYS, False)
    rows = desc.rows if desc.rows < max(ROWS["flash_fwd"]) else LENGTH
    return Case("prefill", dtype, 1, KV_HEADS, KV_HEADS, desc.head_dim, rows, LENGTH, rows == LENGTH)
