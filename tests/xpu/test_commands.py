"""`xeflash doctor` and `xeflash bench` as a person with a card calls them: programs of their own, with torch's xpu."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch_xpu

pytestmark = [pytest.mark.gpu, pytest.mark.xpu]

STARTUP = Path(torch_xpu.__file__).parent / "startup"


def xeflash(*words, **more):
    environment = os.environ | more
    if torch_xpu.installed():
        environment["PYTHONPATH"] = str(STARTUP)
    command = [sys.executable, "-m", "xeflash", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


def test_doctor_says_that_attention_runs_on_xpu(xpu):
    done = xeflash("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "torch xpu: ok" in done.stdout and done.stdout.endswith("attention runs on torch's xpu\n")


@pytest.mark.wide
def test_doctor_fails_where_attention_fails_on_xpu(xpu, tmp_path):
    """Though it runs on the CPU: no kernel compiles here."""
    if not torch_xpu.installed():
        pytest.skip("a card's driver compiles without ocloc")
    places = {"XEFLASH_TEST_TORCH_XPU": str(torch_xpu.build()), "XEFLASH_CACHE_DIR": str(tmp_path)}
    done = xeflash("doctor", XEFLASH_OCLOC="/bin/false", **places)
    assert "torch cpu: ok" in done.stdout
    assert done.returncode == 1 and "attention runs" not in done.stdout, done.stdout


@pytest.mark.wide
def test_the_decode_benchmark_runs_and_names_the_device(xpu, tmp_path):
    result = tmp_path / "result.json"
    words = [
        "--context",
        "64",
        "--layers",
        "1",
        "--new-tokens",
        "4",
        "--rounds",
        "1",
        "--no-peak",
        "--dtype",
        "fp16",
        "--compare",
        "xeflash,sdpa",
    ]
    done = xeflash("bench", "decode", "--device", "xpu", *words, "--output", str(result))
    assert done.returncode == 0, done.stdout + done.stderr
    device = json.loads(result.read_text())["environment"]["device"]
    assert device.startswith(f"xpu, {torch.xpu.get_device_name()} ({xpu}, IP version ") and "driver " in device


@pytest.mark.wide
def test_the_attention_benchmark_runs(xpu):
    words = [
        "--phase",
        "prefill,decode",
        "--dtype",
        "fp16",
        "--seq",
        "64",
        "--kv-len",
        "64",
        "--rounds",
        "1",
        "--no-peak",
        "--heads",
        "2",
        "--kv-heads",
        "2",
    ]
    done = xeflash("bench", "attention", "--device", "xpu", *words)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.wide
def test_the_benchmark_of_gradients_tells_the_memory_of_a_step(xpu, tmp_path):
    file = tmp_path / "result.json"
    words = ["--phase", "train", "--dtype", "fp16", "--seq", "64", "--heads", "2", "--head-dim", "64", "--rounds", "1"]
    done = xeflash("bench", "attention", "--device", "xpu", *words, "--no-peak", "--output", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(file.read_text())["rows"]
    tensor = 2 * 64 * 64 * 2
    # The output and what rounding took from it, what q, k and v get, and numbers per row.
    assert 5 * tensor < row["peak_bytes"] < 5.5 * tensor
    assert row["eager_peak_bytes"] > row["peak_bytes"]


def test_the_benchmark_knows_what_is_free_on_xpu(xpu):
    import torch
    from xeflash.bench.environ import available_memory

    free = available_memory("xpu")
    assert free is not None and 0 < free <= torch.xpu.get_device_properties().total_memory
