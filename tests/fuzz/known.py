"""Faults that are known and not mended yet: what they look like. To be emptied."""

from __future__ import annotations

import re

# Name, and what is found in the text of a case that is one of them.
KNOWN = {
    "five axes of torch that do not merge": r"out must have leading dimensions that merge into one",
    "empty USM arrays at the end of an allocation": r"a valid call was refused: .* must lie in memory of the SYCL context",
    "what is no array, of other ranks than 4": r"has no attribute '(reshape|shape)'; (out|attn_mask): is ",
    "softmax_scale goes by another name": r"names none of softmax_scale; .* scale must be finite",
    "torch's schema refuses other types": r"xeflash::\w+\(\) Expected a value of type",
    "other names of arrays through operators": r"names none of \w+; .* must be a torch tensor as q is one",
    "negative views through operators that mutate": r"INTERNAL ASSERT FAILED at .*MathBitsFallback|negation fallback does not support",
    "sparse tensors through operators": r"is sparse; got",
    "numbers of rng through operators": r"rng: is 5; got TypeError: 'int' object is not iterable",
    "arrays of scales without elements": r"a valid call was refused: .* k_scale and v_scale must both be arrays",
    "sizes that do not fit, of other ranks than 4": r"cannot reshape array of size|The expanded size of the tensor",
    "a scale beyond all floats": r"Unable to cast Python instance .*; [kv]_scale: is 10000",
    "out of another size, of other ranks than 4": r"is invalid for input of size \d+; out: is longer",
    "captures that are no mapping, through operators": r"has no attribute 'items'; captures: is",
}


def known_fault(text: str) -> str:
    """The name of the fault that this is; empty: of none."""
    return next((name for name, pattern in KNOWN.items() if re.search(pattern, text)), "")
