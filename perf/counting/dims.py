"""Counts of the forward's machine code for 16 x 16 scores, for each head dim of image and video models.

Full attention of nine heads, whose threads take no turns at keys. "least" are the dpas that head dim asks for, "bytes"
what a thread asks of global memory, before any cache, and of shared memory. Each row of a head dim that is no multiple
of 32 says what it takes of the next one that is: more than 120 % would be a fault of the tables of tiles.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator

from xeflash import sim

from counting.options import add_attention, add_devices, add_sizes, cases
from counting.simulated import launches
from counting.tables import Row, Table

HEADS, ROWS = 9, 1024
UNIT = 32  # columns of a block message, and pairs of a dpas's depth
SCORES = 16 * 16
MACS = 8 * 16 * 16  # multiply-adds of a dpas
FORMATS = {"device": "", "dtype": "", "D": "", "keys": "", "instructions": ".1f", "dpas": ".1f", "least": ".1f"}
FORMATS |= {"bytes": ".0f", "shared bytes": ".0f", "sends": ".1f", "spilled": "", "beside": ""}
FORMATS |= {"its instructions": ".0%", "its bytes": ".0%"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this family."""
    add_devices(parser)
    add_attention(parser, head_dims=(40, 64, 72, 80, 88, 96, 128, 160))
    add_sizes(parser, "--keys", (1024,), "of 1,024 queries; 77, 256, 512: those of a text; ")


@functools.cache
def counts(device: str, dtype: str, dim: int, keys: int) -> dict[str, float]:
    """Counts a call for 16 x 16 scores."""
    records = launches("flash", device, dtype, dim, ROWS, keys, heads=HEADS)
    tiles = HEADS * ROWS * keys / SCORES
    sums = {
        "instructions": sum(record.instructions for record in records),
        "dpas": sum(record.dpas for record in records),
        "bytes": sum(record.global_read + record.global_written for record in records),
        "shared bytes": sum(record.slm_read + record.slm_written for record in records),
        "sends": sum(record.sends for record in records),
    }
    return {name: number / tiles for name, number in sums.items()} | {
        "spilled": max(record.spill_bytes for record in records)
    }


def beside(dim: int) -> int:
    """Returns the next multiple of UNIT."""
    return -(-dim // UNIT) * UNIT


def row_of(device: str, dtype: str, dim: int, keys: int) -> Row:
    """Counts one head dim, and compares it with the next multiple of UNIT."""
    own = counts(device, dtype, dim, keys)
    row: dict[str, str | float | None] = {"device": device, "dtype": dtype, "D": dim, "keys": keys, **own}
    row |= {"least": SCORES * 2 * dim / MACS, "beside": None, "its instructions": None, "its bytes": None}
    if dim % UNIT:
        other = counts(device, dtype, beside(dim), keys)
        row |= {"beside": beside(dim), "its instructions": own["instructions"] / other["instructions"]}
        row["its bytes"] = own["bytes"] / other["bytes"]
    return row


def report(options: argparse.Namespace) -> Iterator[Table | str]:
    """Yields a table."""
    sim.enable(*options.device, check="none")
    every = ((*case, keys) for case in cases(options) for keys in options.keys)
    yield Table("for 16 x 16 scores", FORMATS, (row_of(*call) for call in every))
