"""Attention shapes of well-known models, for `xeflash compile` and for tests.

The numbers are those of the published model configurations. A sliding window of W keys in such a
file is (W - 1, 0) here, because our windows count the neighbours and not the token itself.
"""

from __future__ import annotations

from typing import NamedTuple

# In the order of the sequence, or without a cache; pages in the model's dtype; pages in float8_e4m3fn.
CACHES = ("dense", "paged", "fp8")


class Features(NamedTuple):
    """The features that one kind of layer asks of the kernel; the defaults are plain full attention."""

    causal: bool = False
    window_size: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    alibi: bool = False
    sinks: bool = False


class ModelShape(NamedTuple):
    """Heads and head sizes of a model, or of a part of it; `features` has one entry per kind of layer."""

    heads_q: int
    heads_k: int
    head_dim: int
    head_dim_v: int
    features: tuple[Features, ...]
    latents: tuple[int, int] | None = None  # MLA: the head dims of K and V of one head in pages, for single queries


def _window(keys: int) -> tuple[int, int]:
    return (keys - 1, 0)


_CAUSAL = (Features(causal=True),)
_FULL = (Features(),)


def _causal_and_window(keys: int, *, softcap: float = 0.0, sinks: bool = False) -> tuple[Features, ...]:
    """Returns layers of both kinds: all earlier keys, and only the last `keys` of them."""
    return (
        Features(causal=True, softcap=softcap, sinks=sinks),
        Features(causal=True, window_size=_window(keys), softcap=softcap, sinks=sinks),
    )


SHAPES: dict[str, tuple[ModelShape, ...]] = {
    "llama-2-7b": (ModelShape(32, 32, 128, 128, _CAUSAL),),
    "llama-3-8b": (ModelShape(32, 8, 128, 128, _CAUSAL),),
    "llama-3-70b": (ModelShape(64, 8, 128, 128, _CAUSAL),),
    "qwen2.5-7b": (ModelShape(28, 4, 128, 128, _CAUSAL),),
    "qwen3-8b": (ModelShape(32, 8, 128, 128, _CAUSAL),),
    "mistral-7b": (ModelShape(32, 8, 128, 128, _causal_and_window(4096)),),  # v0.1 slides, v0.3 not
    "gemma-2-9b": (ModelShape(16, 8, 256, 256, _causal_and_window(4096, softcap=50.0)),),
    "gemma-3-4b": (ModelShape(8, 4, 256, 256, _causal_and_window(1024)),),
    "gpt-oss-20b": (ModelShape(64, 8, 64, 64, _causal_and_window(128, sinks=True)),),
    "phi-3-mini": (ModelShape(32, 32, 96, 96, _causal_and_window(2047)),),  # the 4k version slides
    "deepseek-v3": (ModelShape(128, 128, 192, 128, _CAUSAL, (576, 512)),),  # MLA: 128 + 64 rotary, 512 + 64
    "bloom-7b1": (ModelShape(32, 32, 128, 128, (Features(causal=True, alibi=True),)),),
    "gpt-j-6b": (ModelShape(16, 16, 256, 256, _CAUSAL),),
    "gpt-2": (ModelShape(12, 12, 64, 64, _CAUSAL),),
    "whisper-large-v3": (ModelShape(20, 20, 64, 64, _FULL + _CAUSAL),),  # encoder, cross; decoder
    "bert-base": (ModelShape(12, 12, 64, 64, _FULL),),
    "sd15": tuple(ModelShape(8, 8, dim, dim, _FULL) for dim in (40, 80, 160)),
    "sdxl": (ModelShape(10, 10, 64, 64, _FULL), ModelShape(20, 20, 64, 64, _FULL)),
    "flux": (ModelShape(24, 24, 128, 128, _FULL),),
}
