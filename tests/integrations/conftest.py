"""Devices of tests that make all their tensors by torch's functions."""

import pytest


@pytest.fixture(params=["cpu", pytest.param("xpu", marks=[pytest.mark.gpu, pytest.mark.xpu])])
def device(request):
    """Tensors of the test are made on the CPU, and, where torch has it, on xpu."""
    import torch  # not before conftest.py beside this folder has given it simulated GPUs

    if request.param == "xpu":
        request.getfixturevalue("xpu")
    with torch.device(request.param):
        yield request.param
