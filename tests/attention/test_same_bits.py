"""Gradients have the same bits, however many threads there are, whatever their order on a GPU, and whatever the tiles.

An output's row has the same bits, whichever rows it shares a tile with.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import xeflash

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


def test_gradients_do_not_depend_on_the_choice_of_tiles():
    assert bits() == bits(LAST_TILES="1")


@pytest.mark.wide
@pytest.mark.parametrize("device", ["bmg", "dg2"])
def test_gradients_of_gpus_do_not_depend_on_the_choice_of_tiles(device, ocloc):
    assert bits(device) == bits(device, LAST_TILES="1")


@pytest.mark.wide
@pytest.mark.parametrize("device", ["bmg", *(pytest.param(name, marks=pytest.mark.long) for name in ("pvc", "dg2"))])
def test_gradients_do_not_depend_on_the_order_of_threads(device, ocloc):
    """As the simulator interleaves them; without the check that moves results of the hardware's math by the seed."""
    assert len({bits(device, XEFLASH_SIM_CHECK=f"interleave,seed={seed}") for seed in (1, 2, 3)}) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_do_not_depend_on_those_beside_them(device, dtype):
    """Maxima grow from block to block, by more than what is put off, and at other places for each row."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, rows, 64) for rows in (150, 900, 900))
    k *= torch.linspace(0.6, 9, 900)[:, None]
    q, k, v = ((3 * q).to(device, dtype), k.to(device, dtype), v.to(device, dtype))
    whole = xeflash.attention(q, k, v)
    for first, rows in ((0, 64), (32, 64), (7, 70), (100, 33)):
        part = slice(first, first + rows)
        assert torch.equal(xeflash.attention(q[:, :, part].contiguous(), k, v), whole[:, :, part]), part
