"""The judgement of a report: what may not be believed, and the row of a table that says the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xeflash.bench.numbers import number, percent, ratio
from xeflash.report.cases import CASES, LAUNCH
from xeflash.selftest.limits import Limits

Row = Mapping[str, Any]
TEMPLATE = "A first run on a card"  # the name of .github/ISSUE_TEMPLATE/first_run.yml
HEAD = (
    "device", "driver", "xeflash", "selftest", "worst of torch's time / ours", "prefill TFLOP/s", "decode GB/s",
    "launch us", "tiles from", "valid",
)  # fmt: skip
ENDING = (
    "The file and this row show others what the device does: send them as an issue with the template",
    f'"{TEMPLATE}". Torch\'s time is that of its fastest form; in brackets the lowest and highest of a round.',
)
WIDTH = 140
_TITLE = "calls whose times on cards others have published, and at the end one that has next to nothing to do"
_RATES = ("tflops", "gbytes_per_s", "percent_of_peak")


def without_impossible(row: Row, limits: Limits | None) -> dict[str, Any]:
    """Returns a row without its rates, and why, if one is above the peak of the device, or else above the measured one.

    What is read from a cache may be faster than memory, and is not told as a rate of memory either.
    """
    if not row.get("ms") or row.get("gbytes_per_s") is None:
        return dict(row)
    why, by_cache = "", False
    if limits is None:
        if (row.get("percent_of_peak") or 0) > 100:
            unit = "GFLOP/s" if row["bound_by"] == "arithmetic" else "GB/s"
            why = f"{number(row['peak'])} {unit}, as measured"
    else:
        tflops = limits.tflops_32 if "fp32" in row["name"] else limits.tflops_16
        if (row.get("tflops") or 0) > tflops:
            why = f"{tflops:g} TFLOP/s"
        elif row["gbytes_per_s"] > limits.gbytes_per_s:
            by_cache = row["gbytes_per_s"] * row["ms"] <= limits.cache_mbytes
            why = f"{limits.gbytes_per_s:g} GB/s"
    if not why:
        return dict(row)
    note = f"above the peak of {why}: not shown" + (", as a cache holds all that is read" if by_cache else "")
    return {**row, **{name: None for name in _RATES if name in row}, "note": note, "valid": by_cache}


def doubts(report: Row) -> list[str]:
    """Returns why a report is not valid: what is wrong, died or was too fast to be true."""
    found = []
    for part in ("selftest", "card"):
        for row in report.get(part, {}).get("cases", ()):
            if row["status"] not in ("ok", "left out") or row.get("valid") is False:
                found.append(f"{part}: {row['name']}: {row['status']}: {row['note']}")
    tuning = report.get("tuning", {})
    return [*found, *([f"tuning: {tuning['failed']}"] if "failed" in tuning else [])]


def cells(report: Row) -> list[str]:
    """Returns the cells of the report's row, in the order of HEAD."""
    device, tests = report["device"], report["selftest"]["cases"]
    rows: dict[str, Row] = {row["name"]: row for row in report["card"]["cases"] if row["status"] == "ok"}
    launch = rows.get(LAUNCH.label, {})
    large = [(CASES[name], row) for name, row in rows.items() if row is not launch]
    compared = [row for _, row in large if row.get("ratio")]
    slowest: Row = min(compared, key=lambda row: row["ratio"], default={})
    prefill = [row["tflops"] for case, row in large if case.phase == "prefill" and row.get("tflops")]
    decode = {
        (case.kv_bytes, row["gbytes_per_s"]): row
        for case, row in large
        if case.phase == "decode" and row.get("gbytes_per_s")
    }
    fastest = decode[max(decode)] if decode else {}  # of the largest, which no cache holds
    share = fastest.get("percent_of_limit") or fastest.get("percent_of_peak")
    levels = sorted({row["tiles_from"] for row in rows.values() if row.get("tiles_from")})
    return [
        str(device.get("name")),
        str(device.get("driver") or "-"),
        str(report["environment"]["packages"]["xeflash"]),
        f"{sum(row['status'] == 'ok' for row in tests)}/{len(tests)}",
        _of_torch(slowest),
        number(max(prefill, default=None)),
        number(fastest.get("gbytes_per_s")) + (f" ({percent(share)} of peak)" if share else ""),
        number(1e3 * launch["ms"] if launch.get("ms") else None),
        " or ".join(levels) or "-",
        "yes" if report["valid"] else "no",
    ]


def markdown(cells: Iterable[str]) -> str:
    """Returns a row of a table."""
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def table_of_cases(rows: Sequence[Row], timed: bool) -> Any:
    """Returns the table of the calls for a terminal: their times, or what was checked."""
    from rich.table import Table

    table = Table(box=None, title_justify="left", title=_TITLE)
    columns = ["ms", "torch ms", "torch's time / ours", "TFLOP/s", "GB/s of KV", "of peak"]
    for name in ("case", "", *(columns if timed else ["error / allowed", "kernels"])):
        table.add_column(name, justify="right" if name in columns else "left", no_wrap=True)
    for row in rows:
        cells = [
            f"{row['error']:.1e} / {row['limit']:.1e}" if "error" in row else "-",
            ", ".join(row.get("kernels", ())),
        ]
        if timed:
            share = row.get("percent_of_limit") or row.get("percent_of_peak")
            cells = [number(row.get(x)) for x in ("ms", "torch_median_ms", "tflops", "gbytes_per_s")]
            cells = [*cells[:2], _of_torch(row), *cells[2:], percent(share)]
        table.add_row(row["name"], row["status"], *cells)
    return table


def _of_torch(row: Row) -> str:
    spread = f" ({number(row['ratio_low'])} to {number(row['ratio_high'])})" if row.get("ratio") else ""
    return ratio(row.get("ratio")) + spread
