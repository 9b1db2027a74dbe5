"""What the forward's machine code does on a simulated GPU, counted, beside standard attention (S and P in memory).

    python perf/fwd_counts.py --device bmg                     # bf16; head dims 64, 128, 256
    python perf/fwd_counts.py --device dg2 --dtype fp16 --dim 128 --format json

Per head, causal. "Needed" is N (N + 1) / 2 scores, "in visible blocks" those of the tiles that some row needs. The
inner loop is the difference between two numbers of keys, per multiply instruction. "flash" is xeflash.attention,
"standard" its tiles and loads in three kernels that keep S and P in memory (kernels/standard_attention.hpp), counted
together.
Needs ocloc and the simulator, see xeflash.sim.
"""

from __future__ import annotations

import argparse
import functools
import json
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table
from simulated import DTYPES, launches
from xeflash import sim
from xeflash.tune import Config, pick
from xeflash.tune.desc import DTYPE_NAMES, Desc

N = 1024
TRAFFIC_N = (512, 1024)
HEADS = 9  # enough for every device: the threads of a group take neighbouring rows, and not turns at the keys of a tile
LOOP_ROWS, LOOP_KEYS = 64, (256, 448)  # likewise: few keys
LINE_BYTES = 64
FORMS = {"flash": "flash_fwd", "standard": "standard_attention"}
LOOP_FIELDS = {"moves": "moves", "float ALU": "float_alu", "integer ALU": "integer_alu", "math": "math"}
LOOP_FIELDS |= {"sends": "sends", "control": "control", "sync": "sync"}


@dataclass(frozen=True)
class Peer:
    """Counts of an inner kernel that others wrote, by disassembling it; never run here."""

    name: str
    instructions: int
    dpas: int
    moves: int


PEERS = (
    Peer("Intel llm-scaler, ESIMD, fp16, head dim 128, BMG", 2713, 256, 912),
    Peer("a naive ESIMD forward, head dim 128", 1538, 64, 834),
)


@dataclass(frozen=True)
class Counts:
    """The figures of a form; those of the loop are per dpas. Without dpas (fp32) the float ALU multiplies."""

    dpas_over_needed: float
    dpas_over_visible_blocks: float
    dpas_share: float
    loop_share: float
    loop: dict[str, float]
    read_over_minimum: float  # of Q, K and V
    written_over_minimum: float  # of O
    lines_read_over_minimum: float  # the distinct cache lines of each kernel
    lines_written_over_minimum: float
    grf: int
    spill_bytes: int


@dataclass(frozen=True)
class Traffic:
    """Bytes of global memory that a causal call asks for, and those of the distinct cache lines among them."""

    read: int
    written: int
    lines_read: int
    lines_written: int


AllCounts = dict[int, dict[str, Counts]]  # by head dim and form
AllTraffic = dict[int, dict[str, dict[int, Traffic]]]  # and by N


def blocks_of(form: str, device: str, dtype: str, dim: int) -> Config:
    """The tiles of a form."""
    access = "dwords" if device == "dg2" else "block2d"
    return pick(Desc(FORMS[form], device, DTYPE_NAMES[dtype], dim, dim, 128, access=access))


def scores_in_visible_blocks(config: Config) -> int:
    """Of the tiles of rows and keys that a causal mask of N x N does not hide."""
    tiles = sum(-(-min(N, row + config.block_q) // config.block_k) for row in range(0, N, config.block_q))
    return tiles * config.block_q * config.block_k


@functools.cache
def total(form: str, dtype: str, dim: int, rows: int, keys: int, causal: bool = False) -> dict[str, int]:
    """The counts of a head, the kernels of its call added up."""
    records = [asdict(record) for record in launches(form, dtype, dim, rows, keys, causal, HEADS)]
    added = {name: sum(record[name] for record in records) // HEADS for name, n in records[0].items() if type(n) is int}
    return added | {name: max(record[name] for record in records) for name in ("grf", "spill_bytes")}


def count(form: str, device: str, dtype: str, dim: int) -> Counts:
    """Runs a form: causal, and with two numbers of keys."""
    whole = total(form, dtype, dim, N, N, causal=True)
    short, long = (total(form, dtype, dim, LOOP_ROWS, keys) for keys in LOOP_KEYS)
    loop = {name: long[name] - short[name] for name in long}
    unit = "dpas" if whole["dpas"] else "float_alu"
    array = N * dim * (4 if dtype == "fp32" else 2)
    visible = scores_in_visible_blocks(blocks_of(form, device, dtype, dim))
    return Counts(
        dpas_over_needed=whole["dpas_macs"] / (N * (N + 1) // 2 * 2 * dim),
        dpas_over_visible_blocks=whole["dpas_macs"] / (visible * 2 * dim),
        dpas_share=whole["dpas"] / whole["instructions"],
        loop_share=loop[unit] / loop["instructions"],
        loop={name: loop[field] / loop[unit] for name, field in LOOP_FIELDS.items()},
        read_over_minimum=whole["global_read"] / (3 * array),
        written_over_minimum=whole["global_written"] / array,
        lines_read_over_minimum=whole["lines_read"] * LINE_BYTES / (3 * array),
        lines_written_over_minimum=whole["lines_written"] * LINE_BYTES / array,
        grf=whole["grf"],
        spill_bytes=whole["spill_bytes"],
    )


def traffic(form: str, dtype: str, dim: int, n: int) -> Traffic:
    """Of a causal call with n rows and keys."""
    whole = total(form, dtype, dim, n, n, causal=True)
    lines = (LINE_BYTES * whole[name] for name in ("lines_read", "lines_written"))
    return Traffic(whole["global_read"], whole["global_written"], *lines)


def lines_of(counts: Counts, unit: str) -> dict[str, str]:
    """What the table says of a form."""
    none = "-" if not counts.dpas_share else ""
    return {
        "dpas executed / needed": none or f"{counts.dpas_over_needed:.2f}",
        "dpas executed / in visible blocks": none or f"{counts.dpas_over_visible_blocks:.2f}",
        "dpas in all instructions": none or f"{counts.dpas_share:.1%}",
        f"inner loop: {unit} in all instructions": f"{counts.loop_share:.1%}",
        **{f"  {name} / {unit}": f"{per_unit:.2f}" for name, per_unit in counts.loop.items() if name != unit},
        "bytes read / (Q + K + V)": f"{counts.read_over_minimum:.1f}",
        "bytes written / O": f"{counts.written_over_minimum:.1f}",
        "distinct lines read / (Q + K + V)": f"{counts.lines_read_over_minimum:.1f}",
        "distinct lines written / O": f"{counts.lines_written_over_minimum:.1f}",
        "registers": str(counts.grf),
        "bytes spilled": str(counts.spill_bytes),
    }


def counts_table(title: str, counts: AllCounts, unit: str) -> Table:
    """A column per head dim and form."""
    columns = {f"D = {dim}\n{form}": lines_of(c, unit) for dim, forms in counts.items() for form, c in forms.items()}
    table = Table("", title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="right")
    for line in next(iter(columns.values())):
        table.add_row(line, *(lines[line] for lines in columns.values()))
    return table


def traffic_table(found: AllTraffic) -> Table:
    """A row per head dim, form and what is counted, a column per N."""
    table = Table("MB of global memory, causal", "", title_justify="left")
    for n in TRAFFIC_N:
        table.add_column(f"N = {n}", justify="right")
    for dim, forms in found.items():
        for form, sizes in forms.items():
            every = [sizes[n] for n in TRAFFIC_N]
            table.add_row(f"D = {dim} {form}", "asked for", *(f"{(t.read + t.written) / 1e6:.2f}" for t in every))
            table.add_row("", "distinct lines", *(f"{(t.lines_read + t.lines_written) / 1e6:.2f}" for t in every))
    return table


def notes(device: str, dtype: str, dims: list[int]) -> list[str]:
    """What the figures are to be read with."""
    found = [
        "asked for: before any cache. flash reads Q and writes O once, but K and V again for every block of rows: it",
        "asks for N^2 / rows, of memory that grows with N (distinct lines). standard does so, too, and S and P, the",
        "distinct lines that it has beside these, grow with N^2.",
    ]
    for dim in dims:
        config = blocks_of("flash", device, dtype, dim)
        rows, group = config.block_q, config.rows_in_group
        tile = f"  D = {dim}: tiles of {rows} rows x {config.block_k} keys; K and V are read for every"
        if device == "dg2":
            found.append(f"{tile} {group} rows, those of a group, into shared memory")
        else:
            found.append(f"{tile} {rows} rows; a group's {group} rows find them in their Xe-core's cache")
    found.append("others' inner kernels, by their disassembly (quoted, not measured here):")
    found += [f"  {p.name}: dpas {p.dpas / p.instructions:.1%}, {p.moves / p.dpas:.1f} moves / dpas" for p in PEERS]
    return [*found, "  the ideal of 8 rows x 64 keys at head dim 128 (3 other instructions for a dpas): near 25 %"]


def as_dict(device: str, dtype: str, counts: AllCounts, sizes: AllTraffic) -> dict[str, object]:
    """All figures, for other programs."""
    found = {
        str(dim): {
            form: asdict(figures) | {"traffic": {str(n): asdict(t) for n, t in sizes[dim][form].items()}}
            for form, figures in forms.items()
        }
        for dim, forms in counts.items()
    }
    return {"device": device, "dtype": dtype, "n": N, "head_dims": found, "peers": [asdict(peer) for peer in PEERS]}


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

    counts = {dim: {form: count(form, device, dtype, dim) for form in FORMS} for dim in dims}
    bytes_of = {dim: {form: {n: traffic(form, dtype, dim, n) for n in TRAFFIC_N} for form in FORMS} for dim in dims}
    if options.format == "json":
        print(json.dumps(as_dict(device, dtype, counts, bytes_of), indent=1))
        return
    console = Console()
    unit = "float ALU" if dtype == "fp32" else "dpas"
    console.print(counts_table(f"{device}, {dtype}, causal {N} x {N}", counts, unit))
    console.print(traffic_table(bytes_of))
    for line in notes(device, dtype, dims):
        console.print(line, highlight=False)


if __name__ == "__main__":
    main()
