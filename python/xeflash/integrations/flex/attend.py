"""A call of flex_attention by xeflash's attention, once its functions are snippets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from xeflash import torch_ops
from xeflash.api.route import run
from xeflash.call.call import Call
from xeflash.call.schema import BHSD
from xeflash.integrations.flex.blocks import Blocks, with_bits
from xeflash.integrations.flex.expressions import Refused
from xeflash.integrations.flex.kept import Found
from xeflash.integrations.flex.snippet import Place
from xeflash.torch_ops.library import requires_grad

_WORDS = {"q": "query", "k": "key", "v": "value", "softmax_scale": "scale"}


def attend(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Found | None, mask_mod: Found | None, blocks: Blocks | None,
    scale: float | None, return_lse: bool,
) -> tuple[Any, Any]:  # fmt: skip
    """Returns (out, LSE or None); key and value may have fewer heads, and one batch for all of the query.

    Out lies in memory as the query does, as torch's, so that models that transpose it back can view it.
    """
    batch, heads, rows, _ = query.shape
    place = Place(batch, heads, rows, key.shape[2], query.device)
    if key.shape[0] == 1 != batch:
        key, value = key.expand(batch, -1, -1, -1), value.expand(batch, -1, -1, -1)
    given: dict[str, Any] = {"function": "flex_attention", "layout": BHSD, "q": query, "k": key, "v": value}
    given |= {"enable_gqa": True, "softmax_scale": scale, "return_lse": return_lse}
    captures: dict[str, Any] = {}
    for name, found in (("score_mod", score_mod), ("mask_mod", mask_mod)):
        if found is not None and found.snippet.text:
            given[name] = found.snippet.text
            captures |= found.snippet.captures(found.tensors, place)
    if captures:
        given["captures"] = captures
    tensors = [x for x in captures.values() if isinstance(x, Tensor)]
    has_gradients = requires_grad(query, key, value, *tensors)
    if has_gradients and score_mod is not None and score_mod.snippet.traced.cuts:
        raise Refused("flex_attention: score_mod must have gradients throughout, got one with detach() or no_grad()")
    if not torch_ops.needed(query, key, value) and not has_gradients:
        out = torch.empty_like(query)
        if out.stride(-1) == 1 and value.shape[-1] == query.shape[-1]:
            given["out"] = out
    result, lse = run(with_bits(Call(given, _WORDS), blocks))
    if query.stride(1) < query.stride(2) and result.stride(1) > result.stride(2):
        result = result.transpose(1, 2).contiguous().transpose(1, 2)
    return result, lse
