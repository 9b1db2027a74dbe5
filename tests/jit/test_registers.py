"""Kernels find room in registers: those that once did not, and a sample of all that calls can ask for.

The sample is that of `perf/counts.py spills`. Tiles that spills.csv strikes out do spill.

Every kernel that runs on a simulated GPU in a test is looked at, too: XEFLASH_SIM_CHECK in tests/conftest.py.
"""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from xeflash.call.score_mod import ScoreMod
from xeflash.jit.kernel import render
from xeflash.jit.offline import compile_offline
from xeflash.sim.binary import compile_spirv, inspect
from xeflash.tune import spills, xe
from xeflash.tune.desc import Desc

PERF = Path(__file__).parents[2] / "perf"

CONDITION = ScoreMod("q_idx >= k_idx", ())
SPILLED = {
    "dg2-d112-elements": Desc("flash_fwd", "dg2", "float16", 112, 112, 128, access="elements"),
    "bmg-gqa4-7-queries": Desc("flash_fwd", "bmg", "bfloat16", 64, 64, 32, packed_heads=True, access="block2d"),
    "bmg-latent": Desc("flash_fwd", "bmg", "bfloat16", 192, 128, 128, access="block2d"),
    "pvc-dq-narrow-k": Desc("flash_bwd_dq", "pvc", "bfloat16", 64, 256, 128, access="block2d"),
    "dg2-10-queries": Desc("flash_fwd", "dg2", "bfloat16", 128, 128, 128, packed_heads=True, access="dwords"),
    "dg2-documents": Desc("flash_fwd", "dg2", "bfloat16", 128, 128, 128, mask="Documents", access="dwords"),
    "dg2-beams": Desc("flash_fwd", "dg2", "bfloat16", 64, 64, 64, packed_heads=True, cache="beam", access="dwords"),
    "dg2-alibi": Desc("flash_decode", "dg2", "bfloat16", 128, 128, 8, ("Alibi",), split_keys=True, access="dwords"),
    "dg2-dkv-condition": Desc(
        "flash_bwd_dkv", "dg2", "bfloat16", 64, 64, 128, mask="Listed", mask_mod=CONDITION, access="dwords"
    ),
    "dg2-dkv-adds": Desc("flash_bwd_dkv", "dg2", "bfloat16", 64, 64, 32, adds_up=True, access="dwords"),
}


@pytest.mark.wide
@pytest.mark.parametrize("name", SPILLED)
def test_what_spilled_does_not(name, ocloc):
    desc = SPILLED[name]
    binary = compile_spirv(desc.arch, compile_offline(render(desc)).binary, "-vc-codegen -doubleGRF")
    for kernel in inspect(desc.arch, binary):
        assert kernel["scratch"] == kernel["spill"] == kernel["private"] == 0


@pytest.mark.wide
def test_a_tile_that_is_struck_out_spills(monkeypatch, ocloc):
    monkeypatch.syspath_prepend(str(PERF))
    from counting.spills import measured

    line = random.choice(spills.lines())
    assert measured(line) == line


@pytest.mark.long
@pytest.mark.parametrize("device", xe.ARCHITECTURES)
def test_a_sample_does_not_spill(device, ocloc):
    command = [sys.executable, str(PERF / "counts.py"), "spills", "--device", device, "--count", "100"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
