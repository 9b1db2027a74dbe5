"""One call of generate, with a stopwatch."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from xeflash.bench.forms import synchronizer
from xeflash.bench.llm.cells import Cell, Implementation
from xeflash.bench.memory import PeakMemory


@dataclass(frozen=True)
class Generation:
    """The tokens of a call of generate, and the seconds that it took."""

    tokens: Tensor  # (batch, new tokens)
    first: float  # until the scores of the first new token
    steps: tuple[float, ...]  # between those of one token and the next
    total: float
    peak_bytes: int | None  # of memory, above what was there before


class _Stopwatch:
    """A logits processor that notes when it is called, and changes nothing."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self.times: list[float] = []
        self._synchronize = synchronize

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002
        self._synchronize()
        self.times.append(time.perf_counter())
        return scores


_CACHE_DTYPES = {"same": None, "fp8": torch.float8_e4m3fn, "int8": torch.int8, "k8v4": "k8v4"}


def make_cache(cell: Cell, way: Implementation, config: Any) -> Any:
    """Returns an empty cache for a cell, with room for all of its tokens."""
    import transformers

    length = cell.context + cell.new_tokens
    if way.cache == "static":
        return transformers.StaticCache(config=config, max_cache_len=length)
    if way.cache == "dynamic":
        return transformers.DynamicCache(config=config)
    from xeflash.integrations.transformers import XeCache

    return XeCache(config, max_cache_len=length, dtype=_CACHE_DTYPES[way.cache_dtype])


def cache_keyword(model: Any) -> str:
    """Returns the argument of a model, and of generate, that is its cache: cache from Transformers 5.24 on."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def use(model: Any, implementation: Implementation) -> None:
    """Makes the model compute its attention that way."""
    use_attention(model, implementation.attention)


def use_attention(model: Any, name: str) -> None:
    """Makes the model compute its attention by xeflash, sdpa or eager."""
    if name == "xeflash":
        from xeflash.integrations.transformers import register

        name = register()
    model.set_attn_implementation(name)


def random_tokens(batch: int, length: int, vocabulary: int, device: str, seed: int) -> Tensor:
    """Returns tokens (batch, length)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocabulary, (batch, length), generator=generator).to(device)


def prompt_of(cell: Cell, vocabulary: int, device: str, seed: int) -> Tensor:
    """Returns random tokens (batch, context)."""
    return random_tokens(cell.batch, cell.context, vocabulary, device, seed)


def generate(model: Any, cell: Cell, prompt: Tensor, cache: Any) -> Generation:
    """Generates the cell's new tokens, greedily or by beam search."""
    device = prompt.device.type
    synchronize = synchronizer(device)
    watch = _Stopwatch(synchronize)
    memory = PeakMemory(device)
    synchronize()
    start = time.perf_counter()
    tokens = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=cell.new_tokens,
        min_new_tokens=cell.new_tokens,
        do_sample=False,
        num_beams=cell.beams,
        logits_processor=[watch],
        disable_compile=True,
        **{cache_keyword(model): cache},
    )
    synchronize()
    total = time.perf_counter() - start
    steps = tuple(b - a for a, b in zip(watch.times, watch.times[1:], strict=False))
    return Generation(tokens[:, cell.context :], watch.times[0] - start, steps, total, memory.bytes())
