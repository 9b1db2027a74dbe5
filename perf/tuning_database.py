"""Merges tunings that owners of devices have sent into the package's database, `python/xeflash/tune/devices/`.

    python perf/tuning_database.py merge perf/results/tunings/*.json
    python perf/tuning_database.py merge --check perf/results/tunings/*.json     # are the files what these give?

A submission is the file of `xeflash tune --json` or of `xeflash report --tune`. All of them are given at once: the
folder has afterwards what they give, a file per device and a file per architecture. The rule is CLBlast's: of the
candidates that all submissions of a group tried for a kernel, the one with the least sum of times, each relative to the
best of its submission. The tables' own choice wins ties and is not written; nor is anything for a kernel for which
every submission kept it. If one submission cannot be believed, nothing is written.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from xeflash.bench.files import write_whole
from xeflash.report.judged import without_impossible
from xeflash.selftest.limits import limits_of
from xeflash.tune import tuned
from xeflash.tune.table import schedule_candidates
from xeflash.tune.tuned import Choice, Tuning, Value
from xeflash.tune.xe import ARCHITECTURES

DEVICES = Path(tuned.__file__).parent / "devices"


def best(choices: Sequence[Choice[Value]]) -> Value:
    """Returns the value that suits all submissions best; the first of their trials is the tables'."""
    tables = choices[0].trials[0].value
    if all(choice.value == tables for choice in choices):  # nobody found another one beyond the noise
        return tables
    costs = [_relative_times(choice) for choice in choices]
    common = [value for value in costs[0] if all(value in cost for cost in costs)]
    return min(common, key=lambda value: round(sum(cost[value] for cost in costs), 9), default=tables)


def _relative_times(choice: Choice[Value]) -> dict[Value, float]:
    """Returns the time of each candidate that was timed / that of the best; ratios are the tables' time / its own."""
    ratios = {trial.value: trial.ratio for trial in choice.trials if trial.ratio is not None}
    return {value: max(ratios.values()) / ratio for value, ratio in ratios.items()}


def merged(tunings: Iterable[Tuning]) -> dict[str, str]:
    """Returns the files of the database, by their names."""
    groups = defaultdict[str, list[Tuning]](list)
    for tuning in tunings:
        groups[f"{tuning.device.arch}-{tuning.device.units}.json"].append(tuning)
        groups[f"{tuning.device.arch}.json"].append(tuning)
    files = {}
    for name, group in sorted(groups.items()):
        found = {kind: _chosen([getattr(tuning, kind) for tuning in group]) for kind in ("choices", "schedule")}
        if any(found.values()):
            files[name] = _text({"from": sorted(f"{x.name}, driver {x.driver}" for x in group), **found})
    return files


def _chosen(submitted: Sequence[Mapping[str, Choice[Any]]]) -> dict[str, Any]:
    """Returns the choices of a group that are not the tables'."""
    found = {}
    for key in sorted({key for choices in submitted for key in choices}):
        choices = [x[key] for x in submitted if key in x]
        if (value := best(choices)) != choices[0].trials[0].value:
            found[key] = value
    return found


def _text(parts: Mapping[str, Any]) -> str:
    """Returns JSON with a line for each kernel, for differences that can be read."""

    def lines(values: Mapping[str, str], space: str) -> str:
        inner = ",\n".join(f"{space} {json.dumps(name)}: {value}" for name, value in values.items())
        return f"{{\n{inner}\n{space}}}" if values else "{}"

    texts = {
        name: lines({key: json.dumps(value) for key, value in part.items()}, " ")
        if isinstance(part, dict)
        else json.dumps(part)
        for name, part in parts.items()
    }
    return lines(texts, "") + "\n"


def faults_of(tuning: Tuning) -> Iterator[str]:
    """Yields why a tuning has no place in the database."""
    if tuning.by != "times":
        yield f"by must be times, as counts are no measurement, got {tuning.by}"
    if tuning.tables != tuned.tables_hash():
        yield f"tables must be {tuned.tables_hash()}, those of this checkout, got {tuning.tables}"
    arch = tuning.device.arch
    if arch not in ARCHITECTURES and not re.fullmatch("cpu-[a-z0-9-]+", arch):
        yield f"device.arch must be one of {', '.join(ARCHITECTURES)}, or a CPU's, got {arch!r}"
        return
    for name, number in tuning.schedule.items():
        if number.value not in schedule_candidates(arch).get(name, ()):
            yield f"{name}: the choice {number.value} must be one of {arch}'s candidates"
    choices: dict[str, Choice[Any]] = {**tuning.choices, **tuning.schedule}
    for key, choice in choices.items():
        found = next((trial for trial in choice.trials if trial.value == choice.value), None)
        fault = "no trial of it" if found is None else found.note or ("" if found.ratio else "no time")
        if fault:
            yield f"{key}: the choice {choice.value} must have been timed without a fault, got {fault}"


def faults_of_report(report: Mapping[str, Any]) -> Iterator[str]:
    """Yields why a report cannot be believed: what it says itself, and rates above the peaks of its device."""
    if report.get("valid") is not True:
        yield f"the report must be valid, got: {'; '.join(report.get('doubts', ['it did not end']))}"
    limits = limits_of(report["device"]["name"], report["device"]["compute_units"])
    for part in ("selftest", "card"):
        for row in report.get(part, {}).get("cases", ()):
            judged = without_impossible(row, limits)
            if judged.get("valid") is False:
                rates = f"{row.get('tflops')} TFLOP/s and {row.get('gbytes_per_s')} GB/s"
                yield f"{part}: {row['name']}: rates must be at most the device's, got {rates}: {judged['note']}"


def read(path: Path) -> tuple[Tuning | None, list[str]]:
    """Reads a submission; returns its tuning, and why it is refused."""
    try:
        report = found = json.loads(path.read_text())
        while "tuning" in found:
            found = found["tuning"]
        tuning = Tuning.from_json(json.dumps(found))
        return tuning, [*faults_of(tuning), *(faults_of_report(report) if "report" in report else ())]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return None, [f"it must be a file of xeflash tune --json or of xeflash report --tune: {error!r}"]


def merge(paths: Sequence[Path], check: bool) -> int:
    """Writes the database, or compares it; 1 if a submission is refused, or if the files are others."""
    read_from: dict[str, Path] = {}
    tunings, refused = [], []
    for path in paths:
        tuning, faults = read(path)
        refused += [f"{path}: {fault}" for fault in faults]
        if tuning:
            if same := read_from.get(text := tuning.to_json()):
                refused.append(f"{path}: it must be another tuning than that of {same}")
            read_from[text] = path
            tunings.append(tuning)
    for line in refused:
        print(f"merge: {line}", file=sys.stderr)
    if refused:
        return 1
    files = merged(tunings)
    before = {path.name: path.read_text() for path in DEVICES.glob("*.json")}
    changed = sorted(name for name in {*files, *before} if files.get(name) != before.get(name))
    for name in changed:
        print(f"{DEVICES / name}: {'differs' if check else 'written' if name in files else 'removed'}")
    if check:
        return 1 if changed else 0
    DEVICES.mkdir(exist_ok=True)
    for name in changed:
        if name in files:
            write_whole(DEVICES / name, files[name])
        else:
            (DEVICES / name).unlink()
    return 0


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command = parser.add_subparsers(required=True, metavar="COMMAND").add_parser("merge", help="merge submissions")
    command.add_argument("files", nargs="+", type=Path, metavar="FILE", help="all submissions")
    command.add_argument("--check", action="store_true", help="only say which files would change; 1 if any would")
    options = parser.parse_args()
    return merge(options.files, options.check)


if __name__ == "__main__":
    sys.exit(main())
