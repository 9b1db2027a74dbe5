"""`xeflash inspect`: what the machine code of a kernel consists of."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from xeflash.sim import DEVICES

# Rows of the table: title, key in the mix of instructions.
_CLASSES = (
    ("dpas", "dpas"),
    ("math", "math"),
    ("moves", "moves"),
    ("float ALU", "float_alu"),
    ("integer ALU", "integer_alu"),
    ("control", "control"),
    ("sync, nop", "sync"),
    ("sends", "sends"),
)


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "inspect",
        help="show what the machine code of a kernel consists of",
        description="Count the instructions of the kernels in a native binary or a SPIR-V file, in all and in the main "
        "loop: mix, share of dpas, messages, registers, spills. SPIR-V is compiled with Intel's offline compiler.",
    )
    parser.add_argument("file", metavar="KERNEL", type=Path, help="a native binary (zebin) or SPIR-V")
    parser.add_argument("--device", choices=DEVICES, required=True)
    parser.add_argument(
        "--options",
        default="-vc-codegen -doubleGRF",
        help='flags for compiling SPIR-V; default: "%(default)s" (ESIMD, 256 registers); "" for SIMT kernels',
    )
    parser.add_argument("--json", action="store_true", help="one JSON list on stdout")
    parser.set_defaults(run=run)


def _share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.1f} %)" if whole else "0"


def print_kernel(kernel: dict[str, Any]) -> None:
    """Print one kernel as a table: a column for all of its code and one for the main loop."""
    from rich.console import Console
    from rich.table import Table

    mixes = [("whole kernel", kernel["all"])] + ([("main loop", kernel["loop"])] if "loop" in kernel else [])
    table = Table(title=kernel["name"], title_justify="left", box=None)
    table.add_column("")
    for title, _ in mixes:
        table.add_column(title, justify="right")
    table.add_row("instructions", *(str(mix["instructions"]) for _, mix in mixes))
    for title, key in _CLASSES:
        table.add_row(title, *(_share(mix[key], mix["instructions"]) for _, mix in mixes))
    for message in sorted({name for _, mix in mixes for name in mix["messages"]}):
        table.add_row(f"  {message}", *(str(mix["messages"].get(message, 0)) for _, mix in mixes))
    facts = (
        f"{kernel['grf']} registers ({kernel['registers_named']} named), SIMD {kernel['simd']}, "
        f"scratch {kernel['scratch']} B (spills {kernel['spill']} B), SLM {kernel['slm']} B, "
        f"{kernel['barriers']} barriers, {kernel['code_bytes']} B of code, {kernel['compacted']} instructions compacted"
    )
    console = Console(highlight=False)
    console.print(table)
    console.print(facts)
    if kernel["first_unknown"]:
        console.print(f"not understood: {kernel['first_unknown']}", style="red")


def run(arguments: argparse.Namespace) -> int:
    """Print the kernels of the file; 1 if it cannot be read."""
    from xeflash.sim.binary import SPIRV_MAGIC, CompileError, compile_spirv, inspect

    try:
        content = arguments.file.read_bytes()
        if content[:4] == SPIRV_MAGIC:
            content = compile_spirv(arguments.device, content, arguments.options)
        kernels = inspect(arguments.device, content)
    except (OSError, ValueError, CompileError) as error:
        print(f"xeflash inspect: {arguments.file}: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(kernels, indent=1))
        return 0
    for kernel in kernels:
        print_kernel(kernel)
    return 0
