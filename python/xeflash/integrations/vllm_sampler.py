"""vLLM's sampler draws tokens by ``xeflash.sample``, which finds top_k and top_p without a sort of the vocabulary.

    XEFLASH_VLLM_SAMPLER=1 vllm serve MODEL        # on CPUs and XPU, with any attention backend

vLLM applies penalties, masks, temperature and min_p before it asks for tokens. Each row of a step gets a new seed: from
its request's generator if the request has a seed, else from the generator of the device. So a request with a seed gets
the same tokens in every batch, and nothing waits for the device. vLLM's second model runner keeps a seed and a position
for each row; there these are used.

vLLM's own sampler stays, with a warning, where it has to give processed logits or log-probabilities, a mask of the kept
tokens, or noise in float64. On CPUs it also draws for batches with top_k alone and without seeds: it is faster there.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from xeflash import sample

_PROCESSED = ("processed_logits", "processed_logprobs")


def install() -> None:
    """Makes vLLM's new samplers draw by ``xeflash.sample``; a second call changes nothing."""
    _give("vllm.v1.sample.ops.topk_topp_sampler", "TopKTopPSampler", "forward", _draw)
    if importlib.import_module("vllm.triton_utils").HAS_TRITON:  # else vLLM has no use for its second model runner
        _give("vllm.v1.worker.gpu.sample.sampler", "Sampler", "_sample_random", _draw_in_second_runner)


def _give(module: str, name: str, method: str, draw: Callable[..., Any]) -> None:
    """Makes new instances of a class use `draw` in place of a method, which `draw` gets before the arguments."""
    kind = getattr(importlib.import_module(module), name)
    make, theirs = kind.__init__, getattr(kind, method, None)
    if theirs is None or getattr(make, "gives_xeflash", False):  # vLLM before 0.30 lacks the second one's method
        return

    @functools.wraps(make)
    def __init__(self: Any, *given: Any, **named: Any) -> None:
        make(self, *given, **named)
        if getattr(type(self), method) is not theirs:  # a subclass draws in a way of its own, such as a watermark's
            return
        if reasons := _why_not(self):
            why = ", ".join(reasons)
            logging.getLogger("vllm.xeflash").warning("xeflash leaves draws to vLLM's own sampler: %s", why)
            return
        setattr(self, method, functools.partial(draw, getattr(self, method)))

    __init__.gives_xeflash = True  # type: ignore[attr-defined]
    kind.__init__ = __init__


def _why_not(sampler: Any) -> list[str]:
    """Returns why a sampler of vLLM cannot draw by ours: what it was asked for besides tokens."""
    reasons = {
        f"logprobs_mode = {sampler.logprobs_mode}": sampler.logprobs_mode in _PROCESSED,
        "use_fp64_gumbel = True": sampler.use_fp64_gumbel,
        "return_sampling_mask = True": getattr(sampler, "return_sampling_mask", False),
    }
    return [reason for reason, holds in reasons.items() if holds]


def _draw(
    theirs: Callable[..., Any],
    logits: Tensor,
    generators: dict[int, torch.Generator],
    k: Tensor | None,
    p: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Draws a token for each row of logits in the place of TopKTopPSampler's forward; returns the tokens and None."""
    if logits.device.type == "cpu" and k is not None and p is None and not generators:
        found: tuple[Tensor, Tensor | None] = theirs(logits, generators, k, p)
        return found
    seeds = torch.empty(len(logits), dtype=torch.int64, device=logits.device).random_()
    for row, generator in generators.items():
        seeds[row].random_(generator=generator)
    return _tokens(logits, k, p, seed=seeds), None


def _draw_in_second_runner(
    theirs: Any,
    logits: Tensor,
    request_of_row: Tensor,
    _requests: Any,
    position: Tensor,
    top_k: Tensor | None,
    top_p: Tensor | None,
    *_fused: Any,
) -> tuple[Tensor, Tensor]:
    """Draws a token for each row in the place of the second runner's method; returns the tokens and the logits."""
    states = theirs.__self__.sampling_states
    seed = states.seeds.gpu[request_of_row]
    temperature = (states.temperature.gpu[request_of_row] != 0).float()  # is applied already; 0 takes the largest logit
    return _tokens(logits, top_k, top_p, seed=seed, position=position.long(), temperature=temperature), logits


def _tokens(logits: Tensor, top_k: Tensor | None, top_p: Tensor | None, **rows: Tensor) -> Tensor:
    """Returns a token for each row of logits, drawn from what top_k and top_p leave; None leaves all."""
    limited = {"top_k": 0 if top_k is None else top_k.int(), "top_p": 1.0 if top_p is None else top_p.float()}
    tokens: Tensor = sample(logits, **{**limited, **rows})
    return tokens.clamp_(min=0)  # a row without finite logits has -1, which to vLLM is the place of no token
