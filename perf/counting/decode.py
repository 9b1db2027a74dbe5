"""Counts of one-token decode's machine code on simulated GPUs: the figures to lower before a card is there.

One sequence and one KV head with 1, 4 or 8 query heads is the work of a KV head in batches of any size, as each reads
its own keys; `--batch 8 --heads 10/2` is a batch of them that shares the caches. Beside it the forward kernel has as
many queries of one head, which fill its rows as heads would. Bytes are those of K and V: 2 x batch x KV heads x keys x
head dim x size; what is read is K, V and, for each split, Q; lines are the different cache lines of it, the least that
memory can see. "L2" are the lines that L2 is asked for, "memory" those that it lacks or has lost again, of all launches
of a call; "lost" had been prefetched and left L2 before they were used (perf/xesim/README.md: Caches).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import xeflash
from xeflash import sim
from xeflash.bench.cases import parse_size
from xeflash.cli.arguments import converter

from counting.options import add_attention, add_caches, add_devices, add_heads, add_sizes, cases
from counting.simulated import LINE_BYTES, SIZE, DeviceArray, queue_of, records_of
from counting.tables import Row, Table

HEADS = ((1, 1), (4, 1), (8, 1))
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
FORMATS = {"device": "", "dtype": "", "D": "", "keys": "", "kernel": "", "launches": "", "threads": ""}
FORMATS |= dict.fromkeys(("read / KV", "lines / KV", "L2 / KV", "memory / KV", "lost / KV"), ".3f")
FORMATS |= dict.fromkeys(("instr / B", "merging", "float ALU / B"), ".3f")
FORMATS |= {"dpas / B": ".4f", "sends / KiB": ".1f", "spilled": ""}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this family."""
    add_devices(parser)
    add_attention(parser)
    add_sizes(parser, "--keys", (1024, 4096))
    parser.add_argument("--batch", type=converter(parse_size), default=1, help="sequences; default: 1")
    add_heads(parser, HEADS)
    add_caches(parser, "l2")


def row_of(device: str, dtype: str, dim: int, keys: int, batch: int, heads: tuple[int, int], queries: int = 1) -> Row:
    """Counts the first launch of a call, and the share of the launch that merges."""
    heads_q, heads_k = heads
    queue, needed = queue_of(device), 2 * batch * heads_k * keys * dim * SIZE[dtype]
    shapes = ((batch, heads_q, queries, dim), *2 * [(batch, heads_k, keys, dim)])
    arrays = [DeviceArray(queue, shape, dtype) for shape in shapes]
    first, *merging = records = records_of(queue, lambda: xeflash.attention(*arrays, enable_gqa=True))
    return {
        "device": device, "dtype": dtype, "D": dim, "keys": keys,
        "kernel": f"decode {heads_q}/{heads_k}" if queries == 1 else f"forward, {queries} rows",
        "launches": len(records), "threads": first.threads,
        "read / KV": first.global_read / needed, "lines / KV": LINE_BYTES * first.lines_read / needed,
        "L2 / KV": sum(record.l2_read for record in records) / needed,
        "memory / KV": sum(record.memory_read for record in records) / needed,
        "lost / KV": LINE_BYTES * sum(record.prefetches_lost for record in records) / needed,
        "instr / B": first.instructions / needed, "merging": sum(record.instructions for record in merging) / needed,
        "float ALU / B": first.float_alu / needed, "dpas / B": first.dpas / needed,
        "sends / KiB": 1024 * first.sends / needed, "spilled": max(record.spill_bytes for record in records),
    }  # fmt: skip


def report(options: argparse.Namespace) -> Iterator[Table | str]:
    """Yields a table, and sentences on memory and other projects."""
    sim.enable(*options.device, check=f"none,caches={options.caches}")
    together, kv = max((query // kv, kv) for query, kv in options.heads)
    calls = [*((heads,) for heads in options.heads), ((kv, kv), together)]
    every = ((*case, keys, options.batch, *call) for case in cases(options) for keys in options.keys for call in calls)
    yield Table(f"batch {options.batch}, caches {options.caches}", FORMATS, (row_of(*call) for call in every))
    yield from (MEMORY[device] for device in options.device if device in MEMORY)
    yield from PEERS
