"""Damaged machine code never crashes or hangs the simulator: a launch runs to its end, or is stopped with a reason."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import toolbox

HERE = Path(__file__).parent
COUNT = 1000


@pytest.mark.parametrize("check", ("all", "none"))
@pytest.mark.parametrize("family", ("pvc", "bmg", "dg2"))
def test_damaged_code_neither_crashes_nor_hangs(family: str, check: str, tmp_path: Path) -> None:
    toolbox.library()
    binary = tmp_path / "damaged.bin"
    binary.write_bytes(toolbox.compile_opencl(HERE / "damaged_code.cl", family, tmp_path))
    limits = {"XEFLASH_SIM_CHECK": check, "XEFLASH_SIM_MAX_INSTRUCTIONS": "20000", "XEFLASH_SIM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(HERE / "run_damaged.py"), family, str(binary), str(COUNT)],
        env={**os.environ, **limits},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    ran, stopped = map(int, done.stdout.split())
    assert ran + stopped == 2 * COUNT
    assert stopped > COUNT / 4, "most flips of bits should be noticed, or run to a wrong result"
