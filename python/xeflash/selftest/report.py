"""Reports of a self-test: a table for people, one JSON object to send."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple, TextIO

from xeflash.bench.numbers import number, percent
from xeflash.selftest.limits import Limits, limits_of

Row = Mapping[str, Any]
NOT_BEGUN = "not begun"
_COLORS = {"ok": "green"}
_WIDTH = 140


class Told(NamedTuple):
    """The content of a report; `complete` is false while cases are left."""

    environment: Row
    device: Row
    software: Row
    rows: Sequence[Row]
    seconds: float
    complete: bool


_LEGEND = (
    "error: |result - reference in float64| of the number that is nearest to what is allowed: about twice the error of "
    "the same formula in fp32 with the type's roundings"
)
_LEGEND_OF_NEW = (
    "new: what a cache of 8 bits is given, rounded to its format, may be off by half a step; of many numbers one lies "
    "nearly midway between two steps, so its error is nearly all that is allowed"
)


def limits_of_device(device: Row) -> Limits | None:
    """Returns the limits of a device, or None for a simulated or unknown one."""
    if device.get("simulated"):
        return None
    return limits_of(str(device.get("name", "")), int(device.get("compute_units", 0)))


def _share(row: Row, limits: Limits | None) -> float | None:
    """Returns the percentage that a case reaches of its bound: memory if it has one query, else arithmetic."""
    if limits is None:
        return None
    rate, peak = row.get("tflops"), limits.tflops_32 if "fp32" in row["name"] else limits.tflops_16
    if row["name"].startswith(("decode", "merge", "cache", "linear")):
        rate, peak = row.get("gbytes_per_s"), limits.gbytes_per_s
    return None if rate is None else float(100 * rate / peak)


def to_data(told: Told) -> dict[str, Any]:
    """Returns all results as JSON has them."""
    limits = limits_of_device(told.device)
    return {
        "ok": all(row["status"] == "ok" for row in told.rows),
        "complete": told.complete,
        "environment": told.environment,
        "device": told.device,
        "software": told.software,
        "limits": asdict(limits) if limits else None,
        "seconds": round(told.seconds, 1),
        "cases": [{**row, "percent_of_limit": _share(row, limits)} for row in told.rows],
    }


def to_json(told: Told) -> str:
    """Returns all results in one JSON object."""
    return json.dumps(to_data(told), indent=1, default=str) + "\n"


def print_report(told: Told, file: TextIO | None = None) -> None:
    """Prints a line per case that has begun, the device, what is wrong, and the verdict."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=file, highlight=False, soft_wrap=True)
    console.width = max(console.width, _WIDTH)  # names are not cut, wherever this goes
    limits = limits_of_device(told.device)
    rows = [row for row in told.rows if row["status"] != NOT_BEGUN]
    table = Table(box=None, title_justify="left")
    timed = any(row.get("ms") is not None for row in rows)
    columns = ["case", "", "worst of", "error", "allowed"]
    columns += (["ms", "GB/s", "TFLOP/s"] if timed else []) + (["of peak"] if limits else [])
    for name in columns:
        table.add_column(name, justify="left" if name in columns[:3] else "right", no_wrap=True)
    for row in rows:
        cells = [Text(row["name"]), Text(row["status"], _COLORS.get(row["status"], "bold red"))]
        cells.append(Text(re.sub(r"^sequence \d+ ", "", row.get("what", "-"))))
        cells += [Text(f"{row[key]:.1e}" if key in row else "-") for key in ("error", "limit")]
        if timed:
            cells += [Text(number(row.get(key))) for key in ("ms", "gbytes_per_s", "tflops")]
        if limits:
            cells.append(Text(percent(_share(row, limits))))
        table.add_row(*cells)
    console.print(table)
    legend = [_LEGEND, *[_LEGEND_OF_NEW] * any(row.get("what", "").endswith(": new") for row in rows)]
    for line in (*legend, *_facts(told, limits)):
        console.print(line, markup=False)
    bad = [row for row in rows if row["status"] != "ok"]
    for row in bad:
        console.print(Text(f"{row['name']}: {row['status']}: {row['note']}", "red"))
    where = f"{told.device.get('name')} ({'gpu' if told.device.get('on_gpu') else 'cpu'})"
    verdict = f"{len(rows) - len(bad)} of {len(told.rows)} cases are right on {where}, {told.seconds:.0f} s"
    if len(rows) < len(told.rows):
        verdict += f"; {len(told.rows) - len(rows)} were not begun"
    console.print(Text(verdict, "green" if told.complete and not bad else "red"))


def _facts(told: Told, limits: Limits | None) -> list[str]:
    environment, device, software = told.environment, told.device, told.software

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
            f"its nominal peaks: {limits.tflops_16:g} TFLOP/s in 16 bits, {limits.tflops_32:g} in fp32, "
            f"{limits.gbytes_per_s:g} GB/s"
        )
    return lines
