"""Results as a GitHub-markdown table, CSV, JSON or JSON lines; all but the table can be read back.

CSV starts with `# ` lines (environment and method); the first line of JSON lines is the header.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence

from xeflash.bench.rows import Result, Row

Header = Mapping[str, object]


def _json_row(result: Result) -> dict[str, object]:
    row: dict[str, object] = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in dataclasses.asdict(result.row).items()
    }
    return {**row, "samples_ms": {k: list(v) for k, v in result.samples_ms.items()}}


def _result(data: Mapping[str, typing.Any]) -> Result:
    fields = dict(data)
    samples = fields.pop("samples_ms", {})
    return Result(Row(**fields), {name: tuple(values) for name, values in samples.items()})


def to_json(header: Header, results: Sequence[Result]) -> str:
    """Return one object: the header's entries and "rows"."""
    rows = [_json_row(result) for result in results]
    return json.dumps({**header, "rows": rows}, indent=1) + "\n"


def from_json(text: str) -> list[Result]:
    """Return the results in what `to_json` wrote."""
    return [_result(row) for row in json.loads(text)["rows"]]


def to_jsonl(header: Header, results: Sequence[Result]) -> str:
    """Return one line with the header, then one line per row."""
    return "".join(json.dumps(item) + "\n" for item in [dict(header), *map(_json_row, results)])


def from_jsonl(text: str) -> list[Result]:
    """Return the results in what `to_jsonl` wrote."""
    return [_result(json.loads(line)) for line in text.splitlines()[1:]]


def _plain(value: object) -> str:
    """Return a header value as words."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items())
    if isinstance(value, list):
        return " ".join(map(_plain, value))
    return "-" if value is None else str(value)


def _header_lines(header: Header) -> Iterable[str]:
    """Yield "name: value" lines: one per entry of the environment, per item of a list."""
    for name, value in header.items():
        if name == "environment" and isinstance(value, dict):
            yield from (f"{key}: {_plain(item)}" for key, item in value.items())
        elif value != {}:
            items = value if isinstance(value, list) else [value]
            yield from (f"{name}: {_plain(item)}" for item in items)


def _cell(value: object) -> object:
    """Return a value for CSV; a line break would end the row for simple readers."""
    return "" if value is None else value.replace("\n", " ") if isinstance(value, str) else value


def to_csv(header: Header, results: Sequence[Result]) -> str:
    """Return `# ` comment lines, the field names, and one line per row."""
    out = io.StringIO()
    for line in _header_lines(header):
        out.write(f"# {line}\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([field.name for field in dataclasses.fields(Row)])
    for result in results:
        values = dataclasses.asdict(result.row).values()
        writer.writerow([_cell(value) for value in values])
    return out.getvalue()


def from_csv(text: str) -> list[Result]:
    """Return the rows in what `to_csv` wrote; CSV holds no samples."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    kinds = typing.get_type_hints(Row)
    results = []
    for record in csv.DictReader(lines):
        values = {name: _parse(kinds[name], value) for name, value in record.items()}
        results.append(Result(Row(**typing.cast("dict[str, typing.Any]", values))))
    return results


def _parse(kind: object, text: str) -> object:
    """Return a CSV cell as the type of its field."""
    if isinstance(kind, types.UnionType):
        if text == "":
            return None
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    if kind is bool:
        return text == "True"
    return {int: int, float: float}.get(typing.cast("type", kind), str)(text)


def _number(value: float | None, digits: int = 3) -> str:
    """Return a number with that many significant digits, never in powers of ten; "-" for none."""
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def _times(median: float | None, minimum: float | None, iqr: float | None) -> str:
    if median is None:
        return "-"
    return f"{_number(median)} ({_number(minimum)}, {_number(iqr, 2)})"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _errors(row: Row) -> str:
    if row.max_error is None or row.allowed_error is None:
        return "-"
    return f"{row.max_error:.1e} / {row.allowed_error:.1e}"


def _percent(row: Row) -> str:
    return "-" if row.percent_of_peak is None else f"{row.percent_of_peak:.0f} %"


_COMMON: dict[str, Callable[[Row], str]] = {
    "dtype": lambda r: r.dtype,
    "B": lambda r: str(r.batch),
    "Hq/Hkv": lambda r: f"{r.heads}/{r.kv_heads}",
    "D": lambda r: str(r.head_dim),
}
_TIMES: dict[str, Callable[[Row], str]] = {
    "% of peak": _percent,
    "torch form": lambda r: r.torch_form or "-",
    "torch ms": lambda r: _times(r.torch_median_ms, r.torch_min_ms, r.torch_iqr_ms),
    "ratio": lambda r: _ratio(r.ratio),
    "per round": lambda r: _ratio(r.ratio_per_round),
    "plain torch": lambda r: _ratio(r.plain_ratio),
    "error / allowed": _errors,
}
_OURS: dict[str, Callable[[Row], str]] = {
    "xeflash ms": lambda r: _times(r.median_ms, r.min_ms, r.iqr_ms) if r.status == "ok" else f"{r.status}: {r.note}",
}
_COLUMNS: dict[str, dict[str, Callable[[Row], str]]] = {
    "prefill": {
        **_COMMON,
        "S": lambda r: str(r.seq_q),
        "causal": lambda r: "yes" if r.causal else "no",
        **_OURS,
        "GFLOP/s": lambda r: _number(r.gflops),
        **_TIMES,
    },
    "decode": {
        **_COMMON,
        "KV": lambda r: str(r.seq_k),
        **_OURS,
        "GB/s of KV": lambda r: _number(r.kv_gbytes_per_s),
        **_TIMES,
    },
}


def to_md(header: Header, results: Sequence[Result]) -> str:
    """Return the header as a list and one table per phase."""
    parts = ["".join(f"- {line}\n" for line in _header_lines(header))]
    for phase, columns in _COLUMNS.items():
        rows = [result.row for result in results if result.row.phase == phase]
        if not rows:
            continue
        lines = [list(columns), ["---"] * len(columns)]
        lines += [[cell(row).replace("|", "/").replace("\n", " ") for cell in columns.values()] for row in rows]
        table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        parts.append(f"### {phase}\n\n{table}")
    return "\n".join(parts)


WRITERS: dict[str, Callable[[Header, Sequence[Result]], str]] = {
    "md": to_md,
    "csv": to_csv,
    "json": to_json,
    "jsonl": to_jsonl,
}
READERS: dict[str, Callable[[str], list[Result]]] = {
    "csv": from_csv,
    "json": from_json,
    "jsonl": from_jsonl,
}
