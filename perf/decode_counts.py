"""What one-token decode's machine code does on a simulated GPU, counted: the figures to lower before a card is there.

    python perf/decode_counts.py --device bmg                     # bf16; head dims 64, 128, 256
    python perf/decode_counts.py --device dg2 --dtype fp16 --dim 128 --keys 4096

One sequence and one KV head with 1, 4 or 8 query heads: the work of a KV head in batches of any size, as each reads its
own keys. Beside it the forward kernel with as many queries of one head, which fill its rows as heads would.
Bytes are those of K and V: 2 x keys x head dim x size; what is read is K, V and, for each split, Q; lines are the
different cache lines of it, which is what memory sees when threads that run at the same time read the same keys. Needs
ocloc and the simulator, see xeflash.sim.
"""

from __future__ import annotations

import argparse

import dpctl
import xeflash
from rich.console import Console
from rich.table import Table
from simulated import DTYPES, DeviceArray
from xeflash import sim

HEADS = (1, 4, 8)
SIZE = {"fp32": 4, "fp16": 2, "bf16": 2}
# Bytes of memory per cycle of a vector engine: GB/s / (engines x GHz).
MEMORY = {
    "pvc": "Max 1550, one stack: 1638 GB/s / (448 x 1.6 GHz) = 2.3 bytes a cycle: 0.44 cycles a byte",
    "bmg": "B580: 456 GB/s / (160 x 2.85 GHz) = 1.0 byte a cycle: 1.0 cycle a byte",
    "dg2": "A770: 560 GB/s / (512 x 2.4 GHz) = 0.46 bytes a cycle: 2.2 cycles a byte",
}
PEERS = (
    "Published decode bandwidth, K and V bytes / time:",
    "  LightX2V (fp16, 32/2 heads, D 128, 32 cores, 530 GB/s): 200 / 349 / 400 / 420 GB/s at 1k / 4k / 8k / 16k keys",
    "  vllm-xpu-kernels: B60, D 256, 365 of 456 GB/s; B580, D 256, 438 of 456; D 512, 65 before a fix",
    "  sycl-tla (B 16, 80/8 heads, D 128, 10240 keys): 162 GB/s",
)


def launches(dtype: str, heads: int, queries: int, keys: int, dim: int) -> list[sim.LaunchRecord]:
    """The records of one call."""
    queue = dpctl.SyclQueue("level_zero:gpu", property="in_order")
    shapes = ((1, heads, queries, dim), (1, 1, keys, dim), (1, 1, keys, dim))
    arrays = [DeviceArray(queue, shape, dtype) for shape in shapes]
    sim.clear_launches()
    xeflash.attention(*arrays, enable_gqa=True)
    queue.wait()
    return sim.last_launches()


def lines_of(records: list[sim.LaunchRecord], needed: int) -> list[str]:
    """A row of the table: of the first launch, and what the merging one adds."""
    first = records[0]
    merging = sum(record.instructions for record in records[1:])
    return [
        str(len(records)),
        str(first.threads),
        f"{first.global_read / needed:.3f}",
        f"{64 * first.lines_read / needed:.3f}",
        f"{first.instructions / needed:.3f}",
        f"{merging / needed:.3f}",
        f"{first.float_alu / needed:.3f}",
        f"{first.dpas / needed:.4f}",
        f"{1024 * first.sends / needed:.1f}",
        str(max(record.spill_bytes for record in records)),
    ]


def main() -> None:
    """Counts and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, choices=sim.DEVICES)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--dim", type=int, action="append", help="head dims (default: 64, 128, 256)")
    parser.add_argument("--keys", type=int, action="append", help="numbers of keys (default: 1024, 4096)")
    options = parser.parse_args()
    sim.enable(options.device, check="none")

    table = Table(title=f"{options.device}, {options.dtype}, a KV head", title_justify="left")
    table.add_column("kernel, D, keys")
    columns = (
        "launches",
        "threads",
        "read / KV",
        "lines / KV",
        "instr / B",
        "merging",
        "float ALU / B",
        "dpas / B",
        "sends / KiB",
        "spill",
    )
    for name in columns:
        table.add_column(name, justify="right")
    for dim in options.dim or (64, 128, 256):
        for keys in options.keys or (1024, 4096):
            needed = 2 * keys * dim * SIZE[options.dtype]
            for heads in HEADS:
                found = launches(options.dtype, heads, 1, keys, dim)
                table.add_row(f"decode {heads}/1, {dim}, {keys}", *lines_of(found, needed))
            found = launches(options.dtype, 1, max(HEADS), keys, dim)
            table.add_row(f"forward, {max(HEADS)} rows, {dim}, {keys}", *lines_of(found, needed))
    console = Console(width=160)
    console.print(table)
    for line in (MEMORY[options.device], *PEERS):
        console.print(line, highlight=False)


if __name__ == "__main__":
    main()
