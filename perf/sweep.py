"""Tile sizes compared: for each row of the tables of xeflash/tune, what it chooses beside other blocks.

    python perf/sweep.py --device bmg                                       # the forward's rows
    python perf/sweep.py --device dg2 --algorithm flash_decode --row 3      # the third row of the table
    python perf/sweep.py --device cpu --dtype bf16 --dim 128 --block-q 32,64 --block-k 48,96,192
    python perf/sweep.py --device bmg --algorithm linear                    # products, see sweep_linear.py

A row is tried with the largest head dim and number of rows that it is the first to fit. On a GPU the instructions of
the main loop are counted, whose rare branches (mask, rescaling) are in it, too; nothing is timed, and a choice that
spills is never the better one; this needs ocloc and the simulator, see xeflash.sim. On the CPU of this machine calls
are timed, after a check, in a process for each choice; the rounds of all choices take turns.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported

import sweep_linear
from rich.console import Console
from rich.table import Table
from spills import said
from xeflash.bench.cases import DTYPES, Case, parse_choices, parse_size
from xeflash.jit.kernel import render
from xeflash.jit.offline import compile_offline
from xeflash.jit.precompile import target
from xeflash.sim.binary import CompileError, compile_spirv, inspect
from xeflash.tune import cpu, pick, xe
from xeflash.tune.desc import DTYPE_NAMES, Desc

Blocks = tuple[int, int]
Figures = tuple[str, ...]
ROWS = {"flash_fwd": (16, 32, 64, 128), "flash_decode": (1, 2, 4, 7, 8, 15, 16)}
# What tiles are multiples of, by algorithm and whether it is the CPU's.
UNITS = {("flash_fwd", True): (16, 12), ("flash_fwd", False): (8, 16)}
UNITS |= {("flash_decode", True): (1, 16), ("flash_decode", False): (1, 16)}
KV_HEADS, LENGTH, DECODE_KEYS = 8, 1024, 4096  # of what is timed
ON_GPU = ("block_q", "block_k", "loop", "per 1000 scores", "dpas", "moves", "sends", "scratch", "")
ON_CPU = ("block_q", "block_k", "ms", "spread", "")


def problems(arch: str, algorithm: str, dtypes: tuple[str, ...], dims: tuple[int, ...]) -> Iterator[Desc]:
    """Small ones first."""
    on_cpu = arch.startswith("cpu-")
    accesses = ("",) if on_cpu else ("elements", "dwords") + ("block2d",) * (arch != "dg2")
    changes: tuple[dict[str, Any], ...] = ({"cache_dtype": "int8"}, {"hooks": ("SoftCap",)}, {}, {"packed_heads": True})
    changes = ({},) if on_cpu else changes if algorithm == "flash_fwd" else changes[:3]
    for dim, rows, dtype, access, change in itertools.product(sorted(dims), ROWS[algorithm], dtypes, accesses, changes):
        yield Desc(algorithm, arch, DTYPE_NAMES[dtype], dim, dim, rows, access=access, **change)


def served(arch: str, algorithm: str, dtypes: tuple[str, ...], dims: tuple[int, ...]) -> dict[int, Desc]:
    """The largest problem of each row of the table, by the row's number."""
    tune = cpu if arch.startswith("cpu-") else xe
    numbers = {id(row): number for number, row in enumerate(tune.TABLES[algorithm], 1)}
    return {numbers[id(tune.row_of(desc))]: desc for desc in problems(arch, algorithm, dtypes, dims)}


def around(size: int, unit: int) -> tuple[int, ...]:
    """The half of it, itself and twice as much, in units."""
    return tuple(sorted({max(unit, size // 2 // unit * unit), size, 2 * size}))


def count(desc: Desc, blocks: Blocks) -> Figures:
    """What the machine code of these blocks consists of; scores are those of all threads of a tile."""
    config = pick(desc, blocks)
    binary = compile_spirv(desc.arch, compile_offline(render(desc, config)).binary, "-vc-codegen -doubleGRF")
    kernel = next(kernel for kernel in inspect(desc.arch, binary) if desc.entries[0] in kernel["name"])
    loop = kernel["loop"]
    tiles = -(-desc.rows // config.block_q)
    per_score = 1000 * loop["instructions"] * config.parts * tiles / (desc.rows * config.block_k)
    dpas = f"{100 * loop['dpas'] / loop['instructions']:.1f} %"
    figures = (loop["instructions"], f"{per_score:.0f}", dpas, loop["moves"], loop["sends"], kernel["scratch"])
    return (*(str(figure) for figure in figures), "spills" if kernel["scratch"] else "")


def use(algorithm: str, blocks: Blocks) -> None:
    """This process has one row in the table of its CPU."""
    cpu.TABLES[algorithm] = [("*", "*", 255, xe.MAX_HEAD_DIM, *blocks)]


def sample(case: Case, check: bool) -> float:
    """Milliseconds of a call; a wrong result raises."""
    from xeflash.bench import forms
    from xeflash.bench.check import check as errors_of
    from xeflash.bench.timing import interleave

    inputs = forms.make_inputs(case, "cpu", seed=0)
    call = forms.our_form(case, inputs)
    if check:
        errors = errors_of(case, inputs, call, next(iter(forms.torch_forms(case, inputs).values())))
        if not errors.ok:
            raise ArithmeticError(f"the error is {errors.ours}, {errors.allowed} is allowed")
    return 1e3 * interleave({"ours": call}, 1)["ours"][0]


def case_of(desc: Desc) -> Case:
    """A call that asks for the kernel."""
    dtype = next(short for short, name in DTYPE_NAMES.items() if name == desc.dtype)
    if desc.algorithm == "flash_decode":
        return Case("decode", dtype, 1, KV_HEADS * desc.rows, KV_HEADS, desc.head_dim, 1, DECODE_KEYS, False)
    rows = desc.rows if desc.rows < max(ROWS["flash_fwd"]) else LENGTH
    return Case("prefill", dtype, 1, KV_HEADS, KV_HEADS, desc.head_dim, rows, LENGTH, rows == LENGTH)


def reason(error: Exception) -> str:
    """The line that says why a choice is none."""
    lines = str(error).splitlines() or [type(error).__name__]
    return next((line for line in lines if "error" in line), lines[0])


def timed(desc: Desc, choices: list[Blocks], rounds: int) -> Iterator[tuple[Blocks, Figures | str]]:
    """The median of each, and the range of its samples; or why it is none."""
    spawn, case = multiprocessing.get_context("spawn"), case_of(desc)
    with ExitStack() as stack:
        pools = {
            blocks: stack.enter_context(ProcessPoolExecutor(1, spawn, use, (desc.algorithm, blocks)))
            for blocks in choices
        }
        samples: dict[Blocks, list[float]] = {}
        for blocks, pool in pools.items():
            try:
                pool.submit(sample, case, True).result()
                samples[blocks] = []
            except (RuntimeError, ArithmeticError, BrokenProcessPool) as error:
                yield blocks, reason(error)
        for _ in range(rounds):
            for blocks, found in samples.items():
                found.append(pools[blocks].submit(sample, case, False).result())
    for blocks, found in samples.items():
        yield blocks, (f"{statistics.median(found):.3f}", f"{min(found):.3f} to {max(found):.3f}", "")


def counted(desc: Desc, choices: list[Blocks]) -> Iterator[tuple[Blocks, Figures | str]]:
    """The figures of each, or why it is none."""
    for blocks in choices:
        try:
            yield blocks, count(desc, blocks)
        except (CompileError, RuntimeError) as error:
            yield blocks, reason(error)


def sizes(text: str) -> tuple[int, ...]:
    """A comma list."""
    return tuple(parse_size(word) for word in text.split(","))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", *xe.ARCHITECTURES), required=True)
    parser.add_argument("--algorithm", choices=(*ROWS, "linear"), default="flash_fwd")
    parser.add_argument("--row", type=sizes, help="their numbers, from 1 on (default: all that serve the device)")
    parser.add_argument("--dtype", type=lambda text: parse_choices(text, DTYPES), default=("fp32", "fp16", "bf16"))
    parser.add_argument("--dim", type=sizes, default=(64, 104, 112, 128, 256, 512, 576))
    parser.add_argument("--block-q", type=sizes, help="rows (default: around those of the table)")
    parser.add_argument("--block-k", type=sizes, help="keys (likewise)")
    parser.add_argument("--rounds", type=int, default=5, help="of what is timed")
    options = parser.parse_args()
    if options.algorithm == "linear":
        sweep_linear.main(options.device, options.dtype, options.row, options.rounds)
        return
    on_cpu = options.device == "cpu"
    found = served(target("cpu").arch if on_cpu else options.device, options.algorithm, options.dtype, options.dim)
    if missing := set(options.row or ()) - set(found):
        parser.error(f"--row: {sorted(missing)} serve none of these dtypes and head dims on the device")
    console = Console(width=120)
    unit_q, unit_k = UNITS[options.algorithm, on_cpu]
    for number in options.row or sorted(found):
        desc = found[number]
        chosen = pick(desc)
        block_qs = options.block_q or around(chosen.block_q, unit_q)
        block_ks = options.block_k or around(chosen.block_k, unit_k)
        choices = list(itertools.product(block_qs, block_ks))
        table = Table(*(ON_CPU if on_cpu else ON_GPU), title_justify="left")
        table.title = f"row {number}: {said(desc)}"
        for (block_q, block_k), figures in timed(desc, choices, options.rounds) if on_cpu else counted(desc, choices):
            if isinstance(figures, str):
                console.print(f"{block_q} x {block_k}: {figures}", style="red", highlight=False)
                continue
            *values, note = figures
            mine = "in the table" if (block_q, block_k) == (chosen.block_q, chosen.block_k) else ""
            table.add_row(str(block_q), str(block_k), *values, note or mine)
        console.print(table)


if __name__ == "__main__":
    main()
