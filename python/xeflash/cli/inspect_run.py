"""Execution of a call's kernels on a simulated GPU: the part of `xeflash inspect` that runs something."""

from __future__ import annotations

import argparse
from typing import Any

from xeflash.bench.cases import Case

LINES = 12  # the instructions that wait longest, as many as are shown


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the option --executed."""
    parser.add_argument(
        "--executed",
        action="store_true",
        help="run the call on the simulated device, and show what its kernels executed: the instructions of the main "
        "loop that ran, and what a thread waits for there; prefer a small call, such as --heads 1 --seq 512",
    )


def _executed(record: Any, arch: str) -> dict[str, Any]:
    from xeflash.sim.waits import main_loop, mix, waits_of

    loop = main_loop(record.listing)
    top = max((count for _, count, kind, _ in loop if kind == "dpas"), default=loop[0][1])
    waits = waits_of(arch, loop)
    texts = {address: text for address, _, _, text in loop}
    return {
        "kernel": record.kernel.removeprefix("__sycl_kernel_"),
        "threads": record.threads,
        "instructions": record.instructions,
        "mix": dict(mix(record.listing)),
        "loop_instructions": len(loop),
        "loop_mix": {kind: count / top for kind, count in mix(loop).items()},
        "spilled": record.spill_bytes,
        "clocks": waits.clocks,
        "waits": dict(waits.waiting),
        "most_messages_in_flight": waits.in_flight,
        "longest": [
            {"address": address, "clocks": clocks, "instruction": texts[address]}
            for address, clocks in waits.at.most_common(LINES)
        ],
    }


def enable(device: str) -> None:
    """Simulates the device; call it before anything asks SYCL for devices."""
    from xeflash import sim

    sim.enable(device, check="none,listing")


def executed(case: Case, device: str) -> list[dict[str, Any]]:
    """Runs the call of a case, and returns what its launches did, in JSON's types."""
    import numpy as np

    from xeflash import sim
    from xeflash.bench.shares import call_of
    from xeflash.selftest.device import open_device
    from xeflash.selftest.values import Values
    from xeflash.tune import xe

    arrays, _ = open_device(f"sim:{device}")
    generator = np.random.default_rng(0)
    call = call_of(
        case, lambda shape, dtype: arrays.put(Values.of(generator.standard_normal(shape, np.float32), dtype))
    )
    sim.clear_launches()
    call()
    arrays.synchronize()
    return [_executed(record, xe.DEVICES[device]) for record in sim.last_launches()]


def print_executed(launch: dict[str, Any]) -> None:
    """Prints one launch: what it executed, and what a thread waits for."""
    from rich.console import Console
    from rich.table import Table

    from xeflash.sim.waits import CLASSES

    table = Table(title=launch["kernel"], title_justify="left", box=None)
    for name in ("", "executed", "main loop, of a pass"):
        table.add_column(name, justify="right" if name else "left")
    whole, loop = launch["instructions"], sum(launch["loop_mix"].values())
    table.add_row("instructions", str(whole), f"{loop:.1f}")
    for title, kind in CLASSES:
        all_count, loop_count = launch["mix"].get(kind, 0), launch["loop_mix"].get(kind, 0.0)
        table.add_row(title, f"{all_count} ({all_count / whole:.1%})", f"{loop_count:.1f} ({loop_count / loop:.1%})")
    console = Console(highlight=False)
    console.print(table)
    told = ", ".join(f"{name} {clocks}" for name, clocks in sorted(launch["waits"].items(), key=lambda item: -item[1]))
    console.print(
        f"a thread alone: {launch['clocks']} clocks for a pass, of which it waits for {told or 'nothing'}; at most "
        f"{launch['most_messages_in_flight']} messages in flight; spills {launch['spilled']} B; longest:"
    )
    for line in launch["longest"]:
        console.print(f"{line['clocks']:5} {line['address']:6x}  {line['instruction']}", soft_wrap=True, markup=False)
