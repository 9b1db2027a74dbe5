"""The keywords that flash-attn 3 and 4 add to those of flash-attn 2.

Other names of our arguments are translated. Arguments that choose between ways to the same result have no effect. All
others are refused, unless they have their default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xeflash.call.call import Call
from xeflash.call.hints import meant
from xeflash.call.values import flag, shown

_NAMES = {"learnable_sink": "s_aux", "sinks": "s_aux", "page_table": "block_table"}
_NAMES |= {"block_sparse_tensors": "block_mask"}
_NAMES |= {f"{x}_descale": f"{x}_scale" for x in "qkv"}
_LSE = {"return_lse", "return_softmax_lse"}  # (out, LSE), where flash-attn 2 has return_attn_probs
_CHOICES = {"pack_gqa", "min_seqlen_k", "disable_scheduler_metadata", "fa_version", "zero_tensors"}
_REFUSED = {
    "aux_scalars": "see captures",
    "aux_tensors": "see captures",
    "block_sparse_tensors": "attention and functions of q, k and v leave blocks out",
    "block_sparse_tensors_bwd": "those of block_sparse_tensors are left out",
    "cu_seqlens_k_new": "new keys must be as many for each sequence",
    "gather_kv_indices": "flash_attn_func and attention pick keys",
    "mask_mod": "attention and functions of q, k and v take it",
    "num_heads_q": "K and V must have as many heads as Q if they are packed with it",
    "q_descale": "packed queries cannot be quantised",
    "qv": "scores have one product",
    "rotary_seqlens": "positions are those from cache_seqlens on, so it must be that tensor",
    "scheduler_metadata": "each call makes its own schedule",
    "score_mod_bwd": "the derivative of a score_mod is taken by the backward pass",
    "seqlen_k_per_split": "see num_splits",
    "seqused_q": "flash_attn_varlen_func limits queries",
    "sm_margin": "no part of the device can be left free",
}

WORDS = {"return_lse": "return_attn_probs"}  # words of flash-attn 2's functions
_LSE_ALONE: Any = object()  # a value of return_attn_probs: the LSE, and no third result


def in_our_words(call: Call, own: frozenset[str], named: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Translates flash-attn's newer keywords to a function's `own`; returns these, and the caller's words.

    `call` has the positional arguments.
    """
    known: dict[str, Any] = {}
    words: dict[str, str] = {}
    return_lse = ""
    for keyword, value in named.items():
        if keyword in own:
            known[keyword] = value
        elif _NAMES.get(keyword) in own:
            ours = _NAMES[keyword]
            if value is not None and named.get(ours) is not None:
                raise call.refuse(keyword, f"must be None if {ours} is given, which means the same", shown(value))
            if value is not None or ours not in named:
                known[ours] = value
                words[ours] = keyword
        elif keyword in _LSE and "return_attn_probs" in own:
            return_lse = keyword if flag(call.function, keyword, value) else return_lse
        elif keyword == "cu_seqlens_k_new" and "cu_seqlens_q" in own and named.get("k", call.get("k")) is None:
            pass  # it says where new keys begin, but there are none
        elif keyword == "rotary_seqlens" and "rotary_cos" in own:
            every = {**call.arguments, **named}
            if not (value is None or every.get("rotary_cos") is None or value is every.get("cache_seqlens")):
                raise _refusal(call, keyword, value)
        elif keyword == "block_sparse_tensors_bwd" and _given(named, "block_sparse_tensors", "block_mask"):
            pass  # the same blocks by keys, which the others give
        elif keyword in _CHOICES:
            if value is not None and not isinstance(value, int):
                raise call.refuse(keyword, "must be a number, or None", type(value).__name__, TypeError)
        elif keyword in _REFUSED or keyword in _NAMES:
            if value is not None and not (isinstance(value, int) and value == 0):
                raise _refusal(call, keyword, value)
        else:
            raise TypeError(f"{call.function}: unexpected keyword argument {keyword}{meant(keyword, own)}")
    if return_lse:
        if flag(call.function, "return_attn_probs", known.get("return_attn_probs", False)):
            raise ValueError(f"{call.function}: {return_lse} must be False with return_attn_probs, got True")
        known["return_attn_probs"] = _LSE_ALONE
        words["return_lse"] = return_lse
    return known, {**call.words, **words} if words else call.words


def _given(named: Mapping[str, Any], *keywords: str) -> bool:
    return any(named.get(keyword) is not None for keyword in keywords)


def flags(call: Call) -> tuple[Call, bool]:
    """Returns a call whose return_lse is True or False, and whether the caller wants a third result."""
    asked = call.arguments.get("return_lse", False)
    if type(asked) is bool:
        return call, asked
    alone = asked is _LSE_ALONE
    return_lse = alone or flag(call.function, call.word("return_lse"), asked)
    return call.with_(return_lse=return_lse), return_lse and not alone


def _refusal(call: Call, keyword: str, value: Any) -> Exception:
    why = _REFUSED.get(keyword, "there is no cache")
    return call.refuse(keyword, "must be None", f"{shown(value)}: {why}", NotImplementedError)
