"""Comparison of tile sizes: the choice of each row of xeflash/tune's tables beside other sizes.

    python perf/sweep.py --device bmg                                       # the forward's rows
    python perf/sweep.py --device dg2 --algorithm flash_decode --row 3      # the third row of the table
    python perf/sweep.py --device pvc --algorithm flash_bwd_dkv             # gradients of K and V
    python perf/sweep.py --device bmg --dtype bf16 --head-dim 128 --block-q 8,16 --block-k 32,64
    python perf/sweep.py --device cpu --algorithm linear                    # products
    python perf/sweep.py --device bmg --candidates                          # those that `xeflash tune` tries

A row is tried with the largest problem that it is the first to fit. On a GPU the instructions of the main loop are
counted, whose rare branches (mask, rescaling) are in it, too; nothing is timed, and a choice that spills is never the
better one; this needs ocloc and the simulator, see xeflash.sim. On the CPU of this machine products are timed, in a
process for each choice; the rounds of all choices take turns. `xeflash tune --device cpu` times attention.

Of linear a choice is, on a GPU, outputs of a thread, and threads of a group that take turns at the inputs. Its
instructions per byte of weights are beside what memory allows: 0.94 on a B580, 1.8 on a PVC stack, 2.2 on an A770; how
many threads a call starts is beside how many the device holds. On the CPU a choice is outputs of a work-item and inputs
of a step.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported

from counting.spills import said
from counting.tables import PRINTERS, Row, Table
from sweeping import attention, is_cpu, linear
from xeflash.bench.cases import DTYPES, parse_choices, parse_sizes
from xeflash.cli.arguments import converter
from xeflash.jit.precompile import target
from xeflash.sim.binary import CompileError
from xeflash.tune import xe

TIMES = {"ms": ".3f", "from": ".3f", "to": ".3f"}


KINDS: dict[str, Any] = dict.fromkeys(attention.ROWS, attention) | {"linear": linear}


def served(arch: str, algorithm: str, dtypes: tuple[str, ...], dims: tuple[int, ...]) -> dict[int, Any]:
    """Returns the largest problem of each row of the table, by the row's number."""
    kind = KINDS[algorithm]
    tune = kind.tune_of(arch)
    numbers = {id(row): number for number, row in enumerate(tune.TABLES[algorithm], 1)}
    return {numbers[id(tune.row_of(desc))]: desc for desc in kind.problems(arch, algorithm, dtypes, dims)}


def reason(error: Exception) -> str:
    """Returns the line of an error that says why a choice fails."""
    lines = str(error).splitlines() or [type(error).__name__]
    return next((line for line in lines if "error" in line), lines[0])


def timed(kind: Any, desc: Any, choices: list[Any], rounds: int) -> dict[Any, Row | str]:
    """Times each choice; returns the median and range of its samples, or why it fails."""
    spawn = multiprocessing.get_context("spawn")
    found: dict[Any, Row | str] = {}
    with ExitStack() as stack:
        pools = {x: stack.enter_context(ProcessPoolExecutor(1, spawn, kind.use, (desc, x))) for x in choices}
        samples: dict[Any, list[float]] = {}
        for choice, pool in pools.items():
            try:
                pool.submit(kind.sample, desc).result()
                samples[choice] = []
            except (RuntimeError, BrokenProcessPool) as error:
                found[choice] = reason(error)
        for _ in range(rounds):
            for choice, times in samples.items():
                times.append(pools[choice].submit(kind.sample, desc).result())
    for choice, times in samples.items():
        found[choice] = dict(zip(TIMES, (statistics.median(times), min(times), max(times)), strict=True))
    return found


def counted(kind: Any, desc: Any, choice: Any) -> Row | str:
    """Returns the figures of a choice, or why it fails."""
    try:
        found: Row = kind.count(desc, choice)
    except (CompileError, RuntimeError) as error:
        return reason(error)
    return found


def rows_of(kind: Any, desc: Any, options: argparse.Namespace) -> Iterator[Row]:
    """Yields a row for each choice."""
    choices, chosen = kind.choices(desc, options), kind.chosen_of(desc)
    times = timed(kind, desc, choices, options.rounds) if is_cpu(desc.arch) else {}
    none: Row = dict.fromkeys(TIMES if times else kind.FIGURES)
    for choice in choices:
        figures = times.get(choice) or counted(kind, desc, choice)
        note = "in the table" if choice == chosen else ""
        if isinstance(figures, str):
            figures, note = none, figures
        elif figures.get("scratch"):
            note = "spills"
        sizes = {name: size or "all" for name, size in zip(kind.SIZES, choice, strict=True)}
        yield sizes | dict(figures) | {"note": note}


def tables(found: dict[int, Any], options: argparse.Namespace) -> Iterator[Table]:
    """Yields a table for each row of the table of tiles."""
    kind = KINDS[options.algorithm]
    formats = dict.fromkeys(kind.SIZES, "") | (TIMES if options.device == "cpu" else kind.FIGURES) | {"note": ""}
    for number in options.row or sorted(found):
        yield Table(f"row {number}: {said(found[number])}", formats, rows_of(kind, found[number], options))


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes, dtypes = converter(parse_sizes), converter(lambda text: parse_choices(text, DTYPES))
    parser.add_argument("--device", choices=("cpu", *xe.ARCHITECTURES), required=True)
    parser.add_argument("--algorithm", choices=KINDS, default="flash_fwd")
    parser.add_argument("--row", type=sizes, help="their numbers, from 1 on (default: all that serve the device)")
    parser.add_argument("--dtype", type=dtypes, default=("fp32", "fp16", "bf16"))
    parser.add_argument("--head-dim", type=sizes, help="of attention (default: 64,104,112,128,256,512,576)")
    parser.add_argument("--block-q", type=sizes, help="rows, of attention (default: around those of the table)")
    parser.add_argument("--block-k", type=sizes, help="keys (likewise)")
    parser.add_argument("--candidates", action="store_true", help="of attention, those of the table and no others")
    parser.add_argument("--rounds", type=int, default=5, help="of what is timed")
    parser.add_argument("--format", choices=PRINTERS, default="text", help="default: text")
    options = parser.parse_args()
    of_attention = (options.head_dim, options.block_q, options.block_k, options.candidates)
    if options.algorithm == "linear" and any(of_attention):
        parser.error("--head-dim, --block-q, --block-k and --candidates are of attention")
    if options.candidates and (options.block_q or options.block_k):
        parser.error("--candidates has its own --block-q and --block-k")
    if options.device == "cpu" and options.algorithm != "linear":
        parser.error(f"--algorithm {options.algorithm} is timed by xeflash tune --device cpu")
    arch = target("cpu").arch if options.device == "cpu" else options.device
    dims = options.head_dim or (64, 104, 112, 128, 256, 512, 576)
    found = served(arch, options.algorithm, options.dtype, dims)
    if missing := set(options.row or ()) - set(found):
        parser.error(f"--row: {sorted(missing)} serve none of these dtypes and head dims, {sorted(found)} do")
    PRINTERS[options.format](tables(found, options))


if __name__ == "__main__":
    main()
