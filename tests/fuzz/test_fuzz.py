"""A sample of random calls; `python -m tests.fuzz` runs any number."""

import pytest

pytest.importorskip("dpctl", reason="its USM arrays are one kind")

from .run import Run, outcomes


def check(run):
    """Every case has the outcome that is known beforehand."""
    faults = [message for message in outcomes(run) if message["outcome"] in ("wrong", "died")]
    texts = (f"{fault['function']}: {fault['text']}\n  {run.replay(fault['number'])}" for fault in faults[:10])
    assert not faults, f"{len(faults)} of {run.cases}:\n" + "\n".join(texts)


def device_of(request):
    """The simulated one of this run, or the card that is there."""
    return request.config.getoption("--sim") or "gpu"


def test_random_calls():
    check(Run(seed=75, cases=100, width="narrow"))


@pytest.mark.parametrize("cases", [600, pytest.param(4800, marks=pytest.mark.long)])
@pytest.mark.parametrize("function", ["attention", "flash_attn_varlen_func"])
def test_random_calls_of_every_size(function, cases):
    """Of these numbers one in ten is a case of attention, one in fifteen of the other one."""
    check(Run(seed=3, cases=cases, width="sweep", function=function))


@pytest.mark.parametrize("function", ["linear", "matmul_softmax", "linear_cross_entropy", "linear_top_k", "sample"])
def test_random_calls_of_products(function):
    """Of twenty of these numbers one is a case of linear, of thirty one of another function."""
    check(Run(seed=4, cases=600, width="narrow", function=function))


@pytest.mark.wide
def test_more_random_calls():
    check(Run(seed=1, cases=500, width="narrow"))


@pytest.mark.wide
@pytest.mark.gpu
def test_random_calls_on_gpu(gpu, request):
    check(Run(cases=4, width="narrow", device=device_of(request)))


@pytest.mark.long
def test_random_calls_of_many_kernels():
    check(Run(seed=2000, cases=2_000, width="wide"))
