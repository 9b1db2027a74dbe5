"""Counts of what the backward's machine code does on simulated GPUs.

The inner loop is the difference between two lengths of what a kernel loops over: instructions per block, of all threads
that have that block's rows, and what else there is per dpas (fp32: per multiply-add). "Needed", of a causal call with N
queries and keys, is N (N + 1) / 2 scores times the five products of the paper; both kernels together make seven. Lines
are distinct cache lines: those read of Q, K, V, O and dO, those written of dQ, dK and dV.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from dataclasses import asdict

from xeflash import _core, sim
from xeflash.call.schema import BHSD
from xeflash.jit.calls import kernels_of
from xeflash.runtime.interop import Placeholder
from xeflash.tune import pick, xe
from xeflash.tune.desc import DTYPE_NAMES, AnyDesc
from xeflash.tuner.counts import kernel_of

from counting.options import add_attention, add_devices, cases
from counting.simulated import LINE_BYTES, SIZE, backward
from counting.tables import Row, Table

N = 1024
HEADS = 2
LOOP = (256, 448)  # keys of dQ's loop, queries of that of dK and dV
OTHER_SIDE = 128
KERNELS = {"dQ": "flash_bwd_dq", "dK, dV": "flash_bwd_dkv"}
PER_DPAS = {"moves": "moves", "float ALU": "float_alu", "int ALU": "integer_alu", "math": "math", "sends": "sends"}
PER_DPAS |= {"sync": "sync", "L1 bytes": "global_read", "SLM bytes": "slm_read"}
NAMES = {"device": "", "dtype": "", "D": ""}
LOOPS = NAMES | {"kernel": "", "block": "", "instr / block": ".0f", "threads": "", "dpas": ".1%"}
LOOPS |= dict.fromkeys(PER_DPAS, ".2f") | {"spilled": "", "code bytes": ""}
WHOLES = NAMES | dict.fromkeys(("dpas / needed", "lines read / needed", "lines written / needed"), ".2f")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this family."""
    add_devices(parser)
    add_attention(parser)
    parser.add_argument("--loop-only", action="store_true", help="leave out the causal call")


@functools.cache
def records(
    device: str, dtype: str, dim: int, rows: int, keys: int, causal: bool = False
) -> dict[str, sim.LaunchRecord]:
    """Returns the record of each kernel of a call."""
    return backward(device, dtype, dim, rows, keys, causal, HEADS if causal else 1)


def desc_of(algorithm: str, arch: str, dtype: str, dim: int, rows: int, keys: int) -> AnyDesc:
    """Returns the description of an algorithm's kernel in a call of one head."""
    query_array, key_array = (Placeholder((1, 1, n, dim), dtype) for n in (rows, keys))
    found = kernels_of(
        lambda: _core.backward(
            function="counts", layout=BHSD, q=query_array, k=key_array, v=key_array, out=query_array, dout=query_array,
            lse=Placeholder((1, 1, rows), "float32"), wanted=("q", "k", "v"),
        ),
        arch,
        units=1,
    )  # fmt: skip
    return next(desc for desc in found if desc.algorithm == algorithm)


def loop_of(name: str, device: str, dtype: str, dim: int) -> Row:
    """Counts the inner loop as the difference between two calls."""
    kernel = KERNELS[name]
    sizes = [(OTHER_SIDE, n) if kernel == "flash_bwd_dq" else (n, OTHER_SIDE) for n in LOOP]
    short, long = (asdict(records(device, dtype, dim, *size)[kernel]) for size in sizes)
    step = {field: long[field] - short[field] for field, n in long.items() if type(n) is int}
    multiplied = step["dpas"] or step["float_alu"]

    desc = desc_of(kernel, xe.DEVICES[device], DTYPE_NAMES[dtype], dim, *sizes[1])
    config = pick(desc)
    blocks = OTHER_SIDE // config.block_q * (LOOP[1] - LOOP[0]) // config.block_k
    return {
        "device": device, "dtype": dtype, "D": dim, "kernel": name, "block": f"{config.block_q} x {config.block_k}",
        "instr / block": step["instructions"] / blocks,
        "threads": long["threads"] * config.block_q // OTHER_SIDE,
        "dpas": multiplied / step["instructions"],
        **{column: step[field] / multiplied for column, field in PER_DPAS.items()},
        "spilled": long["spill_bytes"], "code bytes": kernel_of(desc)["code_bytes"],
    }  # fmt: skip


def whole_of(device: str, dtype: str, dim: int) -> Row:
    """Counts a causal call as a whole."""
    found = records(device, dtype, dim, N, N, causal=True).values()
    lines = HEADS * N * dim * SIZE[dtype] / LINE_BYTES
    needed = HEADS * N * (N + 1) // 2 * 5 * dim
    return {
        "device": device, "dtype": dtype, "D": dim,
        "dpas / needed": sum(r.dpas_macs for r in found) / needed,
        "lines read / needed": max(r.lines_read for r in found) / (5 * lines),
        "lines written / needed": sum(r.lines_written for r in found) / (3 * lines),
    }  # fmt: skip


def report(options: argparse.Namespace) -> Iterator[Table | str]:
    """Yields a table of the loops, and one of causal calls."""
    sim.enable(*options.device, check="none")
    every = list(cases(options))
    yield Table("inner loop", LOOPS, (loop_of(name, *case) for case in every for name in KERNELS))
    if not options.loop_only:
        yield Table(f"causal, {N} x {N}", WHOLES, (whole_of(*case) for case in every))
