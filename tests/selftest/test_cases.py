"""The cases of the self-test: right on every device, and each notices a wrong result."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import xeflash
from cover import few
from xeflash.selftest.arrays import TorchArrays, UsmArrays
from xeflash.selftest.cases import all_cases, large_cases
from xeflash.selftest.limits import limits_of
from xeflash.selftest.values import Values

CASES = all_cases()
FEW = list(CASES)[::16]


class Off(TorchArrays):
    """Reads floats with one element off by an eighth of the largest."""

    def get(self, array):
        values = super().get(array)
        if not values.dtype.startswith(("float", "bfloat")):
            return Values(values.bits ^ 1, values.dtype)
        numbers = values.numbers.copy()
        finite = np.isfinite(numbers)
        worst = np.unravel_index(np.argmax(np.where(finite, np.abs(numbers), -1)), numbers.shape)
        numbers[worst] *= 1.125
        return Values.of(numbers, values.dtype)


class AllOff(TorchArrays):
    """Reads all of them an eighth too large."""

    def get(self, array):
        values = super().get(array)
        return Values.of(values.numbers * 1.125, values.dtype)


def wrong(case, arrays):
    prepared = case.prepare(arrays)
    return [str(finding) for finding in prepared.judge(prepared.call()) if not finding.ok]


def test_there_are_about_a_hundred_of_all_algorithms():
    assert 90 <= len(CASES) <= 150
    assert {name.split()[0] for name in CASES} == {
        "forward", "varlen", "decode", "cache", "merge", "gradient", "probabilities", "linear",
        "matmul_softmax", "loss", "top_k", "sample",
    }  # fmt: skip
    for word in ("fp32", "bf16", "fp16", "causal", "window", "sinks", "softcap", "alibi", "mask", "dropout", "snippet",
                 "documents", "chunk", "paged16", "beams", "index", "pad", "e4m3", "e5m2", "int8", "int4", "rotary",
                 "splits", "new"):  # fmt: skip
        assert any(word in name for name in CASES), word


GRADIENTS = [name for name in CASES if name.startswith(("gradient", "probabilities"))]


def test_the_backward_pass_is_there_with_all_that_has_kernels_of_its_own():
    words = ("gradient fp32", "gradient bf16", "gradient fp16", "causal", "bias32", "hidden lowest", "alibi",
             "documents", "sinks", "dropout", "probabilities")  # fmt: skip
    for word in words:
        assert any(word in name for name in GRADIENTS), word


ON_CPU = """
from xeflash.selftest.arrays import TorchArrays
from xeflash.selftest.cases import all_cases
for name, case in all_cases().items():
    if name.startswith(("gradient", "probabilities")):
        case.prepare(TorchArrays("cpu")).call()
"""


def test_every_algorithm_of_the_backward_pass_of_a_cpu_is_loaded(tmp_path):
    log = tmp_path / "log"
    environment = {**os.environ, "XEFLASH_KERNEL_LOG": str(log)}
    subprocess.run([sys.executable, "-c", ON_CPU], check=True, env=environment, timeout=300)
    loaded = log.read_text()
    for algorithm in ("flash_bwd", "flash_bwd_bias", "flash_bwd_heads", "attention_probs"):
        assert re.search(rf"\b{algorithm}\b", loaded), algorithm


@pytest.mark.parametrize("name", few(CASES, *FEW, *GRADIENTS))
def test_right_results_are_found_right_and_wrong_ones_wrong(name):
    assert wrong(CASES[name], TorchArrays("cpu")) == []
    assert wrong(CASES[name], Off("cpu"))


@pytest.mark.parametrize("name", sorted({*FEW, *GRADIENTS}))
def test_without_torch(name):
    assert xeflash.attention  # loads the extension
    from xeflash import _core

    assert wrong(CASES[name], UsmArrays(_core.host_queue(), on_gpu=False)) == []


@pytest.mark.gpu
@pytest.mark.parametrize("name", few(FEW + GRADIENTS, *FEW[::8]))
def test_on_a_gpu(name, gpu):
    from xeflash import _core

    index = next(i for i, device in enumerate(_core.devices()) if device["backend"] == "level_zero")
    assert wrong(CASES[name], UsmArrays(_core.new_queue(index), on_gpu=True)) == []


@pytest.mark.xpu
@pytest.mark.parametrize(
    "name", few(FEW, *FEW[::8]) + [pytest.param(name, marks=pytest.mark.long) for name in CASES if name not in FEW]
)
def test_on_tensors_of_torch_on_xpu(name, xpu):
    assert wrong(CASES[name], TorchArrays("xpu")) == []


LARGE = list(large_cases(on_gpu=False))


@pytest.mark.parametrize(
    "name", few(LARGE, *(name for name in LARGE if "fp32 d128" not in name and "decode bf16 d128" not in name))
)
def test_large_cases_are_right(name):
    assert wrong(large_cases(on_gpu=False)[name], TorchArrays("cpu")) == []
    assert wrong(large_cases(on_gpu=False)[name], AllOff("cpu"))


def test_limits_are_those_of_the_device():
    assert limits_of("Intel(R) Arc(TM) B580 Graphics", 160).gbytes_per_s == 456
    assert limits_of("Intel(R) Data Center GPU Max 1550", 1024).tflops_16 == 2 * 419.4
    assert limits_of("Intel(R) Data Center GPU Max 1550", 512).tflops_16 == 419.4
    assert limits_of("AMD EPYC", 2) is None
