"""What is run: a `Cell` is one model on one input, an `Implementation` a way to compute it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

ATTENTIONS = ("xeflash", "sdpa", "eager")
CACHES = ("xe", "dynamic", "static")
LINEARS = ("torch", "xeflash")
HEADS = ("same", "fused")
# One length for each doubling up to what a machine with two cores prefills in seconds.
DEFAULT_CONTEXTS = (512, 2048, 4096, 8192)


@dataclass(frozen=True)
class Implementation:
    """An attention of Transformers and a cache, "sdpa/dynamic", and who computes linear layers."""

    attention: str
    cache: str
    linear: str = "torch"

    @property
    def name(self) -> str:
        """As given on the command line; "+linear" where xeflash computes linear layers."""
        return f"{self.attention}/{self.cache}{'+linear' * (self.linear == 'xeflash')}"


def parse_implementation(text: str) -> Implementation:
    """Return what "sdpa/static" or "sdpa" names; without a cache, each attention has its best."""
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
    """Return each implementation with each one that computes linear layers."""
    return tuple(replace(x, linear=linear) for linear in dict.fromkeys(linears) for x in implementations)


def parse_implementations(text: str) -> tuple[Implementation, ...]:
    """Return the implementations of a comma list, each once."""
    return tuple(dict.fromkeys(parse_implementation(item) for item in text.split(",")))


def with_heads(weights: Iterable[str], heads: Iterable[str]) -> tuple[str, ...]:
    """Return each kind of weights with each kind of head."""
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

    @property
    def label(self) -> str:
        """Short name for the progress bar and for messages."""
        search = f"{self.beams} beams" if self.beams > 1 else "greedy"
        quantised = "" if self.weights == "same" else f" {self.weights}"
        return f"{self.model} {self.dtype}{quantised} B{self.batch} {search} {self.context}+{self.new_tokens}"


def expand(
    models: Iterable[str],
    layers: int | None,
    dtypes: Iterable[str],
    batches: Sequence[int],
    beams: Sequence[int],
    contexts: Sequence[int],
    new_tokens: int,
    weights: Iterable[str] = ("same",),
) -> list[Cell]:
    """Return every cell, all of a model, dtype and kind of weights together."""
    choices = itertools.product(models, dtypes, weights, batches, beams, contexts)
    return [
        Cell(model, layers, dtype, batch, beam, context, new_tokens, kind)
        for model, dtype, kind, batch, beam, context in choices
    ]
