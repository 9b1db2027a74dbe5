"""Room for large tests: none takes more than 60 % of the memory that is free, which others may need, too."""

from __future__ import annotations

import pytest
import torch
from xeflash import sim
from xeflash.bench import environ


def need_memory(needed: float, device: str = "cpu") -> None:
    """Skips the test that calls where so many bytes are too many."""
    if device != "cpu" and (sim.enabled() or not torch.xpu.is_available()):
        return  # simulated memory exists only where it is written; of other GPUs nobody knows what is free
    if why := environ.too_large(needed, environ.available_memory(device)):
        pytest.skip(f"the test {why}")
