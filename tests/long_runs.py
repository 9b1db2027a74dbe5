"""Runs a shard of the wide or the long sets, and writes down what came of it: `python tests/long_runs.py` takes the shard that is due.

These sets take hours, so they are cut into shards of some minutes, each complete in itself (dealing.py). long_runs.csv
has a row per run. Due is a shard that has never run, then one whose files changed since, then the one that ran longest
ago. `--kind`, `--shard` and `--list` choose and show.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import platform
import re
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from shards import WIDE_PARTS

ROOT = Path(__file__).resolve().parent.parent
LEDGER = ROOT / "tests/long_runs.csv"
LIMIT = 1200  # seconds; a shard is meant to take less than 720 on two quiet cores
KEEPS = ("tests/long_runs.csv", "perf/results", ".github")  # and pages of text
# The default set's CPU half, with the instructions of other CPUs.
PATHS = {"generic": "avx2", "avx512": "avx512f", "avx512-bf16": "avx512_bf16", "amx-bf16": "amx_bf16"}
OF_CPU, OF_GPUS = "kernels/cpu", "kernels/xe"  # of which the other's shards have nothing


@dataclass(frozen=True)
class Kind:
    shards: int
    words: tuple[str, ...]
    without: str  # a folder that its tests do not use
    cpu: str = ""  # of XEFLASH_CPU; else the fastest
    flag: str = ""  # of /proc/cpuinfo, without which a machine has no such instructions

    def command(self, shard: int, seed: int) -> list[str]:
        words = [*self.words, "--shard", f"{shard}/{self.shards}"]
        return [sys.executable, "-m", *words, *(["--seed", str(seed)] if "tests.fuzz" in words else [])]


KINDS = {"wide": Kind(WIDE_PARTS, ("pytest", "-q", "-m", "wide"), KEEPS[0])}
KINDS |= {
    f"default-{cpu}": Kind(2, ("pytest", "-q", "--ignore=tests/xesim"), OF_GPUS, cpu, flag)
    for cpu, flag in PATHS.items()
}
KINDS |= {"cpu": Kind(12, ("pytest", "-q", "-m", "long"), OF_GPUS)}
KINDS |= {device: Kind(12, ("pytest", "-q", "-m", "", "--sim", device), OF_CPU) for device in ("pvc", "bmg", "dg2")}
KINDS |= {"fuzz": Kind(10, ("tests.fuzz",), OF_GPUS)}
KINDS |= {f"fuzz-{device}": Kind(10, ("tests.fuzz", "--sim", device), OF_CPU) for device in ("pvc", "bmg", "dg2")}


@dataclass(frozen=True)
class Row:
    kind: str
    shard: int
    shards: int
    commit: str
    date: str
    cpu: str
    passed: int
    failed: int
    skipped: int
    minutes: float
    seed: int


def rows() -> list[Row]:
    with LEDGER.open(newline="") as file:
        read = list(csv.DictReader(file))
    kinds = {field.name: {"int": int, "float": float}.get(str(field.type), str) for field in fields(Row)}
    return [Row(**{name: kinds[name](value) for name, value in line.items()}) for line in read]


def append(row: Row) -> None:
    with LEDGER.open("a", newline="") as file:
        csv.DictWriter(file, list(asdict(row)), lineterminator="\n").writerow(asdict(row))


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout.strip()


def changed_since(commit: str, kind: str) -> bool:
    """Whether files that matter to a kind differ from those of a commit; of one that is gone, all do."""
    try:
        names = git("diff", "--name-only", commit).splitlines()
    except subprocess.CalledProcessError:
        return True
    return any(not name.endswith(".md") and not name.startswith((*KEEPS, KINDS[kind].without)) for name in names)


def due(kind: str | None) -> tuple[str, int]:
    """The kind and number of the shard that is to run next."""
    last = {(row.kind, row.shard): row for row in rows() if row.shards == KINDS[row.kind].shards}
    changed = {(row.kind, row.commit): changed_since(row.commit, row.kind) for row in last.values()}

    def order(shard: tuple[str, int]) -> tuple[bool, bool, str, int]:
        row = last.get(shard)
        if row is None:
            return False, False, "", shard[1]
        return True, not changed[row.kind, row.commit], row.date, shard[1]

    names = [kind] if kind else [name for name in KINDS if KINDS[name].flag in flags()]
    return min(((name, i + 1) for name in names for i in range(KINDS[name].shards)), key=order)


def counts(output: str) -> tuple[int, int, int]:
    """Passed, failed and skipped, by the last lines of pytest or of the fuzzer."""
    if found := re.search(r"^(\d+) cases, (\d+) faults", output, re.MULTILINE):
        return int(found[1]) - int(found[2]), int(found[2]), 0
    last = next((line for line in reversed(output.splitlines()) if re.search(r" in [\d.]+s", line)), "")
    found_by = {name: int(number) for number, name in re.findall(r"(\d+) (passed|failed|skipped|errors?)", last)}
    failed = sum(number for name, number in found_by.items() if name not in ("passed", "skipped"))
    return found_by.get("passed", 0), failed, found_by.get("skipped", 0)


def fact(name: str, otherwise: str) -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith(name)), otherwise)


def cpu() -> str:
    return fact("model name", platform.machine())


def flags() -> list[str]:
    """The CPU's, and none, which all have."""
    return ["", *fact("flags", "").split()]


def run(kind: str, shard: int) -> bool:
    """Whether all went well."""
    seed = sum((row.kind, row.shard) == (kind, shard) for row in rows())  # other cases each time
    command = KINDS[kind].command(shard, seed)
    commit = git("rev-parse", "--short=10", "HEAD") + (
        "+" if git("status", "--porcelain", "-uno", "--", ".", f":!{LEDGER.relative_to(ROOT)}") else ""
    )
    print(*command, flush=True)
    start = time.monotonic()
    environment = os.environ | ({"XEFLASH_CPU": KINDS[kind].cpu} if KINDS[kind].cpu else {})
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    limit = threading.Timer(LIMIT, process.kill)
    limit.start()
    lines = []
    assert process.stdout
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    code = process.wait()
    limit.cancel()
    passed, failed, skipped = counts("".join(lines))
    if code not in (0, 1) or (code == 1 and not failed):
        failed += 1  # what did not end by itself has no counts
    minutes = round((time.monotonic() - start) / 60, 1)
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M")
    append(Row(kind, shard, KINDS[kind].shards, commit, date, cpu(), passed, failed, skipped, minutes, seed))
    return not failed


def show() -> None:
    """A line per kind: how many of its shards have run, on which commits."""
    known = rows()
    for name, kind in KINDS.items():
        mine = [row for row in known if row.kind == name and row.shards == kind.shards]
        ran, failed = len({row.shard for row in mine}), sum(row.failed > 0 for row in mine)
        print(f"{name:10} {ran:3} of {kind.shards} shards have run, {len(mine)} runs, {failed} with failures")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, help="only shards of this kind")
    parser.add_argument("--shard", type=int, metavar="K", help="with --kind: this shard")
    parser.add_argument("--list", action="store_true", help="show what has run, and run nothing")
    options = parser.parse_args()
    if options.list:
        show()
        return 0
    if options.shard is not None and (not options.kind or not 1 <= options.shard <= KINDS[options.kind].shards):
        parser.error(f"--shard must be 1 to the number of shards of --kind, got {options.shard}")
    kind, shard = (options.kind, options.shard) if options.shard else due(options.kind)
    return 0 if run(kind, shard) else 1


if __name__ == "__main__":
    sys.exit(main())
