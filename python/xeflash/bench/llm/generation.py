"""One call of generate, with a stopwatch."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from xeflash.bench.forms import synchronizer
from xeflash.bench.llm.cells import Cell, Implementation


@dataclass(frozen=True)
class Generation:
    """What a call of generate gave and took; times are seconds."""

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


class PeakMemory:
    """The most memory in use since it was made, in bytes above what was in use then."""

    def __init__(self, device: str) -> None:
        """Begin."""
        self._device = device
        if device.startswith("xpu"):
            torch.xpu.reset_peak_memory_stats()
            self._before = int(torch.xpu.memory_allocated())
            return
        try:
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is resident now
            self._before = self._status("VmRSS")
        except OSError:
            self._before = -1

    @staticmethod
    def _status(name: str) -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return 1024 * int(line.split()[1])
        raise OSError(f"no {name} in /proc/self/status")

    def bytes(self) -> int | None:
        """Return it; None where the system does not tell."""
        if self._device.startswith("xpu"):
            return int(torch.xpu.max_memory_allocated()) - self._before
        return self._status("VmHWM") - self._before if self._before >= 0 else None


def make_cache(cell: Cell, cache: str, config: Any) -> Any:
    """Return an empty cache for a cell, with room for all of its tokens."""
    import transformers

    length = cell.context + cell.new_tokens
    if cache == "static":
        return transformers.StaticCache(config=config, max_cache_len=length)
    if cache == "dynamic":
        return transformers.DynamicCache(config=config)
    from xeflash.integrations.transformers import XeCache

    return XeCache(config, max_cache_len=length)


def cache_keyword(model: Any) -> str:
    """Return the argument of a model, and of generate, that is its cache: cache from Transformers 5.24 on."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def use(model: Any, implementation: Implementation) -> None:
    """Make the model compute its attention that way."""
    use_attention(model, implementation.attention)


def use_attention(model: Any, name: str) -> None:
    """Make the model compute its attention by xeflash, sdpa or eager."""
    if name == "xeflash":
        from xeflash.integrations.transformers import register

        name = register()
    model.set_attn_implementation(name)


def random_tokens(batch: int, length: int, vocabulary: int, device: str, seed: int) -> Tensor:
    """Return tokens (batch, length)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocabulary, (batch, length), generator=generator).to(device)


def prompt_of(cell: Cell, vocabulary: int, device: str, seed: int) -> Tensor:
    """Return random tokens (batch, context)."""
    return random_tokens(cell.batch, cell.context, vocabulary, device, seed)


def generate(model: Any, cell: Cell, prompt: Tensor, cache: Any) -> Generation:
    """Generate the cell's new tokens, greedily or by beam search."""
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
