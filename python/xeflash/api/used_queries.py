"""seqused_q: packed sequences of which only the first queries are used.

The queries of each sequence become two sequences: those that are used have its keys, the others have none. So nothing
is copied but starts and lengths, kernels know nothing of it, and other queries are rows that see no key.
"""

from __future__ import annotations

import sys
from typing import Any

from xeflash.call.values import namespace, shape_of, shown

_NAME = "seqused_q"
_NUMBER_SEQUENCES = "dropout_p score_mod captures"  # by the sequence of a score, which is then another


def take_used_queries(function: str, given: dict[str, Any]) -> None:
    """Takes seqused_q, if there is one, and gives a call of twice as many sequences."""
    used = given.pop(_NAME, None)
    if used is None:
        return
    for name in _NUMBER_SEQUENCES.split():
        if value := given.get(name):
            raise NotImplementedError(f"{function}: {name} must not come with {_NAME}, got {shown(value)}")
    starts = given["cu_seqlens_q"]
    shape, of_starts = shape_of(function, _NAME, used), shape_of(function, "cu_seqlens_q", starts)
    if len(shape) != 1 or of_starts != (shape[0] + 1,):
        raise ValueError(
            f"{function}: {_NAME} must have shape [sequences], where cu_seqlens_q has [sequences + 1], "
            f"got {list(shape)} and {list(of_starts)}"
        )
    xp = namespace(function, _NAME, used)
    if xp is not namespace(function, "cu_seqlens_q", starts) or used.dtype != starts.dtype:
        got, want = (f"{type(x).__name__} of {x.dtype}" for x in (used, starts))
        raise TypeError(f"{function}: {_NAME} must be int32, as cu_seqlens_q is ({want}), got {got}")
    if getattr(used, "device", None) != getattr(starts, "device", None):
        raise ValueError(
            f"{function}: {_NAME} must be on the device of cu_seqlens_q ({starts.device}), got {used.device}"
        )
    _check_values(function, used, starts, xp)
    given["cu_seqlens_q"] = _starts(function, "cu_seqlens_q", starts, starts[:-1] + used)
    for name in ("cu_seqlens_k", "seqused_k", "block_table", "alibi_slopes"):
        x = given.get(name)
        if x is None or (name == "alibi_slopes" and len(shape_of(function, name, x)) != 2):
            continue
        rows, need = shape_of(function, name, x), of_starts if name == "cu_seqlens_k" else shape
        if rows[:1] != need:
            raise ValueError(
                f"{function}: {name} must have {need[0]} rows, as {_NAME} has {shape[0]} sequences, got {list(rows)}"
            )
        if name == "cu_seqlens_k":
            given[name] = _starts(function, name, x, x[1:])
        else:
            given[name] = _in_turns(namespace(function, name, x), x, x * 0 if name == "seqused_k" else x)


def _in_turns(xp: Any, first: Any, second: Any) -> Any:
    """A row of the first, one of the second, and so on."""
    return xp.stack([first, second], axis=1).reshape((2 * first.shape[0], *first.shape[1:]))


def _starts(function: str, name: str, starts: Any, of_unused: Any) -> Any:
    """Of sequences in turns, and their end."""
    xp = namespace(function, name, starts)
    concat = xp.concat if hasattr(xp, "concat") else xp.concatenate  # numpy 1.x
    return concat([_in_turns(xp, starts[:-1], of_unused), starts[-1:]])


def _check_values(function: str, used: Any, starts: Any, xp: Any) -> None:
    """In host memory."""
    torch = sys.modules.get("torch")
    if xp is torch and (not used.is_cpu or torch.compiler.is_compiling()):
        return
    if xp is not torch and xp is not sys.modules.get("numpy"):
        return
    wrong = (used < 0) | (used > starts[1:] - starts[:-1])
    if bool(wrong.any()):
        at = wrong.tolist().index(True)
        raise ValueError(
            f"{function}: {_NAME} must be 0 to the sequence's queries ({int(starts[at + 1] - starts[at])}), "
            f"got {int(used[at])} for sequence {at}"
        )
