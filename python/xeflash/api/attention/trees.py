"""Trees of guesses on a cache: the nodes that each node sees become bits, as kernels read them."""

from __future__ import annotations

from typing import Any

from xeflash.api.attention.bits import are_bools, dtype_of, in_words
from xeflash.call.bind import public
from xeflash.call.call import Call
from xeflash.call.schema import THD
from xeflash.call.values import namespace, shape_of

_NAME = "tree_mask"
_MOST = 1024  # nodes: kMostNodes of tree.hpp


@public()
def pack_tree_mask(tree_mask: Any) -> Any:
    """Packs the tree_mask of flash_attn_with_kvcache into words of bits, once for the calls of all layers.

    Args:
        tree_mask: bool (T, T) or (B, T, T).

    The result is int32 (1 or B, T, ceil(T / 32)): bit j % 32 of word j // 32 of row i says whether node i sees node j.

    >>> import numpy as np, xeflash
    >>> xeflash.pack_tree_mask(np.array([[True, False], [True, True]])).tolist()
    [[[1], [3]]]
    """


@pack_tree_mask.body
def _(call: Call) -> Any:
    mask = call[_NAME]
    shape = shape_of(call.function, _NAME, mask)
    if not are_bools(mask):
        raise call.refuse(_NAME, "must be bool", dtype_of(mask) or type(mask).__name__, TypeError)
    if len(shape) not in (2, 3) or shape[-1] != shape[-2]:
        raise call.refuse(_NAME, "must have shape [T, T] or [sequences, T, T]", list(shape))
    return packed(mask, call.function)


def tree_in_words(call: Call) -> Call:
    """Replaces a mask of bools by words of bits."""
    if (mask := call[_NAME]) is None:
        return call.with_(_NAME)
    shape, dtype = shape_of(call.function, _NAME, mask), dtype_of(mask)
    if dtype in ("int32", "") or getattr(mask, "is_sparse", False):  # arrays of memory alone have no type
        return call
    if not are_bools(mask):
        raise call.refuse(_NAME, "must be bool, or words of int32", dtype, TypeError)
    packs, of_q = call.layout == THD, shape_of(call.function, "q", call["q"])
    if len(of_q) != (3 if packs else 4):
        return call  # the call will be refused
    rows = of_q[0] if packs else of_q[1]
    if packs:
        if not hasattr(longest := call["max_seqlen_q"], "__index__"):  # of numpy, torch or Python
            return call
        rows = min(longest, rows)
    if len(shape) not in (2, 3) or shape[-1] != shape[-2] or (rows > shape[-1] if packs else rows != shape[-1]):
        rule = f"must have shape [T, T] or [sequences, T, T], with T {'at least ' * packs}{rows}, the nodes of a tree"
        raise call.refuse(_NAME, rule, list(shape))
    if shape[-1] > _MOST:
        raise call.refuse(_NAME, f"must have at most {_MOST} nodes", shape[-1], NotImplementedError)
    return call.with_(tree_mask=packed(mask, call.function))


def packed(mask: Any, function: str = "pack_tree_mask") -> Any:
    """Packs bools (T, T) or (B, T, T) into words, for the functions and for those who checked them."""
    xp = namespace(function, _NAME, mask)
    if mask.ndim == 2:
        mask = mask[None]
    return in_words(xp, mask)
