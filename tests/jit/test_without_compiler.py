"""Machines without g++ and its headers."""

import hashlib
import importlib
import json
import os
import sys
from pathlib import Path

import hidden
import pytest
from xeflash import sim
from xeflash.jit import prebuilt
from xeflash.jit.kernel import render
from xeflash.jit.offline import compile_offline
from xeflash.runtime import extension
from xeflash.tune.desc import Desc

provide = importlib.import_module("xeflash.jit.provide")  # the package has the function under this name

HERE = Path(__file__).parent
needs_libcxx = pytest.mark.skipif(extension.libcxx() is None, reason="intel-sycl-rt has libc++ from 2026.2 on")


def kernels(arch):
    """One of each algorithm that differs in what it includes."""
    dims, on_cpu = (arch, "float16", 64, 64), arch.startswith("cpu")
    access = "" if on_cpu else "block2d"
    yield Desc("flash_fwd", *dims, 128, access=access)
    yield Desc("flash_decode", *dims, 4, cache="paged", page_unit=16 if on_cpu else 64, access=access)
    yield Desc("flash_bwd_dkv", *dims, 128, hooks=("SoftCap",), access=access)
    yield Desc("append", *dims, 0, access="" if on_cpu else "dwords")


def digests(arch):
    return [hashlib.sha256(compile_offline(render(desc)).binary).hexdigest() for desc in kernels(arch)]


@needs_libcxx
@pytest.mark.parametrize("arch", ["cpu-generic", pytest.param("bmg", marks=pytest.mark.wide)])
def test_kernels_are_the_same_as_with_gcc(arch):
    program = f"import json, test_without_compiler as t; print(json.dumps(t.digests({arch!r})))"
    assert json.loads(hidden.run([sys.executable, "-c", program], 300)) == digests(arch)


@needs_libcxx
def test_a_first_call_without_gcc(tmp_path):
    said = hidden.run([sys.executable, "-W", "error", HERE / "first_call.py"], 120, XEFLASH_CACHE_DIR=str(tmp_path))
    assert said.split() == ["attention", "gradients", "linear", "score_mod"]


def test_without_any_headers_errors_name_the_kernel_and_what_to_install(tmp_path):
    program = [sys.executable, HERE / "first_call.py", "expect NoCompiler"]
    said = hidden.run(program, 120, libcxx=False, XEFLASH_CACHE_DIR=str(tmp_path)).splitlines()
    assert len(said) == 4
    for line in said:
        assert "-float32-" in line and "apt install g++" in line and "intel-sycl-rt 2026.2" in line


@pytest.mark.gpu
@pytest.mark.xpu
@pytest.mark.release
def test_models_on_a_gpu_without_any_headers(xpu, gpu_family, tmp_path):
    """With the kernels of a release, of which a package that was built from its source has few."""
    import torch_xpu  # which the programs that use this module need not have

    arch, dtype = gpu_family, "float16" if gpu_family == "dg2" else "bfloat16"
    few = {*prebuilt.default_set(release=False)}
    added = (desc for desc in prebuilt.default_set(release=True) if desc not in few)
    first = next(desc for desc in added if (desc.arch, desc.dtype) == (arch, dtype))
    if prebuilt.read(provide.PREBUILT, render(first), provide.HEADERS) is None:
        pytest.skip("the package was built without XEFLASH_ALL_KERNELS (CMakeLists.txt)")
    environment = {
        "XEFLASH_CACHE_DIR": str(tmp_path),
        "XEFLASH_TEST_TORCH_XPU": str(torch_xpu.build()),
        "XEFLASH_SIM": ",".join(sim.enabled()),
        "PYTHONPATH": os.pathsep.join([str(HERE.parent / "torch_xpu" / "startup"), *filter(None, sys.path)]),
    }
    program = [sys.executable, HERE / "models_on_a_gpu.py", dtype]
    *parts, told, done = hidden.run(program, 900, libcxx=False, **environment).splitlines()
    assert done == "done" and len(parts) == 9, parts
    assert "did not compile" in told and "serves this call" in told
