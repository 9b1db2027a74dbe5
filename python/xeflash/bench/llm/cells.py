"""Cells of language models: a `Cell` or `TrainCell` is a model on one input, an `Implementation` computes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

ATTENTIONS = ("xeflash", "sdpa", "eager")
CACHES = ("xe", "dynamic", "static")
CACHE_DTYPES = ("same", "fp8", "int8", "k8v4")
LINEARS = ("torch", "xeflash")
HEADS = ("same", "fused")
# One length for each doubling up to what a machine with two cores prefills in seconds.
DEFAULT_CONTEXTS = (512, 2048, 4096, 8192)


@dataclass(frozen=True)
class Implementation:
    """An attention of Transformers and a cache, "sdpa/dynamic", who computes linear layers, and the cache's type."""

    attention: str
    cache: str
    linear: str = "torch"
    cache_dtype: str = "same"

    def __str__(self) -> str:
        """Returns the name on the command line, ":int8" for a cache of that type, "+linear" for layers by xeflash."""
        dtype = "" if self.cache_dtype == "same" else f":{self.cache_dtype}"
        return f"{self.attention}/{self.cache}{dtype}{'+linear' * (self.linear == 'xeflash')}"


OURS = Implementation("xeflash", "xe")


def parse_implementation(text: str) -> Implementation:
    """Returns what "sdpa/static" or "sdpa" names; without a cache, each attention has its best."""
    attention, _, cache = text.strip().partition("/")
    cache = cache or ("xe" if attention == "xeflash" else "dynamic")
    if attention not in ATTENTIONS:
        raise ValueError(f"an attention is one of {', '.join(ATTENTIONS)}, got {attention!r}")
    if cache not in CACHES:
        raise ValueError(f"a cache is one of {', '.join(CACHES)}, got {cache!r}")
    if cache == "xe" and attention != "xeflash":
        raise ValueError(f"the cache xe is for the attention xeflash, got {text!r}")
    return Implementation(attention, cache)


def with_linears(implementations: Iterable[Implementation], linears: Iterable[str]) -> tuple[Implementation, ...]:
    """Returns each implementation with each one that computes linear layers."""
    return tuple(replace(x, linear=linear) for linear in dict.fromkeys(linears) for x in implementations)


def with_cache_dtypes(implementations: Iterable[Implementation], dtypes: Iterable[str]) -> tuple[Implementation, ...]:
    """Returns each implementation; those that have the cache xe, with each of these types."""
    return tuple(
        replace(x, cache_dtype=dtype)
        for x in implementations
        for dtype in (dict.fromkeys(dtypes) if x.cache == "xe" else ("same",))
    )


def parse_implementations(text: str) -> tuple[Implementation, ...]:
    """Returns the implementations of a comma list, each once."""
    return tuple(dict.fromkeys(parse_implementation(item) for item in text.split(",")))


def with_heads(weights: Iterable[str], heads: Iterable[str]) -> tuple[str, ...]:
    """Returns each kind of weights with each kind of head."""
    kinds = [kind + "+head" * (head == "fused") for kind in weights for head in dict.fromkeys(heads)]
    if "same+head" in kinds:
        raise ValueError("bench: --lm-head fused needs --weights int8 or int4, which the head then has, too, got same")
    return tuple(kinds)


@dataclass(frozen=True)
class Cell:
    """A model, and the prompt and tokens that it is run on."""

    model: str
    layers: int | None  # None: all
    dtype: str
    batch: int
    beams: int
    context: int
    new_tokens: int
    weights: str = "same"  # of linear layers: the dtype; or int8, int4; "+head": of the model's head, too
    section: ClassVar[str] = "decode"

    @property
    def label(self) -> str:
        """Returns a short name for the progress bar and for messages."""
        search = f"{self.beams} beams" if self.beams > 1 else "greedy"
        quantised = "" if self.weights == "same" else f" {self.weights}"
        return f"{self.model} {self.dtype}{quantised} B{self.batch} {search} {self.context}+{self.new_tokens}"


@dataclass(frozen=True)
class TrainCell:
    """A model, and the tokens of its training steps."""

    model: str
    layers: int | None  # None: all
    dtype: str
    batch: int
    seq: int
    checkpointing: bool
    weights: ClassVar[str] = "same"
    section: ClassVar[str] = "train"

    @property
    def label(self) -> str:
        """Returns a short name for the progress bar and for messages."""
        return f"{self.model} {self.dtype} B{self.batch} {self.seq}{' checkpointing' if self.checkpointing else ''}"
