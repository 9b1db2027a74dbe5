"""SGLang with our attention: the modules named check_, in processes that have its packages (sglang_environment.py).

The packages are fetched once, 2 GB, into the folder that XEFLASH_TEST_SGLANG names; without one, or where they cannot be had,
the tests skip and say why.
"""

import faulthandler
import os
import subprocess
import sys

import pytest
import sglang_environment
from sglang_environment import FOLDER, HERE

SECONDS = 1200
LINES = 80  # of the output that are shown

pytestmark = pytest.mark.first


def run_checks(*what: str) -> None:
    if not os.environ.get(FOLDER):
        pytest.skip(f"{FOLDER} names no folder for SGLang's packages, of which 2 GB would be fetched")
    faulthandler.cancel_dump_traceback_later()  # pytest's limit of one test
    try:
        variables = sglang_environment.provide()
    except sglang_environment.Unavailable as error:
        pytest.skip(f"SGLang cannot be had: {error}")
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "--tb=short", "-p", "no:cacheprovider", "-rP", *what]
    done = subprocess.run(
        command, cwd=HERE, env=os.environ | variables, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode or " passed" not in done.stdout:
        tail = "\n".join(done.stdout.splitlines()[-LINES:])
        pytest.fail(f"{' '.join(command)}\nended with {done.returncode}\n{tail}\n{done.stderr[-2000:]}", pytrace=False)
    print("\n".join(line for line in done.stdout.splitlines() if line.startswith("SGLang ")))


def test_engine_and_passes_on_the_cpu():
    run_checks("check_steps.py", "check_engine.py")


def test_passes_on_a_simulated_gpu(ocloc):
    run_checks("--sim", "bmg", "-m", "", "check_steps.py", "-k", "xpu and (matches or verified)")
