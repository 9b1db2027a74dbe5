"""Kernels of bf16 follow what the CPU's instructions were measured to do, once for a CPU."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from xeflash import _core
from xeflash.runtime.cpu_rates import NAMES, kept

SLOW_PAIRS = {"fp32": 100e9, "pairs": 50e9, "tiles": 0.0}  # some of Intel's cores
FAST_PAIRS = {"fp32": 100e9, "pairs": 200e9, "tiles": 0.0}  # AMD's
TILES = {"fp32": 100e9, "pairs": 50e9, "tiles": 1600e9}
ARCHS = """
import sys, json
from xeflash import _core
for rates in json.loads(sys.argv[1]):
    _core.set_cpu_rates(**rates)
    print(next(device["arch"] for device in _core.devices() if device["type"] == "cpu"))
"""


def archs(*rates, **environment):
    """Of kernels for the CPU that the driver is told to pretend, at each of some rates."""
    done = subprocess.run(
        [sys.executable, "-c", ARCHS, json.dumps(rates)],
        env={**{k: v for k, v in os.environ.items() if k != "XEFLASH_CPU"}, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.split() or done.stderr


def test_the_faster_instruction_is_taken():
    tiles = "cpu-amx-bf16" if "cpu-amx-bf16" in archs(TILES, CL_CONFIG_CPU_TARGET_ARCH="spr") else "cpu-avx512"
    found = archs(SLOW_PAIRS, FAST_PAIRS, TILES, CL_CONFIG_CPU_TARGET_ARCH="spr")
    assert found == ["cpu-avx512", "cpu-avx512-bf16", tiles]
    assert archs(FAST_PAIRS, TILES, CL_CONFIG_CPU_TARGET_ARCH="skx") == ["cpu-avx512"] * 2  # it has neither
    assert archs(FAST_PAIRS, TILES, CL_CONFIG_CPU_TARGET_ARCH="core-avx2") == ["cpu-generic"] * 2


def test_a_variable_names_another():
    def named(name):
        return archs(SLOW_PAIRS, CL_CONFIG_CPU_TARGET_ARCH="spr", XEFLASH_CPU=name)

    assert [named(name) for name in ("generic", "avx512", "avx512-bf16")] == [
        ["cpu-generic"], ["cpu-avx512"], ["cpu-avx512-bf16"],
    ]  # fmt: skip
    assert "XEFLASH_CPU must be one of generic, avx512, avx512-bf16" in named("vnni")
    assert "on this CPU, got 'avx512'" in archs(SLOW_PAIRS, CL_CONFIG_CPU_TARGET_ARCH="core-avx2", XEFLASH_CPU="avx512")


def test_rates_are_those_of_a_core():
    rates = _core.measure_cpu_rates()
    assert tuple(rates) == NAMES and 1e9 < rates["fp32"] < 1e12
    flags = re.search(r"^flags.*", Path("/proc/cpuinfo").read_text(), re.MULTILINE)[0].split()
    assert (rates["pairs"] > 0) == ("avx512_bf16" in flags)
    assert bool(_core.cpu_with_a_choice()) == ("avx512_bf16" in flags)


def test_a_cpu_is_measured_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XEFLASH_CACHE_DIR", str(tmp_path))
    assert kept("a CPU", lambda: SLOW_PAIRS) == SLOW_PAIRS
    assert kept("a CPU", lambda: FAST_PAIRS) == SLOW_PAIRS
    assert kept("another", lambda: FAST_PAIRS) == FAST_PAIRS
    assert kept("a CPU", lambda: FAST_PAIRS) == SLOW_PAIRS


@pytest.mark.parametrize("content", ["", "[]", '{"a CPU": 3}', '{"a CPU": {"fp32": 1}}', "\xff"])
def test_what_is_no_measurement_is_made_again(tmp_path, monkeypatch, content):
    monkeypatch.setenv("XEFLASH_CACHE_DIR", str(tmp_path))
    file = tmp_path / "cpu-rates.json"
    file.write_bytes(content.encode("latin-1"))
    file.chmod(0o600)
    assert [kept("a CPU", lambda: SLOW_PAIRS) for _ in range(2)] == [SLOW_PAIRS] * 2
    assert json.loads(file.read_text()) == {"a CPU": SLOW_PAIRS}


def test_without_a_folder_it_is_measured_each_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XEFLASH_CACHE_DIR", str(tmp_path / "file"))
    assert kept("a CPU", lambda: SLOW_PAIRS) == SLOW_PAIRS
    assert kept("a CPU", lambda: FAST_PAIRS) == FAST_PAIRS
