"""How fast the simulator executes a flash-attention inner loop, on one processor, and on what it spends the time.

    python perf/xesim_speed.py                          # bf16, head dim 128, BMG
    python perf/xesim_speed.py --device pvc --dim 64 --repeat 5

Speed is that of whole launches without per-instruction timing; shares of time are measured in a launch of their own,
whose clock reads are part of every instruction's time. Needs ocloc and the simulator, see xeflash.sim.
"""

from __future__ import annotations

import argparse
import os

from rich.console import Console
from rich.table import Table
from simulated import DTYPES, forward
from xeflash import sim

AIM = 5e6  # instructions a second
ROWS, KEYS = 64, 4096
# In the order of LaunchRecord.simulation_class_share.
CLASSES = ("dpas", "math", "moves", "float_alu", "integer_alu", "control", "sync", "sends")


def measure(checks: str, dtype: str, dim: int, repeat: int) -> tuple[sim.LaunchRecord, sim.LaunchRecord]:
    """The fastest launch, and one with the time of each class of instructions."""
    sim.set_check(checks)
    os.environ["XEFLASH_SIM_PROFILE"] = "0"
    fastest = forward(dtype, dim, ROWS, KEYS, repeat=repeat)
    os.environ["XEFLASH_SIM_PROFILE"] = "1"
    return fastest, forward(dtype, dim, ROWS, KEYS)


def speed(record: sim.LaunchRecord) -> float:
    """Instructions a second."""
    return record.instructions / record.simulation_seconds


def table_of(results: dict[str, tuple[sim.LaunchRecord, sim.LaunchRecord]]) -> Table:
    """Classes of instructions: how many, and their time per choice of checks."""
    table = Table()
    table.add_column("class")
    table.add_column("of instructions", justify="right")
    for checks in results:
        table.add_column(f"time, checks {checks}", justify="right")
        table.add_column("ns each", justify="right")
    for number, name in enumerate(CLASSES):
        cells = []
        for fastest, profiled in results.values():
            count, share = getattr(fastest, name), profiled.simulation_class_share[number]
            each = share * fastest.simulation_seconds / count * 1e9 if count else 0.0
            cells += [f"{share:.1%}", f"{each:.0f}"]
        some = next(iter(results.values()))[0]
        table.add_row(name.replace("_", " "), f"{getattr(some, name) / some.instructions:.1%}", *cells)
    return table


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=sim.DEVICES, default="bmg")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=15, help="launches, of which the fastest counts (default: 15)")
    options = parser.parse_args()
    os.environ["XEFLASH_SIM_THREADS"] = "1"
    sim.enable(options.device)

    results = {name: measure(name, options.dtype, options.dim, options.repeat) for name in ("none", "all")}
    console = Console(highlight=False)
    console.print(
        f"{options.device}, {options.dtype}, head dim {options.dim}, {ROWS} rows x {KEYS} keys, one host thread"
    )
    console.print(table_of(results))
    for checks, (fastest, profiled) in results.items():
        shares = dict(zip(CLASSES, profiled.simulation_class_share, strict=True))
        limit = max(shares, key=shares.__getitem__)
        verdict = "reached" if speed(fastest) >= AIM else "MISSED"
        console.print(
            f"checks {checks}: {speed(fastest) / 1e6:.1f} million instructions/s ({fastest.instructions} in "
            f"{fastest.simulation_seconds:.3f} s); the limit is {limit.replace('_', ' ')}, {shares[limit]:.0%} of the "
            f"time; the aim of {AIM / 1e6:.0f} million is {verdict}"
        )


if __name__ == "__main__":
    main()
