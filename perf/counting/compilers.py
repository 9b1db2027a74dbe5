"""A sample of every algorithm with the compilers of Debian's suites, on each simulated GPU; all of it takes an hour.

The table is kept in perf/xesim/README.md. The sample is tests/attention/test_sample.py, with the long cases where a
device has code of its own, every code of quantised caches, and denormals of fp16. Compilers are fetched into the cache
folder (XEFLASH_CACHE_DIR) as xeflash.sim.get_ocloc does it, once, and kernels kept apart for each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from xeflash.bench.cases import parse_choices
from xeflash.cli.arguments import converter
from xeflash.runtime.cache_folder import cache_folder
from xeflash.sim import DEVICES, get_ocloc

from counting.options import add_devices
from counting.tables import Row, Table

TESTS = Path(__file__).resolve().parents[2] / "tests"
SAMPLE = ("attention/test_sample.py", "attention/test_append.py")
WHICH = "sample or merge_states or read_as_its_number_on_gpu or fp16_denormals"
C_LIBRARY = ("libc6", "libstdc++6", "libgcc-s1", "zlib1g")
OWN_CODE = ("pvc", "bmg", "dg2", "ptl", "arl-h")  # compilers make the same for the others as for a relative
COLUMNS = ("device", "compiled by", "cases", "failures", "right, but spill")
OLD_DEVICES = ("pvc", "dg2", "ats-m")  # devices that ocloc 22.43 knows
WRAPPER = """#!/bin/sh
# Runs ocloc with the C library that it was built for.
root="$(dirname "$(readlink -f "$0")")/root"
path="$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu"
exec "$root/{loader}" --library-path "$path" "$root/{program}" "$@"
"""


@dataclass(frozen=True)
class Compiler:
    """A compiler and its packages: suite of Debian -> packages; the last suite's C library runs it."""

    title: str
    devices: tuple[str, ...]
    packages: dict[str, tuple[str, ...]] = field(default_factory=dict)


IGC1 = ("libigc1", "libigdfcl1")
COMPILERS = {
    "bookworm": Compiler(
        "Debian 12: ocloc 22.43, IGC 1.0.12504", OLD_DEVICES, {"bookworm": ("intel-opencl-icd", *IGC1, *C_LIBRARY)}
    ),
    "mixture": Compiler(
        "ocloc 22.43 of Debian 12 with IGC 1.0.17791 of forky",
        OLD_DEVICES,
        {"bookworm": ("intel-opencl-icd", "libigdgmm12"), "forky": (*IGC1, *C_LIBRARY)},
    ),
    "sid": Compiler("the current ocloc of sid", tuple(name for name in DEVICES if name != "mtl-h")),
}


def tell(text: str) -> None:
    """Prints progress beside the table."""
    print(text, file=sys.stderr)


def unpack(suite: str, packages: tuple[str, ...], with_dependencies: bool, root: Path) -> None:
    """Fetches packages of a suite and unpacks them."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        source = f"deb [signed-by={get_ocloc.debian_keys(work)}] {get_ocloc.debian_mirror()} {suite} main\n"
        config = get_ocloc.private_apt(work / "apt", source)
        get_ocloc.run(["apt-get", "-c", str(config), "-q", "update"], work)
        names = get_ocloc.with_dependencies(config, work, packages) if with_dependencies else list(packages)
        archive = work / "packages"
        archive.mkdir()
        get_ocloc.download(config, names, archive, tell)
        for package in sorted(archive.glob("*.deb")):
            get_ocloc.run(["dpkg-deb", "-x", str(package), str(root)], work)


def provide(name: str, folder: Path) -> Path:
    """Returns the program of a compiler, and fetches it if it is not there yet."""
    if not COMPILERS[name].packages:
        folder = cache_folder().absolute() / "ocloc"
        if not (folder / "ocloc").exists():
            tell(get_ocloc.fetch(folder, get_ocloc.debian_mirror(), get_ocloc.SUITE))
        return folder / "ocloc"
    program = folder / "ocloc"
    if program.exists():
        return program
    root = folder / "root"
    suites = list(COMPILERS[name].packages)
    for suite in suites:
        unpack(suite, COMPILERS[name].packages[suite], suite == suites[-1], root)
    loaders = ("usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")
    loader = next(path for path in loaders if (root / path).exists())
    program.write_text(WRAPPER.format(loader=loader, program="usr/bin/ocloc"))
    program.chmod(0o755)
    return program


def run(program: Path, device: str, cache: Path) -> tuple[int, int, int]:
    """Runs the sample on a device; returns (cases, failures, kernels that spill but are right)."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        environment = os.environ | {
            "XEFLASH_OCLOC": str(program),
            "XEFLASH_OLDEST_OCLOC": "0",
            "XEFLASH_CACHE_DIR": str(cache),
            "XEFLASH_SIM_CHECK": "all",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "--sim", device]
        command += [
            "-m",
            "long or not long" if device in OWN_CODE else "not long",
            "-k",
            WHICH,
            f"--junitxml={report}",
            *(str(TESTS / p) for p in SAMPLE),
        ]
        done = subprocess.run(command, cwd=TESTS.parent, env=environment, capture_output=True, text=True)
        if not report.exists():
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        cases = {(case.get("classname"), case.get("name")): case for case in ElementTree.parse(report).iter("testcase")}
        skipped = sum(case.find("skipped") is not None for case in cases.values())
        if skipped or not cases:
            raise SystemExit(f"{device}: {skipped} of {len(cases)} tests were skipped:\n{done.stdout}")
        wrong = [x for case in cases.values() for x in (*case.iter("failure"), *case.iter("error"))]
        spills = sum(" spills " in (x.get("message") or "") for x in wrong)
        return len(cases), len(wrong) - spills, spills


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this family."""
    names = tuple(COMPILERS)
    kind = converter(lambda text: parse_choices(text, names))
    parser.add_argument("--compiler", type=kind, default=names, help=f"default: {','.join(names)}")
    add_devices(parser, DEVICES, DEVICES)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yields the rows of the devices that each compiler knows."""
    for name in options.compiler:
        compiler = COMPILERS[name]
        folder = cache_folder().absolute() / "compilers" / name
        folder.mkdir(parents=True, exist_ok=True)
        program = provide(name, folder)
        for device in (device for device in compiler.devices if device in options.device):
            cases, failures, spills = run(program, device, folder / "cache")
            found = (device, compiler.title, cases, failures, spills)
            yield dict(zip(COLUMNS, found, strict=True))


def report(options: argparse.Namespace) -> Iterator[Table]:
    """Yields one table."""
    yield Table("compilers", dict.fromkeys(COLUMNS, ""), rows(options))
