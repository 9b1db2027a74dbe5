"""SGLang with our attention: the modules named check_, in processes that have its packages (sglang_environment.py).

The packages are fetched once, 2 GB, into the folder that XEFLASH_TEST_SGLANG names; without one, or where they cannot be had,
the tests skip and say why.
"""

import engines
import pytest
import sglang_environment
from sglang_environment import FOLDER, HERE

pytestmark = pytest.mark.first


def run_checks(*what: str) -> None:
    engines.run_checks("SGLang", "2 GB", FOLDER, sglang_environment.provide, HERE, what)


def test_engine_and_passes_on_the_cpu():
    run_checks("check_steps.py", "check_engine.py")


def test_passes_on_a_simulated_gpu(ocloc):
    run_checks("--sim", "bmg", "-m", "", "check_steps.py", "-k", "xpu and (matches or verified)")
