"""Faults that are known and not mended yet: what they look like. To be emptied."""

from __future__ import annotations

import re

# Name, and what is found in the text of a case that is one of them.
KNOWN = {
    "softmax_scale goes by another name": r"names none of softmax_scale; .* softmax scale must be finite",
    "packed functions name what they unpack": r"names none of (qkv|kv|cu_seqlens|max_seqlen)\b",
    "packed functions have another name as operators": r"does not begin with the function; .* flash_attn_(varlen_)?func: ",
    "torch's schema refuses other types": r"xeflash::\w+\(\) Expected a value of type",
    "LSE of a row whose scores are all below -1e38": r"lse: .* got np.float64\(-9.999999680285692e\+37\)",
    "an empty tensor of torch with a step is not made contiguous": r"must have a contiguous last dimension, got stride \d; \w+.shape = \[.*\b0\b.*\]",
    "five axes of torch that do not merge": r"out must have leading dimensions that merge into one",
    "empty USM arrays at the end of an allocation": r"a valid call was refused: .* must lie in memory of the SYCL context",
}


def known_fault(text: str) -> str:
    """The name of the fault that this is; empty: of none."""
    return next((name for name, pattern in KNOWN.items() if re.search(pattern, text)), "")
