"""All implementations must agree before any is timed."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from xeflash.bench.llm.cells import Cell, Implementation
from xeflash.bench.llm.generation import cache_keyword, generate, make_cache
from xeflash.bench.llm.linears import Models

METHOD = (
    "before timing, all implementations generate from the shortest prompt: the same tokens; if not (16 bits, random "
    "weights), max |error| of the logits of the same forced tokens, against the model in fp32 (fp64 for fp32), must be "
    "at most 2 x that of the eager attention on a cache of the same type + the rounding of the largest logit"
)
_TOKENS = 8


def _logits(models: Models, cell: Cell, implementation: Implementation, prompt: Tensor, forced: Tensor) -> Tensor:
    """Returns the logits of the last token of a prompt and of those after it, fed one by one."""
    model = models.by(implementation)
    cache = make_cache(cell, implementation, model.config)
    with torch.inference_mode():
        return _forced(model, prompt, forced, cache)


def _forced(model: Any, prompt: Tensor, forced: Tensor, cache: Any) -> Tensor:
    given = {cache_keyword(model): cache}
    rows = [model(prompt, logits_to_keep=1, **given).logits]
    for token in forced[:, :-1].split(1, dim=1):
        rows.append(model(token, **given).logits)
    return torch.cat(rows, dim=1).double()


def disagreement(models: Models, cell: Cell, implementations: Sequence[Implementation], prompt: Tensor) -> str:
    """Returns what is wrong, or ""."""
    cell = replace(cell, new_tokens=min(_TOKENS, cell.new_tokens))
    tokens = {}
    for implementation in implementations:
        model = models.by(implementation)
        tokens[implementation] = generate(model, cell, prompt, make_cache(cell, implementation, model.config)).tokens
    first = next(iter(tokens.values()))
    if all(torch.equal(first, other) for other in tokens.values()):
        return ""
    exact_model = copy.deepcopy(models.torch)
    exact_model = exact_model.double() if cell.dtype == "fp32" else exact_model.float()
    plain = Implementation("eager", "dynamic")
    exact = _logits(Models(exact_model), cell, plain, prompt, first)
    del exact_model

    def error(implementation: Implementation) -> float:
        return float((_logits(models, cell, implementation, prompt, first) - exact).abs().max())

    eps = torch.finfo(next(models.torch.parameters()).dtype).eps / 2
    plain_errors = {"same": error(plain)}
    for implementation in implementations:
        got, dtype = error(implementation), implementation.cache_dtype
        if dtype not in plain_errors:
            plain_errors[dtype] = error(Implementation("eager", "xe", cache_dtype=dtype))
        allowed = 2 * plain_errors[dtype] + eps * float(exact.abs().max())
        if not got <= allowed:
            return f"{implementation}: error of logits {got:.3g}, allowed {allowed:.3g}"
    return ""
