"""``torch.ops.xeflash.write_to_cache``: keys and values that are written to slots of a cache."""

from __future__ import annotations

from typing import Any

from xeflash.torch_ops.forms import WRITE_TO_CACHE
from xeflash.torch_ops.library import register_product


def _fake(**_given: Any) -> None:
    """Returns no results."""


register_product(WRITE_TO_CACHE, _fake, mutates=WRITE_TO_CACHE.written)
