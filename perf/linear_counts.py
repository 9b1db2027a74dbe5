"""What the machine code of xeflash.linear does on a simulated GPU, counted.

    python perf/linear_counts.py --device bmg
    python perf/linear_counts.py --device dg2 --rows 1 --rows 64

The loop is the difference between two numbers of inputs. Bytes are those of weights and scales, which have to be read
once; `lines` are the cache lines that were read of all arrays, over those bytes. "of the issue rate" is the share of
the instructions that a device issues while memory brings those bytes: 0.94 per byte on a B580, 1.8 on a PVC stack, 2.2
on an A770. Needs ocloc and the simulator, see xeflash.sim.
"""

from __future__ import annotations

import argparse

import dpctl
import xeflash
from rich.console import Console
from rich.table import Table
from simulated import DeviceArray
from xeflash import sim

OUTPUTS, INPUTS = 256, (4096, 8192)
ISSUED_PER_BYTE = {"bmg": 0.94, "pvc": 1.8, "dg2": 2.2}
WEIGHTS = (("fp32", "fp32", 0), ("bf16", "bf16", 0), ("bf16", "int8", 0), ("bf16", "uint8", 32), ("fp16", "uint8", 128))


def record_of(dtype: str, weight: str, group: int, rows: int, inputs: int) -> tuple[sim.LaunchRecord, int]:
    """Of one call, and the bytes of its weights and scales."""
    queue = dpctl.SyclQueue("level_zero:gpu", property="in_order")
    columns = inputs // 2 if weight == "uint8" else inputs
    w, arguments = DeviceArray(queue, (OUTPUTS, columns), weight), {}
    bytes_read = w._memory.nbytes
    if weight != dtype:
        arguments["scales"] = DeviceArray(queue, (inputs // group if group else 1, OUTPUTS), dtype)
        arguments["group"] = group or None
        bytes_read += arguments["scales"]._memory.nbytes
    x = DeviceArray(queue, (rows, inputs), dtype)
    sim.clear_launches()
    xeflash.linear(x, w, **arguments)
    queue.wait()
    (record,) = sim.last_launches()
    return record, bytes_read


def main() -> None:
    """Counts and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", required=True, choices=sim.DEVICES)
    parser.add_argument("--rows", type=int, action="append", help="rows of x (default: 1, 8, 64)")
    options = parser.parse_args()
    sim.enable(options.device)
    columns = ("x", "weights", "group", "rows", "instructions / byte", "of the issue rate", "dpas", "moves", "sends")
    table = Table(*columns, "bytes / send", "lines", "spilled", title=options.device, title_justify="left")
    for dtype, weight, group in WEIGHTS:
        for rows in options.rows or (1, 8, 64):
            (short, few), (long, many) = (record_of(dtype, weight, group, rows, inputs) for inputs in INPUTS)

            def per(field: str, short: sim.LaunchRecord = short, long: sim.LaunchRecord = long) -> int:
                return int(getattr(long, field) - getattr(short, field))

            instructions, size = per("instructions"), many - few
            share = instructions / size / ISSUED_PER_BYTE[options.device]
            table.add_row(
                dtype, weight, str(group or "all"), str(rows), f"{instructions / size:.3f}", f"{share:.0%}",
                *(f"{per(field) / instructions:.0%}" for field in ("dpas", "moves", "sends")),
                f"{per('global_read') / per('sends'):.0f}", f"{per('lines_read') * 64 / size:.3f}",
                str(long.spill_bytes),
            )  # fmt: skip
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
