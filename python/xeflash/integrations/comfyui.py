"""xeflash as an attention function of ComfyUI, and the node that gives it to a model.

    xeflash comfyui ~/ComfyUI        # writes custom_nodes/ComfyUI-xeflash, which imports this module

The node "xeflash attention" takes a MODEL and returns a clone of it whose attention is xeflash's, by ComfyUI's
``optimized_attention_override``. Programs ask for the function by name: ``get_attention_function("xeflash")``.

Results equal those of ComfyUI's ``attention_pytorch``. Calls that xeflash refuses, also for unknown keywords, go to
that function, with one warning for each reason. The first call of each type, head dim and device that xeflash serves
is logged, too: it is the sign that the node works.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from xeflash import attention

NAME = "xeflash"
_OVERRIDE = "optimized_attention_override"
# low_precision_attention=False asks for what is so here: no call is quantised. The last two are the wrapper's own.
_KEYWORDS = {"scale", "enable_gqa", "low_precision_attention", "transformer_options", "_inside_attn_wrapper"}


def attention_xeflash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: int,
    mask: Tensor | None = None,
    attn_precision: torch.dtype | None = None,
    skip_reshape: bool = False,
    skip_output_reshape: bool = False,
    **kwargs: Any,
) -> Tensor:
    """Computes ComfyUI's attention of q, k and v, each (batch, tokens, heads * head_dim), in the same layout.

    Args:
        mask: boolean (True takes part) or additive, of 2 (queries, keys), 3 (batch first) or 4 dimensions.
        attn_precision: the least precision of scores; they are in fp32 in any case.
        skip_reshape: q, k and v are (batch, heads, tokens, head_dim).
        skip_output_reshape: the result is to be (batch, heads, tokens, head_dim).
    """
    try:
        if unknown := kwargs.keys() - _KEYWORDS:
            raise NotImplementedError(
                f"attention_xeflash: keywords must be of {sorted(_KEYWORDS)}, got {sorted(unknown)}"
            )
        given = (q, k, v) if skip_reshape else _by_heads(q, k, v, heads)
        out = _attend(*given, mask, kwargs.get("scale"), kwargs.get("enable_gqa", False))
    except (NotImplementedError, TypeError, ValueError) as reason:
        _log(logging.WARNING, f"{reason}; ComfyUI's attention_pytorch serves the call")
        by_torch = _comfy().attention_pytorch
        kwargs["_inside_attn_wrapper"] = True  # or it would ask for an override
        result: Tensor = by_torch(q, k, v, heads, mask, attn_precision, skip_reshape, skip_output_reshape, **kwargs)
        return result
    if not torch.compiler.is_compiling():
        _log(logging.INFO, "xeflash attention serves %s with head dim %d on %s", q.dtype, out.shape[-1], q.device)
    width = heads * q.shape[-1] if skip_reshape else q.shape[-1]
    return out if skip_output_reshape else out.transpose(1, 2).reshape(q.shape[0], -1, width)


def _by_heads(q: Tensor, k: Tensor, v: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Splits (batch, tokens, heads * head_dim) into (batch, heads, tokens, head_dim); k and v may have fewer heads."""
    q = q.unflatten(-1, (heads, -1)).transpose(1, 2)
    k, v = (x.unflatten(-1, (-1, q.shape[-1])).transpose(1, 2) for x in (k, v))
    return q, k, v


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None, enable_gqa: bool) -> Tensor:
    """Computes attention of (batch, heads, tokens, head_dim)."""
    if mask is not None and mask.dim() == 3:
        mask = mask.unsqueeze(1)
    out = None
    if not torch.is_grad_enabled() and not torch.compiler.is_compiling():  # in memory so that it is reshaped in place
        out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[-1]).transpose(1, 2)
    result: Tensor = attention(q, k, v, mask, scale=scale, enable_gqa=enable_gqa, out=out)
    return result


@functools.lru_cache(maxsize=256)
def _log(level: int, text: str, *parts: object) -> None:
    """Logs a line, once for each text until the node is next run."""
    logging.getLogger(__name__).log(level, text, *parts)


def _comfy() -> Any:
    return importlib.import_module("comfy.ldm.modules.attention")


def _override(_chosen: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """Runs our attention in place of the function that ComfyUI has chosen."""
    return attention_xeflash(*args, **kwargs)


def register() -> None:
    """Adds the function to ComfyUI's registry, where other overrides may replace it like ComfyUI's own."""
    comfy = _comfy()
    comfy.register_attention_function(NAME, comfy.wrap_attn(attention_xeflash))


class XeflashAttention:
    """The node: a MODEL in, a clone that calls xeflash out."""

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"
    CATEGORY = "model_patches"
    DESCRIPTION = "The model's attention is xeflash's, on Intel GPUs and CPUs."

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """Returns the inputs of the node."""
        return {"required": {"model": ("MODEL",)}}

    def patch(self, model: Any) -> tuple[Any]:
        """Returns a clone of the model that uses our attention."""
        _log.cache_clear()
        patched = model.clone()
        options = patched.model_options.setdefault("transformer_options", {})
        if options.get(_OVERRIDE, _override) is not _override:
            _log(logging.WARNING, "xeflash attention: it takes the place of another node's attention")
        options[_OVERRIDE] = _override
        return (patched,)


NODE_CLASS_MAPPINGS = {"XeflashAttention": XeflashAttention}
NODE_DISPLAY_NAME_MAPPINGS = {"XeflashAttention": "xeflash attention"}
