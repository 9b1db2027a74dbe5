"""What the forward kernel's machine code does on a simulated GPU, counted: the figures to lower before a card is there.

    python perf/fwd_counts.py --device bmg                     # bf16; head dims 64, 128, 256
    python perf/fwd_counts.py --device dg2 --dtype fp16 --dim 128

One head. "Needed" is what a causal problem of N rows needs, N (N + 1) / 2 scores; the inner loop is the difference
between two numbers of keys, per multiply instruction or per 64 keys of a tile of rows. Needs ocloc and the simulator,
see xeflash.sim.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from simulated import DTYPES, forward
from xeflash import sim

N = 1024
LOOP_ROWS, LOOP_KEYS = 64, (1024, 2048)
PEERS = (
    "dpas in all instructions, of others: llm-scaler (fp16, head dim 128, BMG) 9.4 %, whole kernel.",
    "The ideal of 8 rows x 64 keys at head dim 128 (one dpas for every 3 other instructions) is near 25 %.",
)


@dataclass(frozen=True)
class Counts:
    """The figures of a kernel; those of the loop are per dpas."""

    executed_over_needed: float
    dpas_share: float
    loop_share: float
    loop: dict[str, float]
    read_over_minimum: float
    grf: int
    spill_bytes: int


LOOP_FIELDS = {"moves": "moves", "float ALU": "float_alu", "integer ALU": "integer_alu", "math": "math"}
LOOP_FIELDS |= {"sends": "sends", "control": "control", "sync": "sync"}


def count(dtype: str, dim: int) -> Counts:
    """Runs the kernel: causal, and with two numbers of keys."""
    record = forward(dtype, dim, N, N, causal=True)
    short, long = (forward(dtype, dim, LOOP_ROWS, keys) for keys in LOOP_KEYS)

    def loop(field: str) -> int:
        return int(getattr(long, field) - getattr(short, field))

    # Without dpas (fp32) the float ALU multiplies.
    unit = "dpas" if record.dpas else "float_alu"
    element = 4 if dtype == "fp32" else 2
    return Counts(
        executed_over_needed=record.dpas_macs / (N * (N + 1) // 2 * 2 * dim),
        dpas_share=record.dpas / record.instructions,
        loop_share=loop(unit) / loop("instructions"),
        loop={name: loop(field) / loop(unit) for name, field in LOOP_FIELDS.items()},
        read_over_minimum=record.global_read / (3 * N * dim * element),
        grf=record.grf,
        spill_bytes=record.spill_bytes,
    )


def lines_of(counts: Counts, unit: str) -> dict[str, str]:
    """What the table says of a kernel."""
    none = "-" if not counts.dpas_share else ""
    return {
        "dpas executed / needed": none or f"{counts.executed_over_needed:.2f}",
        "dpas in all instructions": none or f"{counts.dpas_share:.1%}",
        "bytes read / (Q + K + V)": f"{counts.read_over_minimum:.1f}",
        f"inner loop: {unit} in all instructions": f"{counts.loop_share:.1%}",
        **{f"  {name} / {unit}": f"{per_unit:.2f}" for name, per_unit in counts.loop.items() if name != unit},
        "registers": str(counts.grf),
        "bytes spilled": str(counts.spill_bytes),
    }


def main() -> None:
    """Counts and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, choices=sim.DEVICES)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--dim", type=int, action="append", help="head dims (default: 64, 128, 256)")
    options = parser.parse_args()
    sim.enable(options.device, check="none")

    unit = "float ALU" if options.dtype == "fp32" else "dpas"
    found, missing = {}, []
    for dim in options.dim or (64, 128, 256):
        try:
            found[f"D = {dim}"] = lines_of(count(options.dtype, dim), unit)
        except NotImplementedError as error:
            missing.append(f"D = {dim}: {error}")
    table = Table(title=f"{options.device}, {options.dtype}, causal {N} x {N}", title_justify="left")
    table.add_column("")
    for name in found:
        table.add_column(name, justify="right")
    for line in next(iter(found.values()), ()):
        table.add_row(line, *(lines[line] for lines in found.values()))
    console = Console()
    console.print(table)
    for line in (*missing, *PEERS):
        console.print(line, highlight=False)


if __name__ == "__main__":
    main()
