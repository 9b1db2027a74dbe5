"""Attention on each simulated GPU: the tests of it in processes of their own, which have two of that device.

Every test runs on one of them, so that a machine with two slow cores gets through; all on each with `-m long`, or with
`pytest --sim DEVICE tests`. Most of the time is compiling: some 4 s per kernel on a cold cache
(XEFLASH_CACHE_DIR). Which device runs which test: dealing.py.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from dealing import DEVICES, PARTS, device_of

TESTS = Path(__file__).resolve().parent.parent
WHAT = ("attention", "cli", "fuzz", "integrations", "jit", "python", "selftest", "xpu")
LINES = 80  # of the output that are shown


def run_tests(device: str, *options: str, check: str = "all,spills", what: tuple[str, ...] = WHAT) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "--tb=short", "-p", "no:cacheprovider", "--sim", device]
    command += [*options, *(str(TESTS / path) for path in what)]
    environment = os.environ | {"XEFLASH_SIM_CHECK": check}
    done = subprocess.run(command, cwd=TESTS.parent, env=environment, capture_output=True, text=True)
    if done.returncode or " passed" not in done.stdout:  # tests that were all skipped show nothing
        tail = "\n".join(done.stdout.splitlines()[-LINES:])
        pytest.fail(f"{' '.join(command)}\nended with {done.returncode}\n{tail}\n{done.stderr[-2000:]}", pytrace=False)


@pytest.mark.parametrize(("part", "device"), [(part, device_of(part)) for part in range(1, PARTS + 1)])
def test_attention_matches_reference(part, device, ocloc):
    run_tests(device, "--part", f"{part}/{PARTS}")


@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("part", range(1, PARTS + 1))
def test_attention_matches_reference_long(part, device, ocloc):
    run_tests(device, "-m", "long or not long", "--part", f"{part}/{PARTS}")
