"""Speed of the simulator in a flash-attention inner loop, on one processor, and the parts of its time.

Speed is that of whole launches without per-instruction timing; shares of time are measured in a launch of their own,
whose clock reads are part of every instruction's time.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator

from xeflash import sim
from xeflash.bench.cases import parse_size
from xeflash.cli.arguments import converter

from counting.options import add_attention, add_devices, cases
from counting.simulated import launches
from counting.tables import Row, Table

AIM = 5e6  # instructions a second
ROWS, KEYS = 64, 4096
CHECKS = ("none", "all")
# In the order of LaunchRecord.simulation_class_share.
CLASSES = ("dpas", "math", "moves", "float_alu", "integer_alu", "control", "sync", "sends")
FORMATS = {"checks": "", "class": "", "of instructions": ".1%", "of the time": ".1%", "ns each": ".0f"}
Launches = tuple[sim.LaunchRecord, sim.LaunchRecord]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this family."""
    add_devices(parser, default=("bmg",))
    add_attention(parser, head_dims=(128,))
    parser.add_argument("--repeat", type=converter(parse_size), default=15, help="default: 15; the fastest counts")


def measure(checks: str, device: str, dtype: str, dim: int, repeat: int) -> Launches:
    """Returns the fastest launch, and one with the time of each class of instructions."""

    def launch(profile: str) -> sim.LaunchRecord:
        os.environ["XEFLASH_SIM_PROFILE"] = profile
        (record,) = launches("flash", device, dtype, dim, ROWS, KEYS)
        return record

    sim.set_check(checks)
    fastest = min((launch("0") for _ in range(repeat)), key=lambda record: record.simulation_seconds)
    return fastest, launch("1")


def rows_of(checks: str, fastest: sim.LaunchRecord, profiled: sim.LaunchRecord) -> Iterator[Row]:
    """Yields for each class of instructions their number and their time."""
    for name, share in zip(CLASSES, profiled.simulation_class_share, strict=True):
        count = getattr(fastest, name)
        each = share * fastest.simulation_seconds / count * 1e9 if count else 0.0
        found = (checks, name.replace("_", " "), count / fastest.instructions, share, each)
        yield dict(zip(FORMATS, found, strict=True))


def verdict(checks: str, fastest: sim.LaunchRecord, profiled: sim.LaunchRecord) -> str:
    """Returns a sentence on instructions a second, and on the class that takes most of the time."""
    speed = fastest.instructions / fastest.simulation_seconds
    share, limit = max(zip(profiled.simulation_class_share, CLASSES, strict=True))
    return (
        f"checks {checks}: {speed / 1e6:.1f} million instructions/s ({fastest.instructions} in "
        f"{fastest.simulation_seconds:.3f} s); the limit is {limit.replace('_', ' ')}, {share:.0%} of the time; "
        f"the aim of {AIM / 1e6:.0f} million is {'reached' if speed >= AIM else 'MISSED'}"
    )


def report(options: argparse.Namespace) -> Iterator[Table | str]:
    """Yields a table for each case, and the speeds."""
    os.environ["XEFLASH_SIM_THREADS"] = "1"
    sim.enable(*options.device)
    for device, dtype, dim in cases(options):
        found = {checks: measure(checks, device, dtype, dim, options.repeat) for checks in CHECKS}
        title = f"{device}, {dtype}, head dim {dim}, {ROWS} rows x {KEYS} keys, one host thread"
        yield Table(title, FORMATS, [row for checks, both in found.items() for row in rows_of(checks, *both)])
        yield from (verdict(checks, *both) for checks, both in found.items())
