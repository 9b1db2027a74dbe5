"""Counts of a tree of guesses on a cache, beside a causal call of as many queries, on simulated GPUs.

The cache has the keys of the nodes already; the parent of each node is drawn of the nodes before it. Counts are those
of all launches of a call; bytes are what is read and written, before any cache.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
import xeflash
from xeflash import sim
from xeflash.bench.cases import parse_size
from xeflash.bench.forms import random_tree
from xeflash.cli.arguments import converter

from counting.options import add_attention, add_devices, add_heads, add_sizes, cases
from counting.simulated import BYTES, DeviceArray, queue_of, records_of
from counting.tables import Row, Table

FORMATS = {"device": "", "dtype": "", "D": "", "heads": "", "keys": "", "nodes": "", "launches": "", "threads": ""}
FORMATS |= {"instructions": "", "of causal": ".4f", "bytes": "", "bytes of causal": ".4f", "spilled": ""}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this family."""
    add_devices(parser)
    add_attention(parser, head_dims=(128,))
    add_heads(parser, ((16, 2),))
    add_sizes(parser, "--tree", (8, 32, 60), "nodes; ")
    add_sizes(parser, "--keys", (4096,))
    parser.add_argument("--page", type=converter(parse_size), help="keys of a page; default: a cache without pages")
    parser.add_argument(
        "--cache-dtype", choices=[name for name in BYTES if name != "uint8"], help="default: that of the queries"
    )


def row_of(
    options: argparse.Namespace, device: str, dtype: str, dim: int, heads: tuple[int, int], keys: int, nodes: int
) -> Row:
    """Counts both calls."""
    queue, cached = queue_of(device), options.cache_dtype or dtype

    def held(values: Any) -> DeviceArray:
        return DeviceArray(queue, values.shape, "int32", np.ascontiguousarray(values))

    rows = (-(-keys // options.page), options.page) if options.page else (1, keys)
    given: list[Any] = [DeviceArray(queue, (1, nodes, heads[0], dim), dtype)]
    given += [DeviceArray(queue, (*rows, heads[1], dim), cached) for _ in range(2)]
    more: dict[str, Any] = {"k_scale": 1.0, "v_scale": 1.0} if options.cache_dtype else {}
    if options.page:
        table = np.arange(rows[0], dtype=np.int32)[None]
        more |= {"block_table": held(table), "cache_seqlens": held(np.array([keys], np.int32))}
    mask = held(xeflash.pack_tree_mask(random_tree(nodes, 0).numpy()))
    tree, causal = (
        records_of(queue, lambda kind=kind: xeflash.flash_attn_with_kvcache(*given, **more, **kind))
        for kind in ({"tree_mask": mask}, {"causal": True})
    )
    instructions, beside = (sum(record.instructions for record in records) for records in (tree, causal))
    moved, moved_beside = (sum(x.global_read + x.global_written for x in records) for records in (tree, causal))
    return {
        "device": device, "dtype": dtype, "D": dim, "heads": f"{heads[0]}/{heads[1]}", "keys": keys, "nodes": nodes,
        "launches": len(tree), "threads": tree[0].threads, "instructions": instructions,
        "of causal": instructions / beside, "bytes": moved, "bytes of causal": moved / moved_beside,
        "spilled": max(record.spill_bytes for record in tree),
    }  # fmt: skip


def report(options: argparse.Namespace) -> Iterator[Table | str]:
    """Yields a table."""
    sim.enable(*options.device, check="none")
    every = (
        (*case, heads, keys, nodes)
        for case in cases(options)
        for heads in options.heads
        for keys in options.keys
        for nodes in options.tree
    )
    kind = f"{f'pages of {options.page}' if options.page else 'no pages'}, {options.cache_dtype or 'no 8 bits'}"
    yield Table(kind, FORMATS, (row_of(options, *call) for call in every))
