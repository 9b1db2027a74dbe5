"""What the backward's machine code does on a simulated GPU, counted.

    python perf/bwd_counts.py --device bmg                     # bf16; head dims 64, 128, 256
    python perf/bwd_counts.py --device dg2 --dtype fp16 --dim 128 --format json

The inner loop is the difference between two lengths of what a kernel loops over, per dpas. "Needed", of a causal call
with N queries and keys, is N (N + 1) / 2 scores times the five products of the paper; both kernels together make seven.
Lines are distinct cache lines: those read of Q, K, V, O and dO, those written of dQ, dK and dV.
Needs ocloc and the simulator, see xeflash.sim.
"""

from __future__ import annotations

import argparse
import functools
import json
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table
from simulated import DTYPES, backward
from xeflash import sim

N = 1024
HEADS = 2
LOOP = (256, 448)  # keys of dQ's loop, queries of that of dK and dV
OTHER_SIDE = 128
LINE_BYTES = 64
KERNELS = {"dQ": "flash_bwd_dq", "dK, dV": "flash_bwd_dkv"}
PER_DPAS = {"moves": "moves", "float ALU": "float_alu", "integer ALU": "integer_alu", "math": "math", "sends": "sends"}
PER_DPAS |= {"sync": "sync", "bytes of L1": "global_read", "bytes of shared memory": "slm_read"}


@dataclass(frozen=True)
class Loop:
    """Of a kernel's inner loop: the share of dpas (fp32: of multiply-adds), and what there is per dpas."""

    share: float
    per_dpas: dict[str, float]
    spill_bytes: int


@dataclass(frozen=True)
class Whole:
    """Of a causal call."""

    dpas_over_needed: float
    lines_read_over_minimum: float
    lines_written_over_minimum: float


@functools.cache
def records(dtype: str, dim: int, rows: int, keys: int, causal: bool = False) -> dict[str, dict[str, int]]:
    """The counts of each kernel."""
    heads = HEADS if causal else 1
    return {name: asdict(record) for name, record in backward(dtype, dim, rows, keys, causal, heads).items()}


def loop_of(kernel: str, dtype: str, dim: int) -> Loop:
    """From two calls."""
    sizes = [(OTHER_SIDE, n) if kernel == "flash_bwd_dq" else (n, OTHER_SIDE) for n in LOOP]
    short, long = (records(dtype, dim, *size)[kernel] for size in sizes)
    step = {name: long[name] - short[name] for name, n in long.items() if type(n) is int}
    multiplied = step["dpas"] or step["float_alu"]
    per_dpas = {name: step[field] / multiplied for name, field in PER_DPAS.items()}
    return Loop(multiplied / step["instructions"], per_dpas, long["spill_bytes"])


def whole_of(dtype: str, dim: int) -> Whole:
    """From a causal call."""
    found = records(dtype, dim, N, N, causal=True).values()
    array = HEADS * N * dim * (4 if dtype == "fp32" else 2)
    needed = HEADS * N * (N + 1) // 2 * 5 * dim
    return Whole(
        sum(r["dpas_macs"] for r in found) / needed,
        max(r["lines_read"] for r in found) * LINE_BYTES / (5 * array),
        sum(r["lines_written"] for r in found) * LINE_BYTES / (3 * array),
    )


def table_of(device: str, dtype: str, loops: dict[int, dict[str, Loop]], wholes: dict[int, Whole]) -> Table:
    """A column per head dim and kernel."""
    table = Table("inner loop", title=f"{device}, {dtype}", title_justify="left")
    columns = [(dim, name, loop) for dim, of_dim in loops.items() for name, loop in of_dim.items()]
    for dim, name, _ in columns:
        table.add_column(f"D = {dim}\n{name}", justify="right")
    table.add_row("dpas in all instructions", *(f"{loop.share:.1%}" for *_, loop in columns))
    for name in PER_DPAS:
        table.add_row(f"  {name} / dpas", *(f"{loop.per_dpas[name]:.2f}" for *_, loop in columns))
    table.add_row("bytes spilled", *(str(loop.spill_bytes) for *_, loop in columns), end_section=True)
    for field in ("dpas_over_needed", "lines_read_over_minimum", "lines_written_over_minimum"):
        row = [f"{getattr(wholes[dim], field):.2f}" if name == "dQ" else "" for dim, name, _ in columns]
        table.add_row(f"causal: {field.replace('_', ' ')}", *row)
    return table


def main() -> None:
    """Counts and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, choices=sim.DEVICES)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--dim", type=int, action="append", help="head dims (default: 64, 128, 256)")
    parser.add_argument("--format", choices=("table", "json"), default="table")
    options = parser.parse_args()
    device, dtype, dims = options.device, options.dtype, options.dim or [64, 128, 256]
    sim.enable(device, check="none")

    loops = {dim: {name: loop_of(kernel, dtype, dim) for name, kernel in KERNELS.items()} for dim in dims}
    wholes = {dim: whole_of(dtype, dim) for dim in dims}
    if options.format == "json":
        found = {
            str(dim): {name: asdict(loop) for name, loop in loops[dim].items()} | {"whole": asdict(wholes[dim])}
            for dim in dims
        }
        print(json.dumps({"device": device, "dtype": dtype, "n": N, "head_dims": found}, indent=1))
        return
    Console().print(table_of(device, dtype, loops, wholes))


if __name__ == "__main__":
    main()
