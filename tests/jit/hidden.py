"""Runs a command where neither g++ nor the headers of C and C++ are: in a mount namespace, under empty folders."""

import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from xeflash.runtime import extension

_SCRIPT = """
empty=$(mktemp -d)
trap 'rmdir "$empty"' EXIT
for folder in /usr/include /usr/local/include /usr/lib/gcc $HIDDEN; do
  [ ! -d "$folder" ] || mount --bind "$empty" "$folder"
done
for program in /usr/bin/*g++* /usr/bin/*gcc* /usr/bin/cc /usr/bin/c++; do
  [ ! -f "$program" ] || mount --bind /dev/null "$program"
done
"$@"
"""


@functools.cache
def _unshare():
    """The command that gives a process mounts of its own, if this user may have them."""
    for options in ([], ["--map-root-user"]):
        command = ["unshare", "--mount", *options]
        if shutil.which("unshare") and not subprocess.run([*command, "true"], capture_output=True).returncode:
            return command
    return None


def run(command, seconds, libcxx=True, **environment):
    """Its output. `libcxx`: whether the compiler's own headers of C++ are there, as they are from 2026.2 on."""
    if _unshare() is None:
        pytest.skip("this user may not mount folders: nothing can be hidden")
    folder = None if libcxx else extension.libcxx()
    variables = os.environ | environment | {"HIDDEN": str(folder or "")}
    done = subprocess.run(
        [*_unshare(), "bash", "-c", _SCRIPT, "hidden", *map(str, command)],
        capture_output=True, text=True, timeout=seconds, env=variables, cwd=Path(__file__).parent,
    )  # fmt: skip
    assert not done.returncode, f"{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    return done.stdout
