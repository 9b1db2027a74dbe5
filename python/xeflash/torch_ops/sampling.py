"""``torch.ops.xeflash.sample``: tokens that are drawn from logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from xeflash import _core
from xeflash.torch_ops.forms import SAMPLE
from xeflash.torch_ops.library import register


def _sample(*arguments: Any, **more: Any) -> Tensor:
    given = {"function": "sample", **dict(zip(SAMPLE.by_place, arguments, strict=False)), **more}
    tokens: Tensor = _core.sample(**given)
    return tokens


def _fake(logits: Tensor, **_more: Any) -> Tensor:
    return logits.new_empty(logits.shape[:-1], dtype=torch.int64)


register(SAMPLE.schema, _sample, _fake, function="sample")
