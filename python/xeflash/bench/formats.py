"""Results as a GitHub-markdown table, CSV, JSON or JSON lines; all but the table can be read back.

CSV starts with `# ` lines (environment and method); the first line of JSON lines is the header. A `Layout` says what
rows there are.
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

from xeflash.bench.rows import Result
from xeflash.bench.tables import Layout

Header = Mapping[str, object]


def device_of(header: Header) -> str:
    """Returns the name of what ran."""
    environment = typing.cast("Mapping[str, object]", header.get("environment", {}))
    device = str(environment.get("device", "cpu"))
    return f"{environment.get('cpu', device)}, {environment.get('cpus', '?')} CPUs" if device == "cpu" else device


def _json_row(result: Result) -> dict[str, object]:
    row: dict[str, object] = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in dataclasses.asdict(result.row).items()
    }
    return {**row, "samples_ms": {k: list(v) for k, v in result.samples_ms.items()}}


def _result(data: Mapping[str, typing.Any], layout: Layout) -> Result:
    fields = dict(data)
    samples = fields.pop("samples_ms", {})
    return Result(layout.row(**fields), {name: tuple(values) for name, values in samples.items()})


def to_json(header: Header, results: Sequence[Result], layout: Layout) -> str:  # noqa: ARG001
    """Returns one object: the header's entries and "rows"."""
    rows = [_json_row(result) for result in results]
    return json.dumps({**header, "rows": rows}, indent=1) + "\n"


def from_json(text: str, layout: Layout) -> list[Result]:
    """Returns the results in what `to_json` wrote."""
    return [_result(row, layout) for row in json.loads(text)["rows"]]


def to_jsonl(header: Header, results: Sequence[Result], layout: Layout) -> str:  # noqa: ARG001
    """Returns one line with the header, then one line per row."""
    return "".join(json.dumps(item) + "\n" for item in [dict(header), *map(_json_row, results)])


def from_jsonl(text: str, layout: Layout) -> list[Result]:
    """Returns the results in what `to_jsonl` wrote."""
    return [_result(json.loads(line), layout) for line in text.splitlines()[1:]]


def _plain(value: object) -> str:
    """Returns a header value as words."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items())
    if isinstance(value, list):
        return " ".join(map(_plain, value))
    return "-" if value is None else str(value)


def header_lines(header: Header) -> Iterable[str]:
    """Yields "name: value" lines: one per entry of the environment, per item of a list."""
    for name, value in header.items():
        if name == "environment" and isinstance(value, dict):
            yield from (f"{key}: {_plain(item)}" for key, item in value.items())
        elif value != {}:
            items = value if isinstance(value, list) else [value]
            yield from (f"{name}: {_plain(item)}" for item in items)


def _cell(value: object) -> object:
    """Returns a value for CSV; a line break would end the row for simple readers."""
    return "" if value is None else value.replace("\n", " ") if isinstance(value, str) else value


def to_csv(header: Header, results: Sequence[Result], layout: Layout) -> str:
    """Returns `# ` comment lines, the field names, and one line per row."""
    out = io.StringIO()
    for line in header_lines(header):
        out.write(f"# {line}\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([field.name for field in dataclasses.fields(layout.row)])
    for result in results:
        values = dataclasses.asdict(result.row).values()
        writer.writerow([_cell(value) for value in values])
    return out.getvalue()


def from_csv(text: str, layout: Layout) -> list[Result]:
    """Returns the rows in what `to_csv` wrote; CSV holds no samples."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    kinds = typing.get_type_hints(layout.row)
    results = []
    for record in csv.DictReader(lines):
        values = {name: _parse(kinds[name], value) for name, value in record.items()}
        results.append(Result(layout.row(**typing.cast("dict[str, typing.Any]", values))))
    return results


def _parse(kind: object, text: str) -> object:
    """Returns a CSV cell as the type of its field."""
    if isinstance(kind, types.UnionType):
        if text == "":
            return None
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    if kind is bool:
        return text == "True"
    return {int: int, float: float}.get(typing.cast("type", kind), str)(text)


def to_md(header: Header, results: Sequence[Result], layout: Layout, wide: bool = True) -> str:
    """Returns one table per section, what its columns are, and, if it is wide, the header as a list below them."""
    parts, tables = [], layout.shown(results, wide)
    for table in tables:
        columns = table.columns
        lines = [list(columns), ["---"] * len(columns), *zip(*columns.values(), strict=True)]
        cells = [[cell.replace("|", "/").replace("\n", " ") for cell in line] for line in lines]
        parts.append(f"### {table.title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in cells))
    below = list(header_lines(header)) if wide else [f"device: {device_of(header)}"]
    parts.append("".join(f"- {line}\n" for line in [*layout.legend(tables), *below]))
    return "\n".join(parts)


WRITERS: dict[str, Callable[[Header, Sequence[Result], Layout], str]] = {
    "md": to_md,
    "csv": to_csv,
    "json": to_json,
    "jsonl": to_jsonl,
}
READERS: dict[str, Callable[[str, Layout], list[Result]]] = {
    "csv": from_csv,
    "json": from_json,
    "jsonl": from_jsonl,
}
