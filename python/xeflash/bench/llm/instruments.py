"""Instruments: the time that a generation spends in attention, and the bytes that its cache copies.

They have passes of their own, as they disturb what they measure.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from xeflash.bench.forms import synchronizer

_CACHE_METHODS = ("update", "reorder_cache")


@dataclass
class Attention:
    """Seconds in the attention function and in the cache's methods, of the steps after the first token."""

    seconds: float = 0.0
    counts: bool = False

    def timed(self, function: Callable[..., Any], synchronize: Callable[[], None]) -> Callable[..., Any]:
        """Returns the function with its time added up."""

        def call(*arguments: Any, **options: Any) -> Any:
            synchronize()
            start = time.perf_counter()
            result = function(*arguments, **options)
            synchronize()
            if self.counts:
                self.seconds += time.perf_counter() - start
            return result

        return call


@contextmanager
def attention_replaced(model: Any, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Replaces the model's attention function, whichever it is set to, by `change` of it."""
    from transformers import AttentionInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = model.config._attn_implementation
    if name == "eager":  # not registered: a function of the model's own module
        module = sys.modules[type(model).__module__]
        function = module.eager_attention_forward
        module.eager_attention_forward = change(function)  # type: ignore[attr-defined]
        try:
            yield
        finally:
            module.eager_attention_forward = function  # type: ignore[attr-defined]
        return
    function = ALL_ATTENTION_FUNCTIONS[name]
    AttentionInterface.register(name, change(function))
    try:
        yield
    finally:
        AttentionInterface.register(name, function)


@contextmanager
def attention_timed(model: Any, cache: Any, device: str) -> Iterator[Attention]:
    """Measures the attention of generations with this cache."""
    synchronize = synchronizer(device)
    measured = Attention()
    first = model.register_forward_hook(lambda *_: setattr(measured, "counts", True))  # not the prompt's
    for name in _CACHE_METHODS:
        setattr(cache, name, measured.timed(getattr(cache, name), synchronize))
    try:
        with attention_replaced(model, lambda function: measured.timed(function, synchronize)):
            yield measured
    finally:
        first.remove()
        for name in _CACHE_METHODS:
            delattr(cache, name)


class _Written(TorchDispatchMode):  # type: ignore[misc]
    """Counts the bytes of new tensors and of those written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        schema = func._schema
        if isinstance(result, torch.Tensor) and not (schema.returns and schema.returns[0].alias_info):
            self.bytes += result.nbytes
        elif schema.is_mutable and args and isinstance(args[0], torch.Tensor):
            self.bytes += args[0].nbytes if len(args) < 2 or not isinstance(args[-1], torch.Tensor) else args[-1].nbytes
        return result


@contextmanager
def copies_counted(cache: Any) -> Iterator[Callable[[], int]]:
    """Counts the bytes that torch's operations in the cache's methods write: `torch.cat`, `index_select` and such."""
    written = _Written()

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with written:
                return function(*arguments, **options)

        return call

    for name in _CACHE_METHODS:
        setattr(cache, name, counted(getattr(cache, name)))
    try:
        yield lambda: written.bytes
    finally:
        for name in _CACHE_METHODS:
            delattr(cache, name)
