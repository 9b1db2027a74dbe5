"""`xeflash doctor`: what is installed, what is missing, and the command that mends it."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import Any, TextIO

from xeflash.cli.checks import Check, all_checks
from xeflash.cli.facts import Facts, gather
from xeflash.cli.verdict import verdict

_STYLES = {"ok": "green", "info": "dim", "warn": "yellow", "error": "bold red"}


def add_parser(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "doctor",
        help="check the installation",
        description="List devices, libraries and tools, with a command for each thing missing. "
        "Exits with 0 if attention runs on the device that calls would use (xpu if torch has it, else the GPU that "
        "SYCL sees, else the CPU) and nothing that was tried failed, else with 1.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.set_defaults(run=run)


def report_json(facts: Facts, checks: Sequence[Check]) -> str:
    """Returns the findings and their facts as JSON; of the environment only the variables that were judged."""
    data = dataclasses.asdict(facts)
    names = ("ONEAPI_", "OCL_", "XEFLASH_", "SYCL_", "LD_LIBRARY_PATH", "LD_PRELOAD", "SETVARS")
    data["environ"] = {k: v for k, v in facts.environ.items() if k.startswith(names)}
    findings = [dataclasses.asdict(check) for check in checks]
    end = verdict(facts)
    return json.dumps({"ok": end.ok, "verdict": end.text, "checks": findings, "facts": data}, indent=1)


def print_report(facts: Facts, checks: Sequence[Check], file: TextIO | None = None) -> None:
    """Prints one line per finding, coloured on a terminal, and the verdict."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file, highlight=False, soft_wrap=True)
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        line = Text.assemble((f"{check.status:<5}", _STYLES[check.status]), "  ")
        line.append(f"{check.name:<{width}}  {check.detail}")
        console.print(line)
        if check.fix:
            console.print(Text(f"{'':<{width + 9}}-> {check.fix}", style="cyan"))
    end = verdict(facts)
    console.print(Text(end.text, "green" if end.ok else "red"))


def run(arguments: argparse.Namespace) -> int:
    """Gathers the facts, prints the findings, and returns 0 if attention runs where it should."""
    facts = gather()
    checks = all_checks(facts)
    if arguments.json:
        print(report_json(facts, checks))
    else:
        print_report(facts, checks)
    return 0 if verdict(facts).ok else 1
