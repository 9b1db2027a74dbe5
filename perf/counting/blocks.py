"""Counts of masks of blocks on simulated GPUs, relative to the same call without a mask.

Each row of blocks lists the given share of the key blocks, drawn at random; listed blocks are full. "documents" is a
call whose document_ids hide nothing. Bytes are what is read and written, before any cache.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from xeflash.bench.blocks import keywords_of
from xeflash.bench.cases import Case, parse_block_size, parse_shares
from xeflash.cli.arguments import converter
from xeflash.cli.counted_blocks import KERNELS, TOLERANCE, enable, of_dense, records_of

from counting.options import add_attention, add_devices, add_sizes, cases
from counting.tables import Row, Table

FORMATS = {"device": "", "dtype": "", "D": "", "kernel": "", "mask": "", "density": ".3f", "dpas": ".3f"}
FORMATS |= {"dpas / density": ".3f", "bytes": ".3f", "bytes / density": ".3f", "instructions": ".3f", "spilled": ""}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this family."""
    add_devices(parser)
    add_attention(parser, head_dims=(64, 128))
    add_sizes(parser, "--seq", (4096,), "rows and keys; ")
    shares = parse_shares("topk:1,0.5,0.3,0.1")
    words = "topk: and shares of blocks; default: topk:1,0.5,0.3,0.1"
    parser.add_argument("--block-mask", type=converter(parse_shares), default=shares, help=words)
    size = "rows and keys of a block; default: 128"
    parser.add_argument("--block-size", type=converter(parse_block_size), default=128, help=size)


def rows_of(options: argparse.Namespace, device: str, dtype: str, dim: int, length: int) -> Iterator[Row]:
    """Counts the forward and the backward pass without a mask, and with each."""
    for phase, kernels in KERNELS.items():
        plain = Case(phase, dtype, 1, 1, 1, dim, length, length, causal=False)
        dense = records_of(plain, device)
        yield from _rows(options, kernels, plain, device, "documents", dense, document_ids=np.zeros(length, np.int32))
        for share in options.block_mask:
            case = Case(phase, dtype, 1, 1, 1, dim, length, length, False, share, options.block_size)
            yield from _rows(options, kernels, case, device, "blocks", dense, **keywords_of(case))


def _rows(
    options: argparse.Namespace, kernels: tuple[str, ...], case: Case, device: str, name: str,
    dense: Mapping[str, Any], **mask: Any,
) -> Iterator[Row]:  # fmt: skip
    records = records_of(case, device, **mask)
    for kernel in kernels:
        found = of_dense(records[kernel], dense[kernel])
        dpas = found.get("dpas")
        options.wrong += dpas is not None and abs(dpas / case.listed - 1) > TOLERANCE
        yield {
            "device": device, "dtype": case.dtype, "D": case.head_dim, "kernel": kernel, "mask": name,
            "density": case.listed, "dpas": dpas, "dpas / density": None if dpas is None else dpas / case.listed,
            "bytes": found["bytes"], "bytes / density": found["bytes"] / case.listed,
            "instructions": found["instructions"], "spilled": records[kernel].spill_bytes,
        }  # fmt: skip


def report(options: argparse.Namespace) -> Iterator[Table | str]:
    """Yields a table for each length; calls whose dpas do not follow the density are wrong."""
    enable(*options.device)
    for length in options.seq:
        every = (row for case in cases(options) for row in rows_of(options, *case, length))
        yield Table(f"{length} x {length}, blocks of {options.block_size}, relative to no mask", FORMATS, every)
