"""Facts about a machine for `xeflash doctor`, gathered once; `checks` judges them, and tests make them up."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xeflash.bench.environ import cpu_isa, cpu_name, package_version
from xeflash.cli.cards import Card, find_cards, read_guc
from xeflash.report import journal
from xeflash.runtime import extension
from xeflash.runtime.cache_folder import Refused, cache_folder, is_private, open_folder

_PROBE_SECONDS = 120
_DRIVER_FILES = ("libze_intel_gpu.so.1", "libze_loader.so.1", "libigdrcl.so")
_APT_PACKAGES = ("g++", "libze1", "libze-intel-gpu1", "intel-level-zero-gpu", "intel-opencl-icd")
_DRIVER_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")


@dataclass(frozen=True)
class Cache:
    """The folder of compiled kernels."""

    path: str
    entries: int = 0
    size_bytes: int = 0
    writable: bool = True
    refused: str = ""  # why what is in it is not trusted


@dataclass(frozen=True)
class Facts:
    """Everything the checks need; the defaults are an empty machine."""

    python: str = ""
    prefix: str = ""
    cpu: str = ""
    isa: tuple[str, ...] = ()
    versions: Mapping[str, str | None] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    torch_pin: str | None = None  # the intel-sycl-rt that the installed torch asks for, if it is one exactly
    apt: tuple[str, ...] = ()  # packages of the system that checks may suggest, and that it has
    libsycl_files: tuple[str, ...] = ()
    libsycl_jit: str | None = None
    opencl_cpu: str | None = None
    missing_icds: tuple[str, ...] = ()  # entries of OCL_ICD_FILENAMES that do not exist
    foreign_libsycl: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by variable
    tools: Mapping[str, str | None] = field(default_factory=dict)
    gpu_nodes: Mapping[str, bool] = field(default_factory=dict)  # /dev/dri/renderD*: may we open it
    gpu_drivers: tuple[str, ...] = ()
    kernel: str = ""
    cards: tuple[Card, ...] = ()
    guc: Mapping[str, str] = field(default_factory=dict)  # version of the cards' GuC firmware, by platform
    cache: Cache = field(default_factory=lambda: Cache(""))
    probe: Mapping[str, Any] = field(default_factory=dict)
    last_report: str = ""  # what a report was doing that did not end


def _files(distribution: str, *names: str) -> list[str]:
    """Returns the installed files of a distribution whose name starts with one of `names`."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = (Path(str(f.locate())) for f in files if f.name.startswith(names))
    return sorted(str(path.resolve()) for path in found if path.is_file())


def pinned(requirements: Sequence[str], name: str) -> str | None:
    """Returns the only version of a distribution that a list of requirements allows, None if it pins none."""
    for requirement in requirements:
        match = re.match(rf"{re.escape(name)}\s*\(?\s*==\s*([\w.]+)", requirement)
        if match:
            return match[1]
    return None


def _torch_pin() -> str | None:
    try:
        return pinned(importlib.metadata.requires("torch") or [], "intel-sycl-rt")
    except importlib.metadata.PackageNotFoundError:
        return None


def installable(policy: str) -> tuple[str, ...]:
    """Returns the packages in the text of `apt-cache policy` that can be installed."""
    entries = re.findall(r"^(\S+):\n(?:\s+.*\n)*?\s+Candidate: (\S+)", policy, re.MULTILINE)
    return tuple(name for name, candidate in entries if candidate != "(none)")


def _apt() -> tuple[str, ...]:
    if shutil.which("apt-cache") is None:
        return ()
    command = ["apt-cache", "policy", *_APT_PACKAGES]
    environ = {**os.environ, "LC_ALL": "C"}
    return installable(subprocess.run(command, capture_output=True, text=True, check=False, env=environ).stdout)


def _find_ocloc(environ: Mapping[str, str]) -> str | None:
    """Returns the ocloc that the simulator finds: XEFLASH_OCLOC, the one that get_ocloc fetched, or the system's."""
    if environ.get("XEFLASH_OCLOC"):
        return shutil.which(environ["XEFLASH_OCLOC"])
    fetched = cache_folder(environ) / "ocloc" / "ocloc"
    return (is_private(fetched) and shutil.which(str(fetched))) or shutil.which("ocloc")


def _without_debug(paths: list[str]) -> list[str]:
    return [path for path in paths if not path.endswith((".py", ".pyc"))]


def look_at_cache(folder: Path) -> Cache:
    """Returns size and state of the cache folder; an absent folder is judged by its nearest parent."""
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    entries = sum(1 for path in files if path.name == "meta.json")
    refused, existing = "", folder
    try:
        open_folder(folder).close()
    except Refused as error:
        refused = str(error)
    except OSError:
        pass  # absent, or not writable
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        tempfile.TemporaryDirectory(dir=existing).cleanup()  # what access() says is not so in /proc
        writable = True
    except OSError:
        writable = False
    return Cache(str(folder), entries, sum(path.stat().st_size for path in files), writable, refused)


def foreign_libsycl(environ: Mapping[str, str], prefix: str) -> dict[str, tuple[str, ...]]:
    """Returns the libsycl files outside of our prefix that environment variables name, as setvars.sh leaves them."""
    found: dict[str, tuple[str, ...]] = {}
    for variable in ("LD_LIBRARY_PATH", "LD_PRELOAD"):
        files: list[str] = []
        for entry in filter(None, environ.get(variable, "").split(os.pathsep)):
            path = Path(entry)
            matches = path.glob("libsycl.so.*") if path.is_dir() else [path]
            files += [str(f) for f in matches if f.name.startswith("libsycl.so") and f.exists()]
        outside = [f for f in files if not Path(f).resolve().is_relative_to(Path(prefix).resolve())]
        if outside:
            found[variable] = tuple(sorted(f for f in outside if not f.endswith(".py")))
    return found


def run_probe(with_torch: bool) -> dict[str, Any]:
    """Runs `xeflash.cli.probe` in a child; returns {"crash": reason} if it does not answer."""
    command = [sys.executable, "-X", "faulthandler", "-m", "xeflash.cli.probe"] + ["--torch"] * with_torch
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"crash": f"no answer within {_PROBE_SECONDS} s"}
    lines = child.stdout.strip().splitlines()
    try:
        facts: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        said = child.stderr.strip().splitlines() or ["no message"]
        where = next((line.strip() for line in said if line.startswith("  File ")), said[-1])
        how = f"signal {-child.returncode}" if child.returncode < 0 else f"exit {child.returncode}"
        return {"crash": f"{how}: {where}"}
    if child.returncode != 0:
        facts["exit"] = child.returncode
    return facts


def _probe() -> dict[str, Any]:
    """Runs the probe with torch first, as a user's program would, and without torch if that crashes."""
    if package_version("torch") is None:
        return run_probe(with_torch=False)
    facts = run_probe(with_torch=True)
    if "crash" not in facts:
        return facts
    return {**run_probe(with_torch=False), "crash_with_torch": facts["crash"]}


def _gpu_drivers() -> tuple[str, ...]:
    return tuple(
        sorted(
            str(path)
            for folder in _DRIVER_FOLDERS
            for name in _DRIVER_FILES
            for path in (Path(folder, name), Path(folder, "intel-opencl", name))
            if path.exists()
        )
    )


def gather() -> Facts:
    """Gathers the facts about this machine; the child process takes a few seconds."""
    environ = dict(os.environ)
    packages = ("xeflash", "torch", "intel-sycl-rt", "intel-opencl-rt", "dpctl", "numpy")
    jit = _without_debug(_files("intel-sycl-rt", "libsycl-jit.so"))
    opencl = _without_debug(_files("intel-opencl-rt", "libintelocl.so"))
    icds = filter(None, environ.get("OCL_ICD_FILENAMES", "").split(os.pathsep))
    nodes = sorted(Path("/dev/dri").glob("renderD*"))
    cards = find_cards()
    return Facts(
        python=f"{platform.python_version()} at {sys.executable}",
        prefix=sys.prefix,
        cpu=cpu_name(),
        isa=cpu_isa(),
        versions={name: package_version(name) for name in packages},
        environ=environ,
        torch_pin=_torch_pin(),
        apt=_apt(),
        libsycl_files=tuple(_without_debug(_files("intel-sycl-rt", "libsycl.so."))),
        libsycl_jit=jit[0] if jit else None,
        opencl_cpu=opencl[0] if opencl else None,
        missing_icds=tuple(f for f in icds if os.sep in f and not Path(f).exists()),
        foreign_libsycl=foreign_libsycl(environ, sys.prefix),
        tools={
            "g++": shutil.which("g++"),
            "clang++": shutil.which("clang++"),
            "libc++": str(folder) if (folder := extension.libcxx()) else None,
            "ocloc": _find_ocloc(environ),
        },
        gpu_nodes={str(node): os.access(node, os.R_OK | os.W_OK) for node in nodes},
        gpu_drivers=_gpu_drivers(),
        kernel=platform.release(),
        cards=cards,
        guc=read_guc() if cards else {},
        cache=look_at_cache(cache_folder(environ)),
        probe=_probe(),
        last_report=str(journal.left() or ""),
    )
