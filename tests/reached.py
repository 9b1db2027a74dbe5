"""Runs the tests that a change reaches: `python tests/reached.py` for what is not committed, or `... main` for a branch.

A header of kernels/ reaches the kernels that include it, and these reach the files of tests behind their names in
kernel_list.txt: on the CPU, and on the simulated devices that they are for. Another file reaches the tests beside it in
CONTRIBUTING's table; of the package those of the folder that has its folder's name; of tests/ what imports it. `--list` shows the
commands and runs nothing; more words, such as `-- -x`, go to pytest. Before a branch is merged, all tests run.
"""

from __future__ import annotations

import argparse
import functools
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import kernel_list
from xeflash.jit.kernel import headers_of
from xeflash.tune.desc import ALGORITHMS

ROOT = Path(__file__).resolve().parent.parent
DEVICES = ("bmg", "pvc", "dg2")
MASKS = ("documents", "chunks", "picks", "tree", "listed")  # which kernels that have them include
# What nearly every call goes through.
OF_ALL = ("host", "jit", "python", "attention/test_cover.py", "attention/test_dealing.py")
THROUGH_ALL = ("python/host/", "python/xeflash/call/", "python/xeflash/tune/", "python/xeflash/jit/")
OF_DOCS = ("test_readme.py", "test_contributing.py", "test_release.py", "test_examples.py")


def changed(since: str) -> list[str]:
    def git(*words: str) -> list[str]:
        return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()

    return sorted({*git("diff", "--name-only", since), *git("ls-files", "--others", "--exclude-standard")})


def headers_of_kernel(name: str) -> frozenset[str]:
    """Those that the source of a listed kernel includes."""
    device, algorithm, *features = name.split("-")
    first = [*ALGORITHMS[algorithm].headers, *(f"attention/{mask}" for mask in MASKS if mask in features)]
    first += (
        ["attention/score_mod"] if any(feature.startswith(("score_mod.", "mask_mod.")) for feature in features) else []
    )
    return closure(tuple(first), device == "cpu")


@functools.cache
def closure(first: tuple[str, ...], on_cpu: bool) -> frozenset[str]:
    found = headers_of(ROOT / "kernels", (f"{header}.hpp" for header in first), on_cpu)
    more = ["attention/config.hpp"] if any(header.startswith("attention/") for header in found) else []
    return frozenset(headers_of(ROOT / "kernels", [*found, *more, *([] if on_cpu else ["xe/system.hpp"])], on_cpu))


def files_by_headers(headers: set[str]) -> dict[str, set[str]]:
    """Files of tests by the device: those that ask for kernels with one of these headers."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, files in kernel_list.listed().items():
        if headers & headers_of_kernel(name):
            found[name.partition("-")[0]].update(files)
    return found


def files_beside(path: str) -> set[str]:
    """Those of the table's rows in .github/CONTRIBUTING.md that name a file."""
    table = (ROOT / ".github/CONTRIBUTING.md").read_text().split("## From a feature to its files")[1].split("\n## ")[0]
    found = set()
    for row in re.findall(r"^\|.*", table, re.MULTILINE):
        *sources, tests = (re.findall("`(.*?)`", cell) for cell in row.strip("|").split("|")[1:])
        folders = ("kernels", "python/host", "python/xeflash")
        if any(path == f"{folder}/{name}" for folder, names in zip(folders, sources, strict=False) for name in names):
            found.update(tests)
    return found


def importers(module: str) -> set[str]:
    """Files of tests that import a module of tests/, or one that does."""
    word = re.compile(rf"^\s*(?:from|import) (?:[\w.]+\.)?{module}\b", re.MULTILINE)
    files = [path for path in ROOT.glob("tests/**/*.py") if path.stem != module and word.search(path.read_text())]
    tests = {str(path.relative_to(ROOT / "tests")) for path in files if path.name.startswith("test_")}
    return tests.union(
        *(importers(path.stem) for path in files if path.parent == ROOT / "tests" and path.name[:5] != "test_")
    )


def reached(paths: list[str]) -> dict[str, set[str]]:
    """Files and folders below tests/ by the device."""
    found: dict[str, set[str]] = defaultdict(set)
    found |= files_by_headers({path.removeprefix("kernels/") for path in paths if path.endswith(".hpp")})
    for path in paths:
        folder, _, name = path.rpartition("/")
        found["cpu"] |= files_beside(path)
        if path.startswith(THROUGH_ALL):
            found["cpu"].update(OF_ALL)
        if path.startswith("perf/xesim/"):
            found["cpu"].add("xesim")
        elif path.startswith("tests/"):
            found["cpu"] |= {path.removeprefix("tests/")} if name.startswith("test_") else importers(Path(name).stem)
        elif path.endswith(".md"):
            found["cpu"].update(OF_DOCS)
        elif not path.startswith(("kernels/", "python/host/")) and (ROOT / "tests" / Path(folder).name).is_dir():
            found["cpu"].add(Path(folder).name)
    return {device: {file for file in files if (ROOT / "tests" / file).exists()} for device, files in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("since", nargs="?", default="HEAD", help="a commit or a branch")
    parser.add_argument("--list", action="store_true", help="show the commands, and run nothing")
    parser.add_argument("more", nargs="*", help="for pytest, behind --")
    options = parser.parse_args()
    found, codes = reached(changed(options.since)), set()
    for device in ("cpu", *DEVICES):
        if files := sorted(f"tests/{file}" for file in found.get(device, ())):
            command = [
                "pytest",
                *([] if device == "cpu" else ["-n0", "--sim", device, "--dealt"]),
                *options.more,
                *files,
            ]
            print(*command, flush=True)
            codes.add(0 if options.list else subprocess.run([sys.executable, "-m", *command], cwd=ROOT).returncode)
    return max(codes - {5}, default=0)  # 5: a file has no tests for a device


if __name__ == "__main__":
    sys.exit(main())
