"""Drivers differ in what they do with denormals where a kernel leaves it open: those of 2024 flush them to zero.

The check `denormals=flush` compiles as they do. Our kernels state what they need, so their results stay the same.
"""

import numpy as np
import pytest
from esimd import DEVICES, Kernels, checking, load, native
from test_attention import run_tests

HALVES = np.array([2**-24, -(2**-24), 1023 * 2**-24, -3 * 2**-16, 2**-14, -1.5, 0.0, 7.0] * 2, np.float16)
FLOATS = np.array([1e-40, -1e-45, 2**-126, -(2**-126), 2**-125, 3.0, 0.0, -1e-38] * 2, np.float32)


def compiled(device, default):
    """The kernels as a compiler with this default makes them; what is kept for other tests has the usual one."""
    with checking(f"all,denormals={default}"):
        for function in (native, load):
            function.cache_clear()
        kernels = Kernels("denormals", device)
    for function in (native, load):
        function.cache_clear()
    return kernels


def results(kernels, kernel):
    widened, halved = kernels.zeros(16, np.float32), kernels.zeros(16, np.float32)
    kernels.run(kernel, kernels.array(HALVES), kernels.array(FLOATS), widened, halved)
    return widened.view().copy(), halved.view().copy()


def flushed(x, smallest):
    return np.where(np.abs(x) < smallest, np.copysign(np.float32(0), x), x).astype(np.float32)


KEPT = HALVES.astype(np.float32), FLOATS / 2
FLUSHED = flushed(HALVES.astype(np.float32), 2**-14), flushed(flushed(FLOATS, 2.0**-126) / 2, 2.0**-126)


@pytest.mark.parametrize(
    ("default", "kernel", "want"),
    [
        ("keep", "open", KEPT),
        ("keep", "keeping", KEPT),
        ("keep", "flushing", FLUSHED),
        ("flush", "open", FLUSHED),
        ("flush", "keeping", KEPT),
        ("flush", "flushing", FLUSHED),
    ],
)
@pytest.mark.parametrize("device", DEVICES)
def test_a_compilers_default_holds_for_kernels_that_leave_it_open(device, default, kernel, want):
    got = results(compiled(device, default), kernel)
    for x, y in zip(got, want, strict=True):
        assert np.array_equal(x.view(np.uint32), y.view(np.uint32))  # the signs of zeros, too


@pytest.mark.parametrize(
    ("device", "format"),
    [pytest.param(*one, marks=pytest.mark.wide) for one in [("dg2", "e4m3"), ("pvc", "int8"), ("bmg", "e5m2")]]
    + [pytest.param(device, "gpu", marks=pytest.mark.long) for device in DEVICES],  # all of them
)
def test_results_of_our_kernels_do_not_depend_on_it(device, format, ocloc):
    """Every code of a quantised cache, denormals of fp16."""
    chosen = f"read_as_its_number and {format} or fp16_denormals"
    run_tests(device, "-m", "gpu", "-k", chosen, check="all,denormals=flush", what=("attention/test_append.py",))
