"""What all tests share; the modules beside it (reference, tolerance, arrays, cases) are imported by name."""

import os

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(autouse=True)
def same_random_numbers():
    """Tests draw their inputs from torch's global generator: the same ones whichever tests ran before."""
    torch.manual_seed(0)
