"""Engines that tests run but nobody installs: folders of packages that are laid over the tests' own, and checks that have them."""

from __future__ import annotations

import faulthandler
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

SECONDS = 1200
LINES = 80  # of the output that are shown
PYTHON = f"{sys.implementation.cache_tag}-{platform.machine()}"


class Unavailable(Exception):
    """Why an engine cannot be had here: what it asks for, or what pip said."""


def pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip said nothing"]
        raise Unavailable(f"pip {' '.join(arguments[:1])} of {arguments[-1]} failed: {errors[-1]}")
    return done.stdout


def fetch(folder: Path, what: str, say: Callable[[str], None], *packages: str) -> None:
    """Makes a folder of these packages alone, which pip fetches."""
    say(f"{what} is fetched into {folder}, once:")
    begun = time.monotonic()
    with _aside(folder) as new:
        pip("install", "--quiet", "--no-deps", "--target", new, *packages)
    megabytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) >> 20
    say(f"{what} took {time.monotonic() - begun:.0f} s, {megabytes} MB")


def folder_of_locked(base: Path, locked: Path) -> Path:
    """Named by the packages that a file lists."""
    return base / f"packages-{PYTHON}-{hashlib.sha256(locked.read_bytes()).hexdigest()[:12]}"


@contextmanager
def _aside(folder: Path) -> Iterator[str]:
    """A new folder that takes its name when it is whole, unless another process was quicker."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent)
    try:
        yield new
        if not folder.is_dir():
            os.rename(new, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def run_checks(
    engine: str, size: str, folder: str, provide: Callable[[], dict[str, str]], where: Path, what: Sequence[str],
    without: tuple[str, ...] = (),
) -> None:  # fmt: skip
    """Runs pytest with an engine's variables, and without those that begin so; skips where the engine cannot be had.

    Its packages, of such a size, go into what the variable `folder` names.
    """
    if not os.environ.get(folder):
        pytest.skip(f"{folder} names no folder for {engine}'s packages, of which {size} would be fetched")
    faulthandler.cancel_dump_traceback_later()  # pytest's limit of one test
    try:
        variables = provide()
    except Unavailable as error:
        pytest.skip(f"{engine} cannot be had: {error}")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "--tb=short", "-p", "no:cacheprovider", "-rP", *what]
    done = subprocess.run(
        command, cwd=where, env=kept | variables, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode or " passed" not in done.stdout:
        tail = "\n".join(done.stdout.splitlines()[-LINES:])
        pytest.fail(f"{' '.join(command)}\nended with {done.returncode}\n{tail}\n{done.stderr[-2000:]}", pytrace=False)
    print("\n".join(line for line in done.stdout.splitlines() if line.startswith(f"{engine} ")))
