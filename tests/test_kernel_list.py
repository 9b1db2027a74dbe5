"""The list of kernels that the default set may ask for, and that a test which asks for another one fails."""

import os
import re
import subprocess
import sys
from collections import Counter

import pytest
import run_report
from kernel_list import CORES, LIMITS, ROOT, device_of, listed, listed_name, unlisted
from reached import files_by_headers, reached

TEST = """
import numpy, pytest, xeflash

@pytest.mark.parametrize("dim", [64, pytest.param(57, marks=pytest.mark.wide), 55])
def test_call(dim):
    x = numpy.ones((1, 2, 2, dim), numpy.float32)
    xeflash.flash_attn_func(x, x, x)

def test_program(tmp_path):
    import subprocess, sys
    text = "import numpy, xeflash; x = numpy.ones((1, 2, 2, 54), numpy.float32); xeflash.flash_attn_func(x, x, x)"
    subprocess.run([sys.executable, "-c", text], check=True)

def test_again():
    test_call(55)
"""


def test_the_default_set_asks_for_no_more_kernels_than_it_may():
    found = Counter(map(device_of, listed()))
    assert {device: number for device, number in found.items() if number > LIMITS[device]} == {}


def test_names_have_nothing_that_a_machine_chooses():
    assert listed_name("cpu-avx512-bf16-flash_fwd-bfloat16-d192v128t4k2-q16-packed_heads") == listed_name(
        "cpu-generic-flash_fwd-bfloat16-d192v128-q64-packed_heads"
    )
    assert listed_name("bmg-linear-float16-r8n16t8-w.int8-g32-s.float16") == "bmg-linear-float16-w.int8-g32-s.float16"
    assert unlisted(["cpu-amx-bf16-flash_bwd_dq-bfloat16-d64-q32-alibi", "cpu-avx512-bf16-peak-bfloat16-d1"]) == []
    assert unlisted(["cpu-avx512-flash_fwd-float32-d64-q16", "cpu-avx512-flash_fwd-float32-d55-q16"]) == [
        "cpu-flash_fwd-float32-d55"
    ]


def test_a_change_reaches_the_tests_of_what_includes_it():
    picking, appending = (files_by_headers({header}) for header in ("attention/picks.hpp", "append.hpp"))
    assert "attention/test_picks.py" in picking["cpu"] & picking["bmg"]
    assert "attention/test_append.py" in appending["cpu"] - picking["cpu"]
    assert not files_by_headers({"xe/mma.hpp"}).keys() & {"cpu"}
    found = reached(
        ["kernels/README.md", "python/host/attention/append.cpp", "tests/plain.py", "kernels/attention/picks.hpp"]
    )
    assert {"host", "attention/test_append.py", "test_readme.py", "attention/test_chunks.py"} <= found["cpu"]
    assert "attention" not in found["cpu"] and found["bmg"] == picking["bmg"]


@pytest.mark.skipif(os.cpu_count() != CORES, reason=f"the list is for {CORES} cores")
def test_a_test_that_asks_for_another_kernel_fails(tmp_path):
    """For each test that does, in this process or in a program, whichever test was the first to compile it."""
    (tmp_path / "test_it.py").write_text(TEST)
    options = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-n0", "-p", "no:cacheprovider"]
    options += ["-m", "", "--confcutdir", str(ROOT / "tests"), "-p", "conftest", "-rE"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *filter(None, sys.path)])}
    for name in (run_report.FOLDER, "XEFLASH_KERNEL_LOG", "XEFLASH_KEEP_JOURNALS"):  # of the run that this is a part of
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)], capture_output=True, text=True, env=environment
    )
    assert "5 passed, 3 errors" in done.stdout, done.stdout[-3000:]
    for name in ("test_call[55]", "test_program", "test_again"):
        assert re.search(rf"^ERROR \S*test_it.py::{re.escape(name)}", done.stdout, re.MULTILINE)
    assert "cpu-flash_fwd-float32-d54" in done.stdout
