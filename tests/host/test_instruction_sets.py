"""Each instruction set that kernels have code for, by telling Intel's OpenCL CPU driver which to compile for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, xeflash
from xeflash.selftest.reference import Features
from tolerance import check_attention
torch.manual_seed(0)
f = Features(window=(100, 0), sinks=torch.zeros(4))
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    for rows, dim, key_dim in ((1, 64, 64), (40, 64, 200), (150, 64, 72)):
        q, k, v = (torch.randn(2, heads, n, width).to(dtype)[..., :dim]
                   for heads, n, width in ((4, rows, dim), (2, 233, key_dim), (2, 233, dim)))
        options = dict(is_causal=True, bottom_right=True, window_size=(100, 0), sinks=f.sinks)
        out, lse = xeflash.attention(q, k, v, enable_gqa=True, return_lse=True, **options)
        check_attention(f"{dtype} {rows} rows", q, k, v, f, out, lse)
print("done")
"""
# What the CPU must have for the driver's code to run; the machine's own set is what all other tests use.
FLAGS = {"core-avx2": "avx2", "skx": "avx512f", "sapphirerapids": "amx_bf16"}


@pytest.mark.parametrize("target", FLAGS)
def test_results_are_right_on(target, tmp_path):
    if FLAGS[target] not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip(f"this CPU has no {FLAGS[target]}")
    environment = {name: value for name, value in os.environ.items() if name != "XEFLASH_CPU"}  # the target has others
    environment |= {"CL_CONFIG_CPU_TARGET_ARCH": target, "XEFLASH_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent.parent)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0 and run.stdout == "done\n", run.stdout + run.stderr
