"""Counts of the forward's machine code on simulated GPUs, beside standard attention (S and P in memory).

Per head, causal. "Needed" is N (N + 1) / 2 scores, "in visible blocks" those of the tiles that some row needs. The
inner loop is the difference between two numbers of keys, per dpas (fp32: per multiply-add). "flash" is
xeflash.attention, "standard" its tiles and loads in three kernels that keep S and P in memory
(kernels/standard_attention.hpp), counted together. Lines are distinct cache lines.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from dataclasses import asdict

from xeflash import sim
from xeflash.tune import Config, pick, xe
from xeflash.tune.desc import DTYPE_NAMES, Desc

from counting.options import add_attention, add_caches, add_devices, cases
from counting.simulated import LINE_BYTES, SIZE, launches
from counting.tables import Row, Table

N = 1024
TRAFFIC_N = (512, 1024)
HEADS = 9  # enough for every device: the threads of a group take neighbouring rows, and not turns at the keys of a tile
LOOP_ROWS, LOOP_KEYS = 128, (256, 448)  # whole groups; few keys, likewise
FORMS = {"flash": "flash_fwd", "standard": "standard_attention"}
NAMES = {"device": "", "dtype": "", "D": "", "form": ""}
PER_DPAS = {"moves": "moves", "float ALU": "float_alu", "integer ALU": "integer_alu", "math": "math"}
PER_DPAS |= {"sends": "sends", "control": "control", "sync": "sync"}
COUNTS = NAMES | {"dpas / needed": ".2f", "dpas / in visible blocks": ".2f", "dpas in all instructions": ".1%"}
COUNTS |= {"inner loop: dpas in all instructions": ".1%"} | dict.fromkeys(
    (f"  {name} / dpas" for name in PER_DPAS), ".2f"
)
COUNTS |= {"bytes read / (Q + K + V)": ".1f", "bytes written / O": ".1f"}
COUNTS |= {"lines read / (Q + K + V)": ".1f", "lines written / O": ".1f", "registers": "", "spilled": ""}
BYTES = {"global_read": 1, "global_written": 1, "lines_read": LINE_BYTES, "lines_written": LINE_BYTES}
CACHED = {"l2_read": 1, "memory_read": 1, "memory_written": 1}  # added if caches are counted
# Counted by disassembling them; never run here.
PEERS = [
    {"kernel": name, "instructions": n, "dpas": dpas, "moves": moves, "share": dpas / n, "moves / dpas": moves / dpas}
    for name, n, dpas, moves in (
        ("Intel llm-scaler, ESIMD, fp16, head dim 128, BMG", 2713, 256, 912),
        ("a naive ESIMD forward, head dim 128", 1538, 64, 834),
    )
]
PEER_FORMATS = {"kernel": "", "instructions": "", "dpas": "", "moves": "", "share": ".1%", "moves / dpas": ".1f"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this family."""
    add_devices(parser)
    add_attention(parser)
    add_caches(parser)


def blocks_of(form: str, device: str, dtype: str, dim: int) -> Config:
    """Returns the tiles of a form."""
    arch = xe.DEVICES[device]
    return pick(
        Desc(FORMS[form], arch, DTYPE_NAMES[dtype], dim, dim, 128, access="dwords" if arch == "dg2" else "block2d")
    )


def scores_in_visible_blocks(config: Config) -> int:
    """Counts the scores in tiles of rows and keys that a causal mask of N x N does not hide."""
    tiles = sum(-(-min(N, row + config.block_q) // config.block_k) for row in range(0, N, config.block_q))
    return tiles * config.block_q * config.block_k


@functools.cache
def total(form: str, device: str, dtype: str, dim: int, rows: int, keys: int, causal: bool = False) -> dict[str, int]:
    """Sums the counts of a head over the kernels of its call."""
    records = [asdict(record) for record in launches(form, device, dtype, dim, rows, keys, causal, HEADS)]
    added = {name: sum(record[name] for record in records) // HEADS for name, n in records[0].items() if type(n) is int}
    return added | {name: max(record[name] for record in records) for name in ("grf", "spill_bytes")}


def counts(form: str, device: str, dtype: str, dim: int) -> Row:
    """Counts a form: a causal call, and calls with two numbers of keys."""
    whole = total(form, device, dtype, dim, N, N, causal=True)
    short, long = (total(form, device, dtype, dim, LOOP_ROWS, keys) for keys in LOOP_KEYS)
    loop = {name: long[name] - short[name] for name in long}
    multiplied = loop["dpas"] or loop["float_alu"]
    array = N * dim * SIZE[dtype]
    visible = scores_in_visible_blocks(blocks_of(form, device, dtype, dim))

    def if_dpas(value: float) -> float | None:
        return value if whole["dpas"] else None

    return {
        "device": device, "dtype": dtype, "D": dim, "form": form,
        "dpas / needed": if_dpas(whole["dpas_macs"] / (N * (N + 1) // 2 * 2 * dim)),
        "dpas / in visible blocks": if_dpas(whole["dpas_macs"] / (visible * 2 * dim)),
        "dpas in all instructions": if_dpas(whole["dpas"] / whole["instructions"]),
        "inner loop: dpas in all instructions": multiplied / loop["instructions"],
        **{f"  {name} / dpas": loop[field] / multiplied for name, field in PER_DPAS.items()},
        "bytes read / (Q + K + V)": whole["global_read"] / (3 * array),
        "bytes written / O": whole["global_written"] / array,
        "lines read / (Q + K + V)": whole["lines_read"] * LINE_BYTES / (3 * array),
        "lines written / O": whole["lines_written"] * LINE_BYTES / array,
        "registers": whole["grf"], "spilled": whole["spill_bytes"],
    }  # fmt: skip


def column(name: str) -> str:
    """Returns the name of a column of the table of traffic."""
    return f"MB {name.replace('_', ' ')}"


def traffic(form: str, device: str, dtype: str, dim: int, n: int, units: dict[str, int]) -> Row:
    """Counts the bytes that a causal call with n rows and keys asks for, before any cache, and its distinct lines."""
    whole = total(form, device, dtype, dim, n, n, causal=True)
    sizes = {column(name): unit * whole[name] / 1e6 for name, unit in units.items()}
    return {"device": device, "dtype": dtype, "D": dim, "form": form, "N": n, **sizes}


def notes(device: str, dtype: str, dim: int) -> str:
    """Returns a sentence on how often K and V are read."""
    config = blocks_of("flash", device, dtype, dim)
    rows, group = config.block_q, config.rows_in_group
    tile = f"  {device}, {dtype}, D = {dim}: tiles of {rows} rows x {config.block_k} keys; K and V are read for every"
    if xe.DEVICES[device] == "dg2":
        return f"{tile} {group} rows, those of a group, into shared memory"
    return f"{tile} {rows} rows; a group's {group} rows find them in their Xe-core's cache"


def report(options: argparse.Namespace) -> Iterator[Table | str]:
    """Yields a table of counts, one of traffic, and sentences that explain the figures."""
    sim.enable(*options.device, check=f"none,caches={options.caches}" if options.caches else "none")
    units = BYTES | CACHED if options.caches else BYTES
    every = [(form, *case) for case in cases(options) for form in FORMS]
    yield Table(f"causal {N} x {N}", COUNTS, (counts(*form) for form in every), above=tuple(NAMES))
    formats = NAMES | {"N": ""} | {column(name): ".2f" for name in units}
    yield Table("global memory, causal", formats, (traffic(*form, n, units) for form in every for n in TRAFFIC_N))
    yield (
        "global: before any cache. flash reads Q and writes O once, but K and V again for every block of rows: it "
        "asks for N^2 / rows, of memory that grows with N (lines). standard does so, too, and S and P, the lines that "
        "it has beside these, grow with N^2."
    )
    yield from (notes(*case) for case in cases(options))
    yield Table("others' inner kernels, by their disassembly (quoted, not measured here)", PEER_FORMATS, PEERS)
