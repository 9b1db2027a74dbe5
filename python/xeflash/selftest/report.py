"""Reports of a self-test: a table for people, one JSON object to send."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TextIO

from xeflash.bench.numbers import number, percent
from xeflash.selftest.limits import Limits, limits_of

Row = Mapping[str, Any]
_COLORS = {"ok": "green"}
_WIDTH = 140


def limits_of_device(device: Row) -> Limits | None:
    """Returns the limits of a device, or None for a simulated or unknown one."""
    if device.get("simulated"):
        return None
    return limits_of(str(device.get("name", "")), int(device.get("compute_units", 0)))


def _share(row: Row, limits: Limits | None) -> float | None:
    """Returns the percentage that a case reaches of its bound: memory if it has one query, else arithmetic."""
    if limits is None or row.get("ms") is None:
        return None
    if row["name"].startswith(("decode", "merge", "cache", "linear")):
        return float(100 * row["gbytes_per_s"] / limits.gbytes_per_s)
    peak = limits.tflops_32 if "fp32" in row["name"] else limits.tflops_16
    return float(100 * row["tflops"] / peak)


def to_json(environment: Row, device: Row, software: Row, rows: Sequence[Row], seconds: float) -> str:
    """Returns all results in one JSON object."""
    limits = limits_of_device(device)
    data = {
        "ok": all(row["status"] == "ok" for row in rows),
        "environment": environment,
        "device": device,
        "software": software,
        "limits": asdict(limits) if limits else None,
        "seconds": round(seconds, 1),
        "cases": [{**row, "percent_of_limit": _share(row, limits)} for row in rows],
    }
    return json.dumps(data, indent=1, default=str) + "\n"


def print_report(
    environment: Row, device: Row, software: Row, rows: Sequence[Row], seconds: float, file: TextIO | None = None
) -> None:
    """Prints the device, a line per case, what is wrong, and the verdict."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=file, highlight=False, soft_wrap=True)
    console.width = max(console.width, _WIDTH)  # names are not cut, wherever this goes
    limits = limits_of_device(device)
    table = Table(box=None, title_justify="left")
    timed = any(row.get("ms") is not None for row in rows)
    columns = ["case", "", "error", "limit"]
    columns += (["ms", "GB/s", "TFLOP/s"] if timed else []) + (["of limit"] if limits else [])
    for name in columns:
        table.add_column(name, justify="left" if name in ("case", "") else "right", no_wrap=True)
    for row in rows:
        cells = [Text(row["name"]), Text(row["status"], _COLORS.get(row["status"], "bold red"))]
        cells += [Text(f"{row[key]:.1e}" if key in row else "-") for key in ("error", "limit")]
        if timed:
            cells += [Text(number(row.get(key))) for key in ("ms", "gbytes_per_s", "tflops")]
        if limits:
            cells.append(Text(percent(_share(row, limits))))
        table.add_row(*cells)
    console.print(table)
    for line in _facts(environment, device, software, limits):
        console.print(line, markup=False)
    bad = [row for row in rows if row["status"] != "ok"]
    for row in bad:
        console.print(Text(f"{row['name']}: {row['status']}: {row['note']}", "red"))
    verdict = f"{len(rows) - len(bad)} of {len(rows)} cases are right, {seconds:.0f} s"
    console.print(Text(verdict, "red" if bad else "green"))


def _facts(environment: Row, device: Row, software: Row, limits: Limits | None) -> list[str]:
    def known(value: object) -> str:
        return "not known" if value in (None, "", []) else str(value)

    ip_version = device.get("ip_version")
    lines = [
        f"device: {known(device.get('name'))} ({known(device.get('arch'))}, {known(device.get('compute_units'))} "
        f"compute units, IP version {known(ip_version)}), driver {known(device.get('driver'))}, "
        f"IGC {known(software.get('igc'))}",
        f"arrays: {device['arrays']}; torch {known(software.get('torch'))}; libsycl {known(software.get('libsycl'))}, "
        f"intel-sycl-rt {known(software.get('intel-sycl-rt'))}; {environment['cpu']}, {environment['platform']}",
    ]
    if device.get("simulated"):
        lines.append("simulated: results are those of the machine code, times mean nothing and are left out")
    elif limits:
        lines.append(
            f"its nominal limits: {limits.tflops_16:g} TFLOP/s in 16 bits, {limits.tflops_32:g} in fp32, "
            f"{limits.gbytes_per_s:g} GB/s"
        )
    return lines
