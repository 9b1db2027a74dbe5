"""What Specs of the tests are chosen from, each axis once, and `run`, which calls one and judges what comes back."""

from __future__ import annotations

from functools import partial
from typing import Any

import gradients
import torch
from arrays import ArraysOf
from tolerance import by_rule
from xeflash.selftest.attention import drawn
from xeflash.selftest.attention.spec import Spec

attention = partial(Spec, entry="attention")


def gradient(dtype: str = "fp32", *dims: int, **more: Any) -> Spec:
    """Gradients, of attention() if nothing else is said."""
    return Spec(dtype, *dims, **{"entry": "attention", "grad": True} | more)


def cached(*kernel: Any, **more: Any) -> Spec:
    """Queries on a cache; ALiBi's slopes are those of each sequence."""
    usual = {"entry": "kvcache", "place": "plain", "heads": (6, 2), "rows": 1, "keys": (129, 0, 700)}
    return Spec(*kernel, **usual | {"slopes": "bh" if "alibi" in more.get("variant", "") else "h"} | more)


def documents(kind: str, keys: int) -> torch.Tensor:
    """Ids of so many positions of two sequences, or of all."""
    ids = drawn.draw(Spec(rows=keys, keys=keys, variant=f"documents={kind}")).values["document_ids"]
    return torch.from_numpy(ids.bits)


def run(spec: Spec) -> None:
    """Fails where the call is beyond its limit of the reference."""
    if spec.grad:
        gradients.run(spec)
        return
    prepared = drawn.prepare(spec, ArraysOf(spec), by_rule)
    for finding in prepared.judge(prepared.call()):
        assert finding.ok, f"{spec.id} {finding}"
