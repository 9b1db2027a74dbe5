"""`xeflash inspect`: counts of a kernel's machine code, and the shares of a call over a device."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from xeflash.cli import inspect_call, inspect_run
from xeflash.runtime.cache_folder import cache_folder
from xeflash.sim import DEVICES
from xeflash.sim.waits import CLASSES

_OPTIONS = "-vc-codegen -doubleGRF"


def add_parser(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "inspect",
        help="show what the machine code of a kernel consists of, and how a call is shared out over a device",
        description="Count the instructions of the kernels in a native binary or a SPIR-V file, in all and in the main "
        "loop: mix, share of dpas, messages, registers, spills. SPIR-V is compiled with Intel's offline compiler. With "
        "--call, say how a call is shared out over a device, which need not be there: launches, threads, splits; with "
        "--executed, too, run it on the simulator, and show what it executed and what a thread waits for.",
    )
    parser.add_argument(
        "file",
        metavar="KERNEL",
        type=Path,
        nargs="?",
        help="a native binary (zebin) or SPIR-V: kernel.bin in a "
        "folder of the cache (XEFLASH_CACHE_DIR), whose name says what the kernel computes",
    )
    parser.add_argument(
        "--device", choices=(*inspect_call.HERE, *DEVICES), required=True, help="cpu, xpu: this machine's, of a call"
    )
    parser.add_argument(
        "--options",
        help=f'flags for compiling SPIR-V; default: "{_OPTIONS}" (ESIMD, 256 registers); "" for SIMT kernels',
    )
    parser.add_argument("--json", action="store_true", help="JSON on stdout: a list of kernels, or with --call both")
    inspect_call.add_options(parser)
    inspect_run.add_options(parser)
    parser.set_defaults(run=run)


def _share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.1f} %)" if whole else "0"


def print_kernel(kernel: dict[str, Any]) -> None:
    """Prints one kernel as a table: a column for all of its code and one for the main loop."""
    from rich.console import Console
    from rich.table import Table

    mixes = [("whole kernel", kernel["all"])] + ([("main loop", kernel["loop"])] if "loop" in kernel else [])
    table = Table(title=kernel["name"], title_justify="left", box=None)
    table.add_column("")
    for title, _ in mixes:
        table.add_column(title, justify="right")
    table.add_row("instructions", *(str(mix["instructions"]) for _, mix in mixes))
    for title, key in CLASSES:
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


def _refuse_unused(arguments: argparse.Namespace) -> None:
    """Raises an error if there is nothing to inspect, or if nothing reads a given option."""
    if arguments.file is None and arguments.call is None:
        kept = cache_folder() / f"{arguments.device}-*" / "kernel.bin"
        raise ValueError(f"name a KERNEL, which is one of {kept}, or a call by --call")
    if arguments.file is None and arguments.options is not None:
        raise ValueError(f"--options must be left out without a KERNEL, got {arguments.options!r}")
    if arguments.file is not None and arguments.device in inspect_call.HERE:
        raise ValueError(f"--device must be one of {', '.join(DEVICES)} for a KERNEL, got {arguments.device}")
    if arguments.executed and (arguments.call is None or arguments.device in inspect_call.HERE or arguments.units):
        raise ValueError("--executed must go with --call and a simulated --device, and without --units")
    inspect_call.refuse_unused(arguments)


def run(arguments: argparse.Namespace) -> int:
    """Prints the call and the kernels of the file; returns 1 if the file cannot be read, 2 if there is no such call."""
    from xeflash.sim.binary import SPIRV_MAGIC, CompileError, compile_spirv, inspect

    try:
        _refuse_unused(arguments)
        if arguments.executed:
            inspect_run.enable(arguments.device)
        call = inspect_call.described(arguments) if arguments.call else None
        if call and arguments.executed:
            call["executed"] = inspect_run.executed(inspect_call.case_of(arguments), arguments.device)
    except (ValueError, RuntimeError) as error:  # NotImplementedError, too
        print(f"xeflash inspect: {error}", file=sys.stderr)
        return 2
    except ImportError as error:
        print(f"xeflash inspect: {error}; see: xeflash doctor", file=sys.stderr)
        return 2
    kernels: list[dict[str, Any]] = []
    try:
        if arguments.file is not None:
            content = arguments.file.read_bytes()
            if content[:4] == SPIRV_MAGIC:
                options = _OPTIONS if arguments.options is None else arguments.options
                content = compile_spirv(arguments.device, content, options)
            kernels = inspect(arguments.device, content)
    except (OSError, ValueError, CompileError) as error:
        print(f"xeflash inspect: {arguments.file}: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps({"call": call, "kernels": kernels} if call else kernels, indent=1))
        return 0
    if call:
        inspect_call.print_call(call)
        for launch in call.get("executed", ()):
            inspect_run.print_executed(launch)
    for kernel in kernels:
        print_kernel(kernel)
    return 0
