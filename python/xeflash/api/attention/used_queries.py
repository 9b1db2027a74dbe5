"""The argument seqused_q: packed sequences of which only the first queries are used.

The queries of each sequence become two sequences: those that are used have its keys, the others have none. So nothing
is copied but starts and lengths, kernels know nothing of it, and other queries are rows that see no key.
"""

from __future__ import annotations

from typing import Any

from xeflash.call.call import Call
from xeflash.call.values import host_sees, namespace, shape_of

_NAME = "seqused_q"
_OF_SEQUENCES_OR_ALL = ("alibi_slopes", "k_scale", "v_scale")
_MASKS = ("tree_mask", "mask_mod", "block_mask")
_NUMBER_SEQUENCES = "dropout_p score_mod captures"  # by the sequence of a score, which is then another


def used_queries(call: Call) -> Call:
    """Replaces a call with seqused_q by one of twice as many sequences: used and unused queries in turns."""
    if _NAME not in call.arguments:
        return call
    if (used := call[_NAME]) is None:
        return call.with_(_NAME)
    for name in (*_NUMBER_SEQUENCES.split(), *_MASKS):
        if call.get(name) is not None and (name in _MASKS or call[name]):
            raise call.refuse_given(name, f"must not come with {_NAME}")
    starts = call["cu_seqlens_q"]
    shape, starts_shape = shape_of(call.function, _NAME, used), shape_of(call.function, "cu_seqlens_q", starts)
    if len(shape) != 1 or starts_shape != (shape[0] + 1,):
        rule = "must have shape [sequences], where cu_seqlens_q has [sequences + 1]"
        raise call.refuse(_NAME, rule, f"{list(shape)} and {list(starts_shape)}")
    xp = namespace(call.function, _NAME, used)
    if xp is not namespace(call.function, "cu_seqlens_q", starts) or used.dtype != starts.dtype:
        got, want = (f"{type(x).__name__} of {x.dtype}" for x in (used, starts))
        raise call.refuse(_NAME, f"must be int32, as cu_seqlens_q is ({want})", got, TypeError)
    if getattr(used, "device", None) != getattr(starts, "device", None):
        raise call.refuse(_NAME, f"must be on the device of cu_seqlens_q ({starts.device})", used.device)
    _check_values(call, used, starts)
    turns = {"cu_seqlens_q": _starts(call, "cu_seqlens_q", starts[:-1] + used)}
    for name in ("cu_seqlens_k", "seqused_k", "block_table", *_OF_SEQUENCES_OR_ALL):
        x = call.get(name)
        if x is None or (name in _OF_SEQUENCES_OR_ALL and not _has_rows(call, name, x)):
            continue
        rows, need = shape_of(call.function, name, x), starts_shape if name == "cu_seqlens_k" else shape
        if rows[:1] != need:
            rule = f"must have {need[0]} rows, as {_NAME} has {shape[0]} sequences"
            raise call.refuse(name, rule, list(rows))
        if name == "cu_seqlens_k":
            turns[name] = _starts(call, name, x[1:])
        else:
            turns[name] = _in_turns(namespace(call.function, name, x), x, x * 0 if name == "seqused_k" else x)
    return call.with_(_NAME, **turns)


def _has_rows(call: Call, name: str, x: Any) -> bool:
    """Returns whether an argument that may be one for all sequences has a row for each."""
    shape = () if isinstance(x, int | float) else shape_of(call.function, name, x)
    return len(shape) == 2 and (name == "alibi_slopes" or shape[0] > 1)


def _in_turns(xp: Any, first: Any, second: Any) -> Any:
    """Interleaves the rows of two arrays: a row of the first, one of the second, and so on."""
    return xp.stack([first, second], axis=1).reshape((2 * first.shape[0], *first.shape[1:]))


def _starts(call: Call, name: str, unused_starts: Any) -> Any:
    """Interleaves the starts of used and unused queries, and appends the end of the last sequence."""
    starts = call[name]
    xp = namespace(call.function, name, starts)
    concat = xp.concat if hasattr(xp, "concat") else xp.concatenate  # numpy 1.x
    return concat([_in_turns(xp, starts[:-1], unused_starts), starts[-1:]])


def _check_values(call: Call, used: Any, starts: Any) -> None:
    """Checks values of seqused_q that the host may look at."""
    if not host_sees(call.function, _NAME, used):
        return
    wrong = (used < 0) | (used > starts[1:] - starts[:-1])
    if bool(wrong.any()):
        at = wrong.tolist().index(True)
        rule = f"must be 0 to the sequence's queries ({int(starts[at + 1] - starts[at])})"
        raise call.refuse(_NAME, rule, f"{int(used[at])} for sequence {at}")
