"""What a call launches on a simulated GPU, which counts what its kernels execute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import plain
import pytest
import torch
import xeflash
from arrays import DTYPES, from_array, to_array, to_xpu


def launched_by(call: Callable[[], object]) -> list[Any]:
    """A record of each launch."""
    from xeflash import sim

    if not sim.enabled():
        pytest.skip("only a simulator counts instructions")
    sim.clear_launches()
    call()
    return sim.last_launches()


def launches_of_attention(rows: int, **more: Any) -> list[Any]:
    """On 1024 keys."""
    arrays = [to_array(x, "gpu") for x in plain.make(rows, 1024, 1, 2, 2, dtype=torch.bfloat16)]
    return launched_by(lambda: from_array(plain.call(*arrays, bottom_right=True, **more)[0], "gpu"))


def products_of_gradients(dtype: str = "bf16", **more: Any) -> list[int]:
    """Of dQ, with Delta, which takes all rows; of dK and dV: of 512 queries and keys."""
    q, k, v = (to_xpu(x).requires_grad_() for x in plain.make(512, 512, 1, 2, 2, dtype=DTYPES[dtype]))
    out = xeflash.attention(q, k, v, **more)

    def gradients_of() -> None:
        out.sum().backward()
        assert q.grad is not None and q.grad.cpu().isfinite().all()  # once all has run

    return [record.dpas for record in launched_by(gradients_of) if "flash_bwd" in record.kernel]
