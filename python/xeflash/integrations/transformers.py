"""xeflash as an attention of Hugging Face Transformers: ``model.set_attn_implementation(register())``.

A mask function and an attention function are registered under one name. What the first makes for the second:

  None        nothing is hidden but by causality
  2-D, bool   the same for the first `columns` keys, the last query being at the last of them; False is padding. What
              the mask hides by a window is kept beside it, for layers that do not tell theirs.
  2-D, int32  the numbers of the documents that share a row, of which none sees another; of a prompt's chunks, too
  4-D         all that is hidden, or an additive bias; a model with layers that we do not know gets one of these, which
              they may extend, as those of DeepSeek V4 do for keys that they add

So no causal mask is materialised, with or without window, padding, documents or a cache. A mask that is not recognised,
such as that of an image whose tokens see each other, is the one that Transformers makes for PyTorch's attention.

Documents that share a row are also found by ``position_ids`` that begin again, if a mask hides only padding and there
are no keys from a cache, and by ``cu_seq_lens_q`` and its like. See _documents.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils
from transformers.utils.import_utils import is_tracing

from xeflash import attention
from xeflash.integrations import _documents
from xeflash.integrations._documents import NAME, Documents
from xeflash.integrations.xe_cache.cache import XeCache
from xeflash.integrations.xe_cache.layer import CachedStates, as_tensor
from xeflash.torch_ops.library import requires_grad

__all__ = ["NAME", "XeCache", "attention_function", "mask_function", "register"]


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
_CHUNKS = masking_utils.chunked_overlay(1, torch.zeros(1)).__code__
_DOCUMENTS = masking_utils.packed_sequence_mask_function(torch.empty(0)).__code__
_BY_POSITION = [  # older releases have none
    remap(masking_utils.causal_mask_function, torch.empty(0)).__code__
    for remap in (getattr(masking_utils, "remap_positions_for_packed_sequence", None),)
    if remap is not None
]


def _held(function: Any) -> dict[str, Any]:
    """Returns the variables that a function made by another function holds."""
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    return dict(zip(function.__code__.co_freevars, cells, strict=True))


def _without_documents(function: Any) -> tuple[Any, torch.Tensor | None]:
    """Splits a mask function into (the mask within documents, the numbers (B, S) of the documents or None)."""
    if torch.compiler.is_compiling() or function.__code__ is not _AND:
        return function, None
    within, *others = _held(function)["mask_functions"]
    if len(others) != 1 or others[0].__code__ is not _DOCUMENTS:
        return function, None
    if within.__code__ in _BY_POSITION:  # positions in a document are as far from each other as those in its row
        within = _held(within)["mask_function"]
    return within, _held(others[0])["packed_sequence_mask"]


def _chunk(function: Any) -> int:
    """Returns the length of a causal mask function's chunks, whose positions see only each other, or 0."""
    if torch.compiler.is_compiling() or function.__code__ is not _AND:
        return 0
    first, *others = _held(function)["mask_functions"]
    is_chunked = first.__code__ is _CHUNKS and [other.__code__ for other in others] == [_CAUSAL]
    return int(_held(first)["chunk_size"]) if is_chunked else 0


def _kind(function: Any) -> tuple[str, tuple[int, int] | None]:
    """Returns ("causal", "bidirectional", or "" for anything else; the window, if any) of a mask function."""
    parts = (function,)
    if function.__code__ is _AND and not torch.compiler.is_compiling():  # a compiler cannot look into it
        parts = function.__closure__[0].cell_contents
    kinds = []
    window = None
    for part in parts:
        if part.__code__ is _WINDOW:
            window = part.__closure__[0].cell_contents - 1, 0
        elif part.__code__ is _WINDOW_BOTH_WAYS:
            window = (part.__closure__[0].cell_contents,) * 2
        elif part.__code__ is _CAUSAL:
            kinds.append("causal")
        elif part.__code__ is _BIDIRECTIONAL:
            kinds.append("bidirectional")
        else:
            kinds.append("")
    return kinds[0] if len(kinds) == 1 else "", window


def _keys_seen(q_length: int, kv_offset: int, q_offset: Any) -> int:
    """Counts the keys up to that of the last query; returns -1 where only a device, or a compiled graph, will know."""
    if isinstance(q_offset, torch.Tensor):
        if q_length == 1 or is_tracing(q_offset):
            return -1
        q_offset = int(q_offset)
    return int(q_offset) + q_length - kv_offset


class _Facts(NamedTuple):
    """Facts about a 2-D mask."""

    padding: bool  # whether it hides a key
    window: tuple[int, int] | None  # the window that hides other keys; None if somebody else made the mask
    documents: Documents | None = None


# Layers whose keys are those that their mask is made for.
_KNOWN_LAYERS = {"full_attention", "sliding_attention", "chunked_attention", "window_attention", "indexed_attention"}
_KNOWN_LAYERS |= {"minimax_m3_sparse", "hybrid", "hybrid_sliding", "linear_attention", "conv", "moe", "mlp"}

_facts: Any = WeakIdKeyDictionary()  # facts about masks of mask_function, as reading a mask waits for its device


def _facts_of(mask: torch.Tensor) -> _Facts:
    numbers = mask.dtype is torch.int32
    if is_tracing(mask):
        return _Facts(not numbers, None)
    facts: _Facts | None = _facts.get(mask)
    if facts is not None:
        return facts
    return _Facts(False, None, _documents.numbered(mask)) if numbers else _Facts(not bool(mask.all()), None)


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
    """Makes the mask of a forward pass; the arguments are those that Transformers gives to every mask function."""
    if not _KNOWN_LAYERS.issuperset(getattr(kwargs.get("config"), "layer_types", None) or ()):
        extended: torch.Tensor | None = masking_utils.eager_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, **kwargs
        )
        return extended
    within, numbers = _without_documents(mask_function)
    nothing_padded = attention_mask is None
    if kv_offset == 0 and q_length == kv_length and (chunk := _chunk(mask_function)):
        nothing_padded = attention_mask is None or not _facts_of(attention_mask).padding
        within = masking_utils.causal_mask_function
        numbers = torch.arange(kv_length, device=kwargs.get("device")).div(chunk, rounding_mode="floor")
        numbers = numbers.expand(batch_size, -1)
    if numbers is not None and nothing_padded and not is_tracing(numbers):
        kind, window = _kind(within)
        if kind and numbers.shape == (batch_size, kv_length) and q_length == kv_length:
            numbers = numbers.int()
            _facts[numbers] = _Facts(False, window or (-1, -1), _documents.numbered(numbers))
            return numbers
    kind, window = _kind(mask_function)
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
    padding = None if attention_mask is None else attention_mask[:, columns - keys :].contiguous()
    if padding is not None and not _facts_of(padding).padding:
        padding = None
    if padding is not None and not causal and window is None:
        return padding[:, None, None, :].expand(-1, 1, q_length, -1)
    facts = _Facts(padding is not None, window or (-1, -1))
    if padding is None and (keys < kv_length or (window is not None and max(window) + 1 < keys)):
        padding = torch.ones((batch_size, keys), dtype=torch.bool, device=kwargs.get("device"))
    if padding is not None and not is_tracing(padding):
        _facts[padding] = facts
    return padding


_UNSAID: Any = object()
# Arguments of other attention functions that would change the result.
_REFUSED = {"block_indices", "block_table", "cache", "head_mask", "k_cache", "output_attentions", "sinks"}
_REFUSED |= {"v_cache"}


def _window(module: Any, said: Any, causal: bool, keys: int, mask: torch.Tensor | None) -> tuple[int, int]:
    """Returns the keys to the left and right of a query that its layer, or else the mask, lets it see."""
    if said is not _UNSAID:
        return (-1, -1) if said is None else (said - 1, 0 if causal else said - 1)
    if mask is None:
        return -1, -1
    window = _facts_of(mask).window
    width = getattr(getattr(module, "config", None), "sliding_window", None)
    if window is None and isinstance(width, int) and width < keys:
        raise NotImplementedError(
            f"{NAME}: a model with a sliding window must pass it, or a mask of Transformers, to its attention, but "
            f"{type(module).__name__} does not; sliding_window = {width}, keys = {keys}. "
            "Use attn_implementation='sdpa'"
        )
    return window or (-1, -1)


def _both(mask: torch.Tensor | None, other: torch.Tensor) -> torch.Tensor:
    """Combines two masks, of which one may be additive, so that keys hidden by either are hidden."""
    if mask is None:
        return other
    if mask.dtype == torch.bool == other.dtype:
        return mask & other
    if other.dtype == torch.bool:
        mask, other = other, mask
    return other.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else other + mask


def _visible_picks(
    mask: torch.Tensor | None, indices: torch.Tensor, sizes: tuple[int, int, int]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Returns (remaining mask, lists of picked keys that stay visible); the lists are None if they pick all keys."""
    batch, rows, keys = sizes
    if indices.shape[-1] >= keys:
        return mask, None
    if mask is None or mask.dtype != torch.bool or mask.shape[1] > 1:
        return mask, indices
    visible = mask.expand(batch, 1, rows, keys)[:, 0].gather(-1, indices.long())
    return None, torch.where(visible, indices, -1)


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
    position_ids: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Computes attention of query (B, H, Sq, D) on key and value (B, Hk, Sk, D) as ((B, Sq, H, D), None).

    The arguments are those of all attention functions of Transformers; see the module for attention_mask. ``indices``
    (B, Sq, n) are the keys that sparse attention, as of DeepSeek V3.2, has picked for each query.
    """
    for name in _REFUSED.intersection(kwargs):
        if kwargs[name] is not None and kwargs[name] is not False:
            if name == "output_attentions":
                raise NotImplementedError(
                    f"{NAME}: {name} must be False, got {kwargs[name]!r}: the weights are never formed. "
                    "Use attn_implementation='eager'"
                )
            raise NotImplementedError(f"{NAME}: {name} must be None, got {type(kwargs[name]).__name__}")
    batch, _, rows, _ = query.shape
    keys = key.shape[2]
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    documents = _documents.take_documents(kwargs)
    padding = mask = None
    if attention_mask is None or attention_mask.dim() == 2:
        facts = _Facts(False, None)
        if attention_mask is not None:
            keys = attention_mask.shape[1]
            facts = _facts_of(attention_mask)
            padding = attention_mask if facts.padding else None
        window = _window(module, sliding_window, causal, keys, attention_mask)
        if documents is None and keys == rows:
            if is_tracing(query):
                numbers = attention_mask if padding is None else None
                mask = _documents.mask_of(numbers, position_ids, batch, rows)
            elif (documents := facts.documents or _documents.packed(position_ids, padding, batch, rows)) is not None:
                padding = None  # the rows of padding are documents, too
    else:
        mask, causal, window = attention_mask, False, (-1, -1)
    options = {"softmax_scale": scaling, "causal": causal, "softcap": softcap or 0.0, "s_aux": s_aux}
    if (
        isinstance(key, CachedStates)
        and mask is None
        and documents is None
        and position_bias is None
        and indices is None
        and not dropout
        and keys == key.shape[2]
    ):
        cached = key.attend(query, value, padding=padding, window=window, **options)
        if cached is not None:
            return cached, None
    key, value = as_tensor(key), as_tensor(value)
    if keys < key.shape[2]:
        key, value = key[:, :, :keys], value[:, :, :keys]
    if documents is not None:
        if padding is None and mask is None and position_bias is None and indices is None:
            out = documents.attend(query, key, value, dropout_p=dropout, window_size=window, **options)
            return out, None
        visible = documents.visible(batch, rows, keys, query.device, aligned=causal or window != (-1, -1))
        mask = _both(mask, visible)
    if padding is not None:
        mask = _both(mask, padding[:, None, None, :])
    if position_bias is not None:
        mask = _both(mask, position_bias[..., :keys])
    out = None
    if indices is not None:
        mask, indices = _visible_picks(mask, indices, (batch, rows, keys))
    elif not requires_grad(query, key, value, mask, s_aux):  # else this would be copied, and its gradient, too
        out = query.new_empty((batch, rows, query.shape[1], value.shape[3])).transpose(1, 2)
    out = attention(
        query, key, value, mask, dropout, causal, scaling, enable_gqa=True, bottom_right=True, window_size=window,
        softcap=softcap or 0.0, sinks=s_aux, gather_kv_indices=indices, out=out,
    )  # fmt: skip
    return out.transpose(1, 2).contiguous(), None  # layers may view it in other shapes
