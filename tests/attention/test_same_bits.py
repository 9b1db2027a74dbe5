"""Gradients have the same bits, however many threads there are, and in whatever order a GPU runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "gradient_bits.py"


def bits(*arguments: str, **environment: str) -> str:
    command = [sys.executable, str(PROGRAM), *arguments]
    more = {"PYTHONPATH": os.pathsep.join(sys.path), **environment}
    done = subprocess.run(command, env=os.environ | more, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == (1 if arguments else 2), done.stdout  # on GPUs one shape
    return done.stdout


def test_gradients_do_not_depend_on_the_number_of_threads():
    assert bits(DPCPP_CPU_NUM_CUS="1") == bits(DPCPP_CPU_NUM_CUS="5")


@pytest.mark.wide
@pytest.mark.parametrize("device", ["bmg", *(pytest.param(name, marks=pytest.mark.long) for name in ("pvc", "dg2"))])
def test_gradients_do_not_depend_on_the_order_of_threads(device, ocloc):
    """As the simulator interleaves them; without the check that moves results of the hardware's math by the seed."""
    assert len({bits(device, XEFLASH_SIM_CHECK=f"interleave,seed={seed}") for seed in (1, 2, 3)}) == 1
