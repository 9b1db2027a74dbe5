"""The tests marked gpu, on each simulated GPU: in processes of their own, which have two of that device.

Every such test runs on one of them (dealing.py), so that a machine with two slow cores gets through; `pytest --sim DEVICE`
runs all on one. Most of the time is compiling.
"""

import faulthandler
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dealing import DEVICES

TESTS = Path(__file__).resolve().parent.parent
WHAT = ("attention", "cli", "distributed", "fuzz", "integrations", "jit", "products", "python", "selftest", "xpu")
LINES = 80  # of the output that are shown
SECONDS = 2400  # when no kernel is kept

pytestmark = [pytest.mark.first, pytest.mark.parametrize("device", DEVICES)]


def run_tests(
    device: str, *options: str, shard: str = "", check: str = "all,spills", what: tuple[str, ...] = WHAT
) -> None:
    """Of a shard those that are dealt to the device."""
    faulthandler.cancel_dump_traceback_later()  # pytest's limit of one test: those that begin here have theirs
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "--tb=short", "-p", "no:cacheprovider", "--sim", device]
    command += ["--dealt", "--shard", shard] if shard else []
    command += [*options, *(str(TESTS / path) for path in what)]
    environment = os.environ | {"XEFLASH_SIM_CHECK": check}
    done = subprocess.run(
        command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED and shard not in ("", "1/1"):
        return  # some parts have none for some device
    if done.returncode or " passed" not in done.stdout:  # tests that were all skipped show nothing
        tail = "\n".join(done.stdout.splitlines()[-LINES:])
        pytest.fail(f"{' '.join(command)}\nended with {done.returncode}\n{tail}\n{done.stderr[-2000:]}", pytrace=False)


def test_default_set(device, ocloc, pytestconfig):
    sample = TESTS / "attention/test_sample.py"  # of what is in other files
    run_tests(device, f"--ignore={sample}", shard=pytestconfig.option.shard)


@pytest.mark.wide
def test_wide_set(device, ocloc, pytestconfig):
    run_tests(device, "-m", "wide", shard=pytestconfig.option.shard)
