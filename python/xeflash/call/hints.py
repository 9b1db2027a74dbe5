"""Hints at the end of errors: the word that a caller meant, and what makes of a refused value one that is taken."""

from __future__ import annotations

import contextlib
import difflib
import re
import sys
from collections.abc import Collection
from typing import Any

from xeflash.call.call import Call
from xeflash.call.schema import BHSD, THD

_ALIKE = (  # words that libraries have for one argument
    ("q", "query"),
    ("k", "key"),
    ("v", "value"),
    ("causal", "is_causal"),
    ("softmax_scale", "scale", "sm_scale", "scaling"),
    ("dropout_p", "attention_dropout"),
    ("softcap", "logits_soft_cap", "logits_softcap", "logit_cap"),
    ("window_size", "window", "sliding_window"),
    ("s_aux", "sinks", "learnable_sink"),
    ("alibi_slopes", "alibi"),
    ("attn_mask", "mask", "attention_mask", "attn_bias"),
    ("key_padding_mask", "padding_mask"),
    ("document_ids", "segment_ids"),
    ("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k"),
    ("max_seqlen", "max_seqlen_q", "max_seqlen_k"),
    ("return_lse", "return_attn_probs", "return_softmax_lse"),
    ("input", "x", "hidden_states"),
    ("linear_weight", "weight"),
    ("linear_bias", "bias"),
    ("target", "labels"),
    ("temperature", "temp"),
)
_PACKED = "flash_attn_varlen_func takes packed sequences"
_ELSEWHERE = {
    "attn_mask": "attention takes attn_mask, and flash_attn_varlen_func takes sequences without padding",
    "block_mask": "flash_attn_func and attention take it",
    "cu_seqlens": _PACKED,
    "document_ids": "flash_attn_varlen_func takes documents as sequences",
    "enable_gqa": "k and v may have fewer heads than q without it",
    "generator": "torch.manual_seed and xeflash.manual_seed make dropout reproducible",
    "key_padding_mask": "attention takes it as attn_mask[:, None, None, :], True where there is a token, "
    "and flash_attn_varlen_func takes sequences without padding",
    "max_seqlen": _PACKED,
    "position_ids": "document_ids of flash_attn_func, and cu_seqlens_q and cu_seqlens_k of flash_attn_varlen_func, "
    "keep documents apart",
    "mask_mod": "flash_attn_func and attention take it",
    "score_mod": "flash_attn_func and attention take it",
}


def meant(word: str, own: Collection[str]) -> str:
    """Returns what to say of a word that is not among a function's `own`; empty if nothing is known of it."""
    alike = next((words for words in _ALIKE if word in words), (word,))
    found = [x for x in alike if x in own]
    if not found and alike[0] in _ELSEWHERE:
        return f"; {_ELSEWHERE[alike[0]]}"
    found = found or difflib.get_close_matches(word, own, 1, 0.75)
    return f"; did you mean {found[0]}?" if found else ""


def add_hint(call: Call, error: Exception) -> None:
    """Appends to an error of an argument what the caller can give in its place, where that is known."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)  # not there while another thread imports torch
    if compiler is not None and compiler.is_dynamo_compiling():  # it cannot change an exception
        return
    text = str(error)
    if found := re.match(rf"{call.function}: (\w+)(.*)", text):
        name, rule = found.groups()
        value = next((x for key, x in call.arguments.items() if call.word(key) == name), None)
        with contextlib.suppress(Exception):  # what reading odd values raises must not take the error's place
            if hint := _hint(call, name, value, rule):
                error.args = (f"{text}; use {hint}",)


def _hint(call: Call, name: str, value: Any, rule: str) -> str:
    shape = tuple(getattr(value, "shape", ()))
    if name == "attn_mask":
        return _mask(call, value, shape, rule)
    if name in ("out", "lse"):  # what is written to a copy would be lost
        return ""
    if rule.startswith(" must be a torch tensor") and isinstance(value, list | tuple):
        dtype = "float32" if name == "alibi_slopes" else "int32" if _INTEGERS.search(name) else ""
        return f"torch.tensor({name}, dtype=torch.{dtype}, device={call.word('q')}.device)" if dtype else ""
    if rule.startswith(" must be an integer, got") and type(value) is not bool and value == int(value):
        return f"int({name})"
    if rule.startswith(" must be True or False, got") and value in (0, 1):
        return f"bool({name})"
    if rule.startswith(" must be float32, float16 or bfloat16, got float64"):
        return _converted(name, value, "float32")
    if found := re.match(r" must have the dtype of (\w+) .*, got b?float(16|32|64);", rule):
        if "cache" in name:  # a copy of it would take the new keys; that of K decides
            return _converted(found[1], value, name) if name.startswith("k") and found[2] != "64" else ""
        return _converted(name, value, found[1])
    if found := re.match(r" must be (int32|float32), (?:got|as)", rule):
        return _converted(name, value, found[1])
    if found := re.match(r" must be on the device of (\w+)", rule):
        return f"{name}.to({found[1]}.device)" if hasattr(value, "to") else ""
    if rule.startswith(" must start with 0"):
        return "torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0)) for the starts of lengths"
    if found := re.match(r" must end with the number of packed rows \((\d+)\), got (\d+)", rule):
        return "a last sequence for the rows of padding" if int(found[2]) < int(found[1]) else ""
    if rule.startswith(" must have 3 dimensions, got 4") and call.get("layout") == THD:
        return f"{name}.flatten(0, 1)"
    if rule.startswith(" must have 4 dimensions, got 3") and name == "q" and call.form == "d":
        return "q[None], or flash_attn_varlen_func for packed sequences"
    if rule.startswith(" must have 1 dimension, got 2") and _INTEGERS.search(name) and 1 in shape:
        return f"{name}.flatten()"
    if rule.startswith(" must be contiguous, got strides") and hasattr(value, "contiguous"):
        return f"{name}.contiguous()"
    if rule.startswith((".heads must divide", ".heads must equal")):
        return _other_layout(call, shape)
    if (found := re.match(r" must have the (\d+) (?:inputs|features) of", rule)) and shape[:1] == (int(found[1]),):
        return 'b_layout="kn"' if name == "b" else f"{name}.T.contiguous()" if hasattr(value, "contiguous") else ""
    return ""


_INTEGERS = re.compile("seq|table|id|ind|pad")  # names of integers: lengths, starts, numbers of sequences and pages
_CONVERSIONS = {  # torch's method, and the argument of numpy's astype; else the dtype is that of an argument
    "bool": ("bool()", "bool"),
    "float32": ("float()", "np.float32"),
    "int32": ("int()", "np.int32"),
}


def _converted(name: str, value: Any, dtype: str) -> str:
    method, numpy_type = _CONVERSIONS.get(dtype, (f"to({dtype}.dtype)", f"{dtype}.dtype"))
    if hasattr(value, "to"):
        return f"{name}.{method}"
    return f"{name}.astype({numpy_type})" if hasattr(value, "astype") else ""


def _mask(call: Call, mask: Any, shape: tuple[int, ...], rule: str) -> str:
    """Returns the mask with a type that is taken, and with the dimensions that a mask (B, S) or (B, L, S) lacks."""
    q, k = (tuple(call[x].shape) for x in ("q", "k"))
    name = "attn_mask"
    if rule.startswith(" must be bool"):
        name = _converted(name, mask, "bool" if "int" in rule.partition(", got ")[2] else "query")
    if len(q) == 4 and shape == (q[0], k[-2]):
        name += "[:, None, None, :]"
    elif len(q) == 4 and shape == (q[0], q[-2], k[-2]):
        name += "[:, None]"
    return "" if name == "attn_mask" else name


def _other_layout(call: Call, k: tuple[int, ...]) -> str:
    """Returns a hint if q and k fit with heads and rows in the other order, and have fewer heads than rows then."""
    q, is_bhsd = tuple(call["q"].shape), call.layout == BHSD
    heads, rows = (2, 1) if is_bhsd else (1, 2)
    if not (len(q) == len(k) == 4 and k[heads] and q[heads] % k[heads] == 0 and q[heads] < max(q[rows], k[rows])):
        return ""
    other = "(batch, length, heads, head_dim)" if is_bhsd else "(batch, heads, length, head_dim)"
    return f".swapaxes(1, 2) if the order is {other}"
