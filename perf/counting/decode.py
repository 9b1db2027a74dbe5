"""Counts of one-token decode's machine code on simulated GPUs: the figures to lower before a card is there.

One sequence and one KV head with 1, 4 or 8 query heads is the work of a KV head in batches of any size, as each reads
its own keys; `--batch 8 --heads 10/2` is a batch of them that shares the caches. Beside it the forward kernel has as
many queries of one head, which fill its rows as heads would. Bytes are those of K and V with their scales; what is read
is K, V and, for each split, Q; lines are the different cache lines of it, the least that memory can see. "instr / key"
are those for a key of a KV head; `--kv-dtype` gives caches types of their own. "L2" are the lines that L2 is asked for,
"memory" those that it lacks or has lost again, of all launches of a call; "lost" had been prefetched and left L2 before
they were used (perf/xesim/README.md: Caches).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import dpctl
import numpy as np
import xeflash
from xeflash import sim
from xeflash.bench import kv_cache
from xeflash.bench.cases import KV_DTYPES, Case, parse_choices, parse_size
from xeflash.cli.arguments import converter

from counting.options import add_attention, add_caches, add_devices, add_heads, add_sizes, cases
from counting.simulated import LINE_BYTES, DeviceArray, queue_of, records_of
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
FORMATS = {"device": "", "dtype": "", "KV": "", "D": "", "keys": "", "kernel": "", "launches": "", "threads": ""}
FORMATS |= dict.fromkeys(("read / KV", "lines / KV", "L2 / KV", "memory / KV", "lost / KV"), ".3f")
FORMATS |= {"instr / key": ".1f"} | dict.fromkeys(("instr / B", "merging", "float ALU / B"), ".3f")
FORMATS |= {"dpas / B": ".4f", "sends / KiB": ".1f", "spilled": ""}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this family."""
    add_devices(parser)
    add_attention(parser)
    add_sizes(parser, "--keys", (1024, 4096))
    parser.add_argument("--batch", type=converter(parse_size), default=1, help="sequences; default: 1")
    add_heads(parser, HEADS)
    kind = converter(lambda text: parse_choices(text, KV_DTYPES))
    words = f"types of K and V: {', '.join(KV_DTYPES)}; default: that of Q"
    parser.add_argument("--kv-dtype", type=kind, default=("",), help=words)
    add_caches(parser, "l2")


def call_of(queue: dpctl.SyclQueue, case: Case) -> Callable[[], object]:
    """Returns the call of a case, on K and V of queries in the order (B, H, S, D), or on a cache."""
    heads, batch = (case.heads, case.kv_heads, case.kv_heads), case.batch
    if not case.kv_dtype:
        shapes = [
            (batch, n, rows, case.head_dim) for n, rows in zip(heads, (case.seq_q, *2 * [case.seq_k]), strict=True)
        ]
        arrays = [DeviceArray(queue, shape, case.dtype) for shape in shapes]
        return lambda: xeflash.attention(*arrays, enable_gqa=True)
    q = DeviceArray(queue, (batch, case.seq_q, case.heads, case.head_dim), case.dtype)
    names = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
    cache = {}
    for name, (shape, dtype) in kv_cache.array_sizes(case).items():
        values = None
        if "scale" in name:  # by which int8 are usual numbers, and so are 4 bits
            values = np.full(shape, 0.4 if dtype == "float16" else 0.03, dtype)
        elif dtype in ("int8", "uint8"):
            values = np.random.default_rng(1).integers(-100, 100, shape).astype(dtype)
        cache[name] = DeviceArray(queue, shape, names.get(dtype, dtype), values)
    return lambda: xeflash.flash_attn_with_kvcache(q, **cache)


def row_of(device: str, case: Case) -> Row:
    """Counts the first launch of a call, and the share of the launch that merges."""
    heads_q, heads_k, keys, queries = case.heads, case.kv_heads, case.seq_k, case.seq_q
    queue, needed = queue_of(device), case.kv_bytes
    first, *merging = records = records_of(queue, call_of(queue, case))
    return {
        "device": device, "dtype": case.dtype, "KV": case.cached, "D": case.head_dim, "keys": keys,
        "kernel": f"decode {heads_q}/{heads_k}" if queries == 1 else f"forward, {queries} rows",
        "launches": len(records), "threads": first.threads,
        "read / KV": first.global_read / needed, "lines / KV": LINE_BYTES * first.lines_read / needed,
        "L2 / KV": sum(record.l2_read for record in records) / needed,
        "memory / KV": sum(record.memory_read for record in records) / needed,
        "lost / KV": LINE_BYTES * sum(record.prefetches_lost for record in records) / needed,
        "instr / key": first.instructions / (case.batch * heads_k * keys), "instr / B": first.instructions / needed,
        "merging": sum(record.instructions for record in merging) / needed,
        "float ALU / B": first.float_alu / needed, "dpas / B": first.dpas / needed,
        "sends / KiB": 1024 * first.sends / needed, "spilled": max(record.spill_bytes for record in records),
    }  # fmt: skip


def report(options: argparse.Namespace) -> Iterator[Table | str]:
    """Yields a table, and sentences on memory and other projects."""
    sim.enable(*options.device, check=f"none,caches={options.caches}")
    together, kv = max((query // kv, kv) for query, kv in options.heads)
    calls = [*((heads,) for heads in options.heads), ((kv, kv), together)]
    every = (
        (device, Case("decode", dtype, options.batch, *heads, dim, *(*queries, 1)[:1], keys, False, kv_dtype=kv))
        for device, dtype, dim in cases(options)
        for keys in options.keys
        for heads, *queries in calls
        for kv in options.kv_dtype
    )
    yield Table(f"batch {options.batch}, caches {options.caches}", FORMATS, (row_of(*call) for call in every))
    yield from (MEMORY[device] for device in options.device if device in MEMORY)
    yield from PEERS
