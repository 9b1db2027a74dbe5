"""Threads whose first calls meet do not wait for each other forever, and give the right results."""

import subprocess
import sys

import pytest

from .run import REPOSITORY

pytest.importorskip("dpctl", reason="its USM arrays are one kind of first call")

HUNG = [0, 2, 78]  # or found modules half imported
RUNS = [*HUNG, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(500) if seed not in HUNG)]


@pytest.mark.parametrize("seed", RUNS)
def test_first_calls_may_meet(seed):
    command = [sys.executable, "-m", "tests.fuzz.first_calls", str(seed)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"seed {seed}: exit {done.returncode}\n{done.stderr[-6000:]}"


@pytest.mark.parametrize("there", [[], ["Tensor"]], ids=["nothing yet", "Tensor"])
def test_numpy_arrays_do_not_need_a_torch_that_another_thread_imports(there):
    script = f"""
import sys, types
import numpy as np, xeflash
half = sys.modules["torch"] = types.ModuleType("torch")
for name in {there}:
    setattr(half, name, type(name, (), {{}}))
x = np.ones((1, 3, 2, 64), np.float32)
print(xeflash.flash_attn_func(x, x, x, dropout_p=0.1).shape)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "(1, 3, 2, 64)\n"), done.stderr
