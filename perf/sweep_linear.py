"""The tables of xeflash.linear: what `sweep.py --algorithm linear` compares.

On a GPU a choice is outputs of a thread, and threads of a group that take turns at the inputs. Its instructions per
byte of weights are those of the main loop; memory allows 0.94 on a B580, 1.8 on a PVC stack and 2.2 on an A770. How
many threads a call starts is beside how many the device holds. On the CPU a choice is outputs of a work-item and
inputs of a step, and is timed, in a process for each; the rounds of all choices take turns.
"""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack

from rich.console import Console
from rich.table import Table
from xeflash.jit.offline import compile_offline
from xeflash.jit.precompile import target
from xeflash.jit.product import render_product
from xeflash.sim.binary import CompileError, compile_spirv, inspect
from xeflash.tune import products
from xeflash.tune.desc import DTYPE_NAMES, Config, ProductDesc
from xeflash.tune.products import pick_product

ROWS, WIDTHS, INPUTS = (1, 4, 8, 16, 64), (10, 12, 14), 4096
HELD = {"bmg": 20 * 8 * 4, "pvc": 64 * 8 * 4, "dg2": 32 * 16 * 4}  # threads with all registers: B580, a stack, A770
WEIGHTS = {None: 0, "int8": 0, "uint8": 128}  # and the group of inputs that shares a scale
BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "int8": 1.0, "uint8": 0.5}


def problems(arch: str, dtypes: tuple[str, ...]) -> Iterator[ProductDesc]:
    """Small ones first."""
    access = "" if arch.startswith("cpu-") else "dwords" if arch == "dg2" else "block2d"
    for width, rows, dtype, weight in itertools.product(WIDTHS, ROWS, dtypes, WEIGHTS):
        scale = DTYPE_NAMES[dtype] if weight else None
        yield ProductDesc("linear", arch, DTYPE_NAMES[dtype], rows, width, weight, scale, WEIGHTS[weight], access)


def choices(desc: ProductDesc) -> list[Config]:
    """That of the table, and those around it."""
    chosen = pick_product(desc)
    if desc.arch.startswith("cpu-"):
        outputs = (16, 48, 96) if desc.rows <= 8 else (48, 96, 192)
        steps = (1024, 2048, 0) if desc.rows <= 8 else (64, 128, 256)
        found = [Config(chosen.block_q, k, n) for n in outputs for k in steps]
    else:
        found = [
            Config(chosen.block_q, chosen.block_k, n, threads=t, split_keys=t > 1)
            for n in (8, 16, 32)
            for t in (1, 2, 4, 8, 16)
            if n >= t
        ]
    return found if chosen in found else [chosen, *found]


def counted(desc: ProductDesc, config: Config) -> tuple[str, ...]:
    """Instructions per byte, threads of a call, bytes of scratch memory."""
    binary = compile_spirv(desc.arch, compile_offline(render_product(desc, config)).binary, "-vc-codegen -doubleGRF")
    kernel = next(kernel for kernel in inspect(desc.arch, binary) if desc.entries[0] in kernel["name"])
    size = config.block_v * config.block_k * BYTES[desc.weight or desc.dtype]
    tiles = -(-desc.rows // config.block_q)
    threads = -(-(1 << desc.width) // config.block_v) * config.threads * tiles
    per_byte = f"{tiles * kernel['loop']['instructions'] / size:.3f}"
    return per_byte, f"{threads} of {HELD[desc.arch]}", str(kernel["scratch"])


def use(config: Config) -> None:
    """This process has one row in its table."""
    products.TABLES["linear"] = [("cpu", "*", 64, 99, config.block_v, config.block_q, config.block_k, 1)]


def sample(desc: ProductDesc) -> float:
    """Milliseconds of a call on weights that are in no cache."""
    import torch
    import xeflash

    dtype = getattr(torch, desc.dtype)
    outputs, columns = 1 << desc.width, INPUTS // 2 if desc.weight == "uint8" else INPUTS
    weight = torch.ones(outputs, columns, dtype=getattr(torch, desc.weight or desc.dtype))
    arguments = {"group": desc.group or None} if desc.weight else {}
    if desc.weight:
        arguments["scales"] = torch.ones(INPUTS // desc.group if desc.group else 1, outputs, dtype=dtype)
    copies = [weight.clone() for _ in range(max(2, (256 << 20) // weight.nbytes))]
    x, times = torch.ones(desc.rows, INPUTS, dtype=dtype), []
    xeflash.linear(x, weight, **arguments)
    for some in copies:
        start = time.perf_counter()
        xeflash.linear(x, some, **arguments)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def timed(desc: ProductDesc, configs: list[Config], rounds: int) -> dict[Config, tuple[str, ...]]:
    """The least time of each, and the range of its rounds."""
    spawn, found = multiprocessing.get_context("spawn"), {config: list[float]() for config in configs}
    with ExitStack() as stack:
        pools = {c: stack.enter_context(ProcessPoolExecutor(1, spawn, use, (c,))) for c in configs}
        for _ in range(rounds):
            for config, pool in pools.items():
                found[config].append(pool.submit(sample, desc).result())
    return {c: (f"{min(times):.3f}", f"{min(times):.3f} to {max(times):.3f}") for c, times in found.items()}


def main(device: str, dtypes: tuple[str, ...], rows: tuple[int, ...] | None, rounds: int) -> None:
    """A table for each row of xeflash/tune/products.py that serves the device; `rows` are their numbers."""
    on_cpu, console = device == "cpu", Console(width=120)
    numbers = {id(row): number for number, row in enumerate(products.TABLES["linear"], 1)}
    arch = target("cpu").arch if on_cpu else device
    served = {numbers[id(products.row_of(desc))]: desc for desc in problems(arch, dtypes)}
    if missing := set(rows or ()) - set(served):
        raise SystemExit(f"--row: {sorted(missing)} serve none of these dtypes on the device, {sorted(served)} do")
    for number in rows or sorted(served):
        desc = served[number]
        own = ("ms", "range") if on_cpu else ("instructions / byte", "threads", "scratch")
        table = Table("outputs", "inputs of a step", "turns", *own, "", title_justify="left")
        table.title = (
            f"row {number}: {desc.dtype}, weights {desc.weight or 'same'}, {desc.rows} rows, 2^{desc.width} outputs"
        )
        configs = choices(desc)
        times = timed(desc, configs, rounds) if on_cpu else {}
        for config in configs:
            try:
                figures = times.get(config) or counted(desc, config)
            except (CompileError, RuntimeError) as error:
                figures = (str(error).splitlines()[0], *[""] * (len(own) - 1))
            mine = "in the table" if config == pick_product(desc) else ""
            sizes = (config.block_v, config.block_k or "all", config.threads)
            table.add_row(*map(str, sizes), *figures, mine)
        console.print(table)
