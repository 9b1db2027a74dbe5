"""Intel's offline compiler (ocloc) and its assembler (iga64) for the tests: found, or fetched once in a run.

The process that a person starts provides them (conftest.py) and names ocloc in XEFLASH_OCLOC, where pytest-xdist's
workers and all programs that tests start find it. Where there is none, the tests that need it skip, all with REASON.
"""

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

# Earlier ones do not know bmg, and abort on what our front end writes; perf/counts.py compilers tries them nevertheless.
OLDEST = int(os.environ.get("XEFLASH_OLDEST_OCLOC", "26"))
REASON = f"no ocloc of 20{OLDEST} or newer"


@functools.cache
def year_of(ocloc: str) -> int:
    """That of its release; 0 if the program does not tell."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run([ocloc, "query", "OCL_DRIVER_VERSION"], cwd=folder, capture_output=True, text=True)
        except OSError:
            return 0
        answer = Path(folder, "OCL_DRIVER_VERSION")
        said = answer.read_text(errors="replace") if answer.exists() else done.stdout
    version = re.search(r"(\d+)\.\d+", said)
    return int(version[1]) if version else 0


def provide(say: Callable[[str], None]) -> str:
    """Sees to it that XEFLASH_OCLOC names a program that will do; else returns in one line why not, and what to do."""
    from xeflash.runtime import cache_folder  # XEFLASH_SIM has to be set before xeflash is imported
    from xeflash.sim import get_ocloc

    if given := os.environ.get("XEFLASH_OCLOC"):
        return "" if year_of(given) >= OLDEST else f"XEFLASH_OCLOC={given} is {REASON}; to have one fetched, unset it"
    folder = cache_folder.cache_folder().absolute() / "ocloc"
    installed = shutil.which("ocloc")
    if installed and not Path(installed).with_name("iga64").exists():
        installed = None
    fetched = str(folder / "ocloc") if cache_folder.is_private(folder / "ocloc") else None
    for place in (fetched, installed):
        if place and year_of(place) >= OLDEST:
            os.environ["XEFLASH_OCLOC"] = place
            return ""
    try:
        say(f"ocloc, Intel's offline compiler, is fetched into {folder}, once:")
        say(get_ocloc.fetch(folder, get_ocloc.debian_mirror(), get_ocloc.SUITE, say))
    except SystemExit as error:
        lines = str(error).splitlines()
        why = next((line for line in lines if line.startswith("E: ")), lines[0])
        return f"it could not be fetched ({why}); try again with: python -m xeflash.sim.get_ocloc"
    os.environ["XEFLASH_OCLOC"] = str(folder / "ocloc")
    return ""


def need_ocloc() -> str:
    """The program, or skip."""
    ocloc = os.environ.get("XEFLASH_OCLOC", "")
    if not ocloc or year_of(ocloc) < OLDEST:
        pytest.skip(REASON)
    return ocloc


def need_iga64() -> str:
    """The program, or skip."""
    iga64 = os.environ.get("XEFLASH_IGA64") or str(Path(need_ocloc()).with_name("iga64"))
    if not os.access(iga64, os.X_OK):
        pytest.skip(f"no iga64 beside {os.environ['XEFLASH_OCLOC']} (XEFLASH_IGA64 may name one)")
    return iga64
