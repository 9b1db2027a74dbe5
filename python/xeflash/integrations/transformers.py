"""xeflash as an attention of Hugging Face Transformers: ``model.set_attn_implementation(register())``.

A mask function and an attention function are registered under one name. What the first makes for the second:

  None        nothing is hidden but by causality and the layer's window
  2-D, bool   the same for the first `columns` keys, the last query being at the last of them; False is padding
  4-D         all that is hidden, or an additive bias

So no causal mask is materialised, with or without window, padding or a cache. What is not recognised, such as an image
whose tokens see each other, is hidden by the mask that Transformers makes for PyTorch's attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
from transformers.utils.import_utils import is_tracing

from xeflash import attention
from xeflash.integrations._xe_cache import CachedStates, XeCache, as_tensor

__all__ = ["NAME", "XeCache", "attention_function", "mask_function", "register"]

NAME = "xe_attention"  # for every name with "flash" in it, Transformers looks for a package of its own


def register() -> str:
    """Makes the attention known to Transformers; returns its name."""
    AttentionInterface.register(NAME, attention_function)
    AttentionMaskInterface.register(NAME, mask_function)
    return NAME


_CAUSAL = masking_utils.causal_mask_function.__code__
_BIDIRECTIONAL = masking_utils.bidirectional_mask_function.__code__
_WINDOW = masking_utils.sliding_window_overlay(1).__code__
_WINDOW_BOTH_WAYS = masking_utils.sliding_window_bidirectional_overlay(1).__code__
_AND = masking_utils.and_masks().__code__


def _kind(function: Any) -> tuple[str, bool]:
    """("causal", "bidirectional", or "" for anything else; whether within a window) of a mask function."""
    parts = (function,)
    if function.__code__ is _AND and not torch.compiler.is_compiling():  # which cannot look into it
        parts = function.__closure__[0].cell_contents
    kinds = []
    windowed = False
    for part in parts:
        if part.__code__ is _WINDOW or part.__code__ is _WINDOW_BOTH_WAYS:
            windowed = True
        elif part.__code__ is _CAUSAL:
            kinds.append("causal")
        elif part.__code__ is _BIDIRECTIONAL:
            kinds.append("bidirectional")
        else:
            kinds.append("")
    return kinds[0] if len(kinds) == 1 else "", windowed


def _keys_seen(q_length: int, kv_offset: int, q_offset: Any) -> int:
    """The keys up to that of the last query; -1 where only a device, or a compiled graph, will know."""
    if isinstance(q_offset, torch.Tensor):
        if q_length == 1 or is_tracing(q_offset):
            return -1
        q_offset = int(q_offset)
    return int(q_offset) + q_length - kv_offset


# Whether 2-D masks hide something: looking into one waits for its device.
_with_padding: Any = WeakIdKeyDictionary()


def _has_padding(mask: torch.Tensor) -> bool:
    """Whether a 2-D mask hides something; yes where only a compiled graph will know."""
    if is_tracing(mask):
        return True
    if mask not in _with_padding:
        _with_padding[mask] = not bool(mask.all())
    found: bool = _with_padding[mask]
    return found


def mask_function(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    **kwargs: Any,
) -> torch.Tensor | None:
    """The mask of a forward pass; the arguments are those that Transformers gives to every mask function."""
    kind, windowed = _kind(mask_function)
    causal = kind == "causal"
    keys = _keys_seen(q_length, kv_offset, q_offset) if causal else kv_length
    columns = keys if attention_mask is None else attention_mask.shape[-1]
    may_skip = allow_is_causal_skip if causal else allow_is_bidirectional_skip
    if not kind or not may_skip or not 0 <= keys <= kv_length or columns not in (keys, kv_offset + keys):
        mask: torch.Tensor | None = masking_utils.sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
            allow_is_causal_skip=False, **kwargs,
        )  # fmt: skip
        return mask
    padding = attention_mask
    if padding is not None:
        padding = padding[:, columns - keys :]
        if not _has_padding(padding):
            padding = None
    if padding is None and keys < kv_length:  # a mask like any other, as models may reshape or slice it
        padding = torch.ones((batch_size, keys), dtype=torch.bool, device=kwargs.get("device"))
        _with_padding[padding] = False
        return padding
    if padding is not None and not causal and not windowed:
        return padding[:, None, None, :].expand(-1, 1, q_length, -1)
    return padding


_UNSAID: Any = object()
# Arguments of other attention functions that would change the result.
_REFUSED = {"block_indices", "cache", "cu_seq_lens_k", "cu_seq_lens_q", "head_mask", "indices", "output_attentions"}
_REFUSED |= {"sinks"}


def _window(module: Any, said: Any, causal: bool, keys: int) -> tuple[int, int]:
    """The keys to the left and right of a query that its layer lets it see."""
    if said is _UNSAID:
        width = getattr(getattr(module, "config", None), "sliding_window", None)
        if isinstance(width, int) and width < keys:
            raise NotImplementedError(
                f"{NAME}: a model with a sliding window must pass it to its attention, but {type(module).__name__} "
                f"does not; sliding_window = {width}, keys = {keys}. Use attn_implementation='sdpa'"
            )
        return -1, -1
    return (-1, -1) if said is None else (said - 1, 0 if causal else said - 1)


def _with_bias(bias: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """An additive mask that hides, too."""
    if mask is None:
        return bias
    return bias.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else bias + mask


def attention_function(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor | CachedStates,
    value: torch.Tensor | CachedStates,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = _UNSAID,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """(attention of query (B, H, Sq, D) on key and value (B, Hk, Sk, D) as (B, Sq, H, D), None).

    The arguments are those of all attention functions of Transformers; see the module for attention_mask.
    """
    for name in _REFUSED.intersection(kwargs):
        if kwargs[name] is not None and kwargs[name] is not False:
            raise NotImplementedError(f"{NAME}: {name} must be None, got {type(kwargs[name]).__name__}")
    keys = key.shape[2]
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    padding = mask = None
    if attention_mask is None or attention_mask.dim() == 2:
        if attention_mask is not None:
            keys = attention_mask.shape[1]
            padding = attention_mask if _has_padding(attention_mask) else None
        window = _window(module, sliding_window, causal, keys)
    else:
        mask, causal, window = attention_mask, False, (-1, -1)
    if (
        isinstance(key, CachedStates)
        and mask is None
        and position_bias is None
        and not dropout
        and keys == key.shape[2]
    ):
        cached = key.attend(
            query, value, padding=padding, window=window, causal=causal, softmax_scale=scaling, softcap=softcap or 0.0,
            s_aux=s_aux,
        )  # fmt: skip
        if cached is not None:
            return cached, None
    key, value = as_tensor(key), as_tensor(value)
    if keys < key.shape[2]:
        key, value = key[:, :, :keys], value[:, :, :keys]
    if padding is not None:
        mask = padding[:, None, None, :]
    if position_bias is not None:
        mask = _with_bias(position_bias[..., :keys], mask)
    out = query.new_empty((query.shape[0], query.shape[2], query.shape[1], value.shape[3]))
    attention(
        query, key, value, mask, dropout, causal, scaling, enable_gqa=True, bottom_right=True, window_size=window,
        softcap=softcap or 0.0, sinks=s_aux, out=out.transpose(1, 2),
    )  # fmt: skip
    return out, None
