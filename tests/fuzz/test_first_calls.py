"""Threads whose first calls meet do not wait for each other forever, and give the right results."""

import subprocess
import sys

import pytest

from .run import REPOSITORY

pytest.importorskip("dpctl", reason="its USM arrays are one kind of first call")

RUNS = [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 503))]


@pytest.mark.parametrize("seed", RUNS)
def test_first_calls_may_meet(seed):
    command = [sys.executable, "-m", "tests.fuzz.first_calls", str(seed)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"seed {seed}: exit {done.returncode}\n{done.stderr[-6000:]}"
