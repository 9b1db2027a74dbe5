"""Counts of the machine code of xeflash.linear on simulated GPUs.

The loop is the difference between two numbers of inputs. Bytes are those of weights and scales, which have to be read
once; lines are the cache lines that were read of all arrays, over those bytes. "of the issue rate" is the share of the
instructions that a device issues while memory brings those bytes: 0.94 per byte on a B580, 1.8 on a PVC stack, 2.2 on
an A770.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import xeflash
from xeflash import sim

from counting.options import add_devices, add_sizes
from counting.simulated import LINE_BYTES, DeviceArray, queue_of, records_of
from counting.tables import Row, Table

OUTPUTS, INPUTS = 256, (4096, 8192)
ISSUED_PER_BYTE = {"bmg": 0.94, "pvc": 1.8, "dg2": 2.2}
WEIGHTS = (("fp32", "fp32", 0), ("bf16", "bf16", 0), ("bf16", "int8", 0), ("bf16", "uint8", 32), ("fp16", "uint8", 128))
FORMATS = {"device": "", "x": "", "weights": "", "group": "", "rows": "", "instr / byte": ".3f"}
FORMATS |= dict.fromkeys(("of the issue rate", "dpas", "moves", "sends"), ".0%")
FORMATS |= {"bytes / send": ".0f", "lines": ".3f", "spilled": ""}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this family."""
    add_devices(parser)
    add_sizes(parser, "--rows", (1, 8, 64), "of x; ")


def record_of(device: str, dtype: str, weight: str, group: int, rows: int, inputs: int) -> tuple[sim.LaunchRecord, int]:
    """Returns the record of one call, and the bytes of its weights and scales."""
    queue = queue_of(device)
    w = DeviceArray(queue, (OUTPUTS, inputs // 2 if weight == "uint8" else inputs), weight)
    arguments: dict[str, Any] = {}
    bytes_read = w.nbytes
    if weight != dtype:
        scales = DeviceArray(queue, (inputs // group if group else 1, OUTPUTS), dtype)
        arguments = {"scales": scales, "group": group or None}
        bytes_read += scales.nbytes
    x = DeviceArray(queue, (rows, inputs), dtype)
    (record,) = records_of(queue, lambda: xeflash.linear(x, w, **arguments))
    return record, bytes_read


def row_of(device: str, dtype: str, weight: str, group: int, rows: int) -> Row:
    """Counts the loop as the difference between two calls."""
    (short, few), (long, many) = (record_of(device, dtype, weight, group, rows, inputs) for inputs in INPUTS)

    def more(field: str) -> int:
        return int(getattr(long, field) - getattr(short, field))

    instructions, size = more("instructions"), many - few
    issued = ISSUED_PER_BYTE.get(device)
    return {
        "device": device, "x": dtype, "weights": weight, "group": group or "all", "rows": rows,
        "instr / byte": instructions / size,
        "of the issue rate": instructions / size / issued if issued else None,
        **{field: more(field) / instructions for field in ("dpas", "moves", "sends")},
        "bytes / send": more("global_read") / more("sends"), "lines": more("lines_read") * LINE_BYTES / size,
        "spilled": long.spill_bytes,
    }  # fmt: skip


def report(options: argparse.Namespace) -> Iterator[Table | str]:
    """Yields one table."""
    sim.enable(*options.device)
    every = ((device, *weights, rows) for device in options.device for weights in WEIGHTS for rows in options.rows)
    yield Table("xeflash.linear", FORMATS, (row_of(*case) for case in every))
