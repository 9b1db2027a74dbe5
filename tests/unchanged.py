"""Tests of the simulator rest while nothing has changed that they depend on.

They know no kernel of the package: they depend on the simulator's library and sources, on the modules that load it, on both
compilers, and on their own files. A digest of all that names a stamp for each file of tests in XEFLASH_CACHE_DIR/passed. A
run of the default set in which all tests of a file passed leaves its stamp; later ones leave these tests out, and say so.
`--all` runs them nevertheless.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Those of tests/xesim that run the package's kernels, or read its sources.
OF_PACKAGE = ("attention", "calls", "counts", "decode", "denormals", "devices", "esimd_window")
FILES = {
    f"tests/xesim/{path.name}"
    for path in ROOT.glob("tests/xesim/test_*.py")
    if path.stem.removeprefix("test_") not in OF_PACKAGE
}
# The modules of the package that these may import: of `jit`, where its folders are.
MODULES = ("xeflash.sim", "xeflash.runtime", "xeflash.jit.provide")
# What else may be different where they passed: packages, and modules of the tests.
PACKAGES = ("intel-sycl-rt", "intel-opencl-rt", "dpctl", "numpy", "pytest")
SHARED = ("conftest.py", "cover.py", "offline_compiler.py", "shards.py", "unchanged.py")
LARGE = 32 << 20  # bytes of a file of which size and time are looked at alone

to_run: Counter[str] = Counter()  # tests by their file
at_rest: Counter[str] = Counter()
ended: Counter[str] = Counter()
failed: set[str] = set()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the simulator's tests, too, of which nothing has changed")


def _content(path: Path) -> bytes:
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}".encode() if status.st_size > LARGE else path.read_bytes()


def _files() -> Iterator[Path]:
    import xeflash
    from xeflash.sim import library_path

    package, extension = Path(xeflash.__file__).parent, importlib.util.find_spec("xeflash._core")
    assert extension and extension.origin
    yield from (library_path(), Path(extension.origin).parent / "bin/spirv")
    yield from (*package.glob("sim/*.py"), *package.glob("runtime/*.py"))
    yield from (path for path in ROOT.glob("perf/xesim/**/*") if path.is_file())
    others = (path for path in ROOT.glob("tests/xesim/**/*") if path.is_file() and path.suffix != ".pyc")
    yield from (path for path in others if not path.name.startswith("test_"))
    yield from (ROOT / "tests" / name for name in SHARED)
    if ocloc := os.environ.get("XEFLASH_OCLOC"):
        yield from (path for path in Path(ocloc).resolve().parent.rglob("*") if path.is_file())


@functools.cache
def _shared_digest() -> str:
    """Of all that each of the files depends on."""
    hasher = hashlib.sha256(sys.version.encode())
    for path in sorted(_files()):
        hasher.update(f"{path.name} {hashlib.sha256(_content(path)).hexdigest()}\n".encode())
    hasher.update(" ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES).encode())
    if compiler := shutil.which("g++"):
        hasher.update(subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout)
    hasher.update(next(line for line in Path("/proc/cpuinfo").read_bytes().splitlines() if line.startswith(b"flags")))
    return hasher.hexdigest()


def stamp_of(file: str) -> Path:
    """Where it is kept that the tests of a file have passed as it is."""
    from xeflash.runtime.cache_folder import cache_folder

    digest = hashlib.sha256(_shared_digest().encode() + (ROOT / file).read_bytes()).hexdigest()[:16]
    return cache_folder() / "passed" / f"{Path(file).stem}-{digest}"


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def _is_of_whole_files(config: pytest.Config) -> bool:
    """Whether a run has the default set of each file that it has."""
    option = config.option
    chosen = option.keyword or option.deselect or option.sim or getattr(option, "lf", False) or option.shard != "1/1"
    named = any("::" in word for word in config.args)
    return not chosen and not named and option.markexpr == "not wide and not long"


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not _is_of_whole_files(config):
        return
    files = FILES.intersection(_file_of(item.nodeid) for item in items)
    resting = set() if config.option.all else {file for file in files if stamp_of(file).exists()}
    at_rest.update(_file_of(item.nodeid) for item in items if _file_of(item.nodeid) in resting)
    config.hook.pytest_deselected(items=[item for item in items if _file_of(item.nodeid) in resting])
    items[:] = [item for item in items if _file_of(item.nodeid) not in resting]
    to_run.update(_file_of(item.nodeid) for item in items if _file_of(item.nodeid) in files)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output |= {"to_run": dict(to_run), "at_rest": dict(at_rest)}


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Every worker of pytest-xdist has collected the same."""
    for mine, name in ((to_run, "to_run"), (at_rest, "at_rest")):
        mine.update({} if mine else getattr(node, "workeroutput", {}).get(name, {}))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        failed.add(_file_of(report.nodeid))
    elif report.when == "teardown":
        ended[_file_of(report.nodeid)] += 1


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for file in (file for file in to_run if file not in failed and ended[file] == to_run[file]):
        stamp = stamp_of(file)
        stamp.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        stamp.touch()
    if at_rest:
        terminalreporter.write_line(
            f"{at_rest.total()} tests of the simulator passed before, and nothing that they depend on has changed (--all)"
        )
