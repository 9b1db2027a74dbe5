"""``torch.ops.xeflash.sample``: tokens that are drawn from logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from xeflash.torch_ops.forms import SAMPLE
from xeflash.torch_ops.library import register_product


def _fake(logits: Tensor, **_more: Any) -> Tensor:
    return logits.new_empty(logits.shape[:-1], dtype=torch.int64)


register_product(SAMPLE, _fake)
