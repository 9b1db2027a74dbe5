"""The arguments of a call over ranks: checked before anything moves, and in the words of its blocks."""

from __future__ import annotations

import functools
import itertools
import math
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from xeflash import _core
from xeflash.api.public import LSE_ALONE
from xeflash.call.schema import BSHD, THD, WITH_GRADIENTS
from xeflash.call.values import seeds, snippet, window
from xeflash.distributed.blocks import Call, Documents
from xeflash.distributed.gradients import Choice, Job
from xeflash.distributed.shards import ZIGZAG, check_shards, pieces_of
from xeflash.torch_ops.gradients import check_room, refuse_captures
from xeflash.torch_ops.library import refuse_transforms, wants_gradients

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_OUTER = ("all_gather", "ring")
_WAYS = (*_OUTER, "all_to_all")
_ROWS_OF_A_DRAW = 8  # dropout counts rows in eights

Read = tuple[Job, tuple[Tensor, ...], dict[str, Any]]  # the job, its tensors, the facts that ranks compare


def read(function: str, groups: tuple[dist.ProcessGroup, ...], given: dict[str, Any]) -> Read:
    """A call's job; raises for what cannot be done."""
    layout = THD if "cu_seqlens" in given else BSHD
    dim = 0 if layout == THD else 1
    q, k, v = _shards(function, given, 3 + dim)
    wants_gradients(function, given, WITH_GRADIENTS)
    if torch.is_grad_enabled():
        refuse_transforms(function)
        if q.device.type == "xpu" and any(x.requires_grad for x in (q, k, v)):
            check_room(function, _core.arch_of(q, function, "q"), q, v)
    shards, worlds = given.get("shards", ZIGZAG), [group.size() for group in groups]
    check_shards(function, shards)
    rows, keys = q.shape[dim], k.shape[dim]
    within, pieces = math.prod(worlds[1:]), pieces_of(worlds[0], shards) // worlds[0]
    for name, length in (("q", rows), ("k", keys)):
        if length * within % pieces:
            raise ValueError(f"{function}: {name} must have a multiple of {pieces} rows for {shards!r}, got {length}")

    left, right = window(function, given.get("window_size", (-1, -1)))
    right = 0 if given.get("causal", False) else right
    numbers = _numbers(function, given)
    dropout_p = numbers["dropout_p"]
    documents = _documents(function, given, q, math.prod(worlds) * rows) if layout == THD else None
    learned = _of_heads(function, given, q, dim, documents)
    code, constants, captured = _score_mod(function, given, q)
    learned |= captured
    positional = left >= 0 or right >= 0 or "alibi_slopes" in learned or code is not None or dropout_p > 0
    if rows != keys and (positional or layout == THD):
        raise ValueError(
            f"{function}: k must have the rows of q ({rows}) where masks, documents or positions count, got {keys}"
        )
    how, chunk = given.get("how", "auto"), rows * within // pieces
    auto = None
    if how == "auto" and len(worlds) == 1:
        by_heads_alone = dropout_p and (documents is not None or chunk % _ROWS_OF_A_DRAW)
        records = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
        auto = Choice(q.dtype, records, ("all_to_all",) if by_heads_alone else _WAYS)
        if by_heads_alone and q.shape[dim + 1] % worlds[0]:
            _check_dropout(function, _OUTER, documents, dropout_p, chunk)
    ways = _ways(function, how, worlds, q.shape[dim + 1]) if auto is None else ()
    if dropout_p and auto is None:
        _check_dropout(function, ways, documents, dropout_p, chunk)
    wanted = given.get("return_attn_probs", False)
    if dropout_p and wanted and wanted is not LSE_ALONE:
        raise NotImplementedError(
            f"{function}: return_attn_probs must be False with dropout, whose probabilities are not there, got "
            f"dropout_p = {dropout_p}"
        )

    call = Call(
        function, layout, numbers, left, right, code, constants, tuple(learned), documents, all_heads=q.shape[dim + 1]
    )
    job = Job(call, groups, ways, shards, (q.shape, k.shape, v.shape), bool(wanted), wanted is LSE_ALONE, auto)
    records = torch.is_grad_enabled()
    facts = {
        "q.shape": list(q.shape), "k.shape": list(k.shape), "v.shape": list(v.shape), "dtype": q.dtype,
        "device": q.device.type, "how": ways or "auto", "shards": shards, "causal": bool(given.get("causal", False)),
        "window_size": (left, right), **numbers, **{name: list(x.shape) for name, x in learned.items()},
        "score_mod": code, "captures": dict(constants), "return_attn_probs": bool(wanted),
        "requires_grad of q, k, v": [records and x.requires_grad for x in (q, k, v)],
        "seed": seeds(function, dropout_p, q),
    }  # fmt: skip
    if auto is not None:
        facts["room"] = _room(q.device)
    if documents is not None:
        facts["cu_seqlens"] = list(documents.on_host or documents.starts.shape)
        facts["max_seqlen"] = documents.longest
    return job, (q, k, v, *learned.values()), facts


# ---- q, k and v ---------------------------------------------------------------------------------


def _shards(function: str, given: dict[str, Any], rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v in autocast's type, if there is one."""
    tensors = {name: given[name] for name in "qkv"}
    for name, x in tensors.items():
        if not isinstance(x, Tensor) or type(x) not in (Tensor, torch.nn.Parameter):
            raise TypeError(
                f"{function}: {name} must be a torch tensor, this rank's shard (of a DTensor: to_local()), got "
                f"{type(x).__name__}"
            )
        if x.dim() != rank:
            raise ValueError(f"{function}: {name} must have {rank} dimensions, got {x.dim()}")
    q = tensors["q"]
    if torch.is_autocast_enabled(q.device.type):
        dtype = torch.get_autocast_dtype(q.device.type)
        tensors = {name: x.to(dtype) if x.is_floating_point() else x for name, x in tensors.items()}
    q, k, v = tensors.values()
    if q.dtype not in _DTYPES:
        raise TypeError(f"{function}: q must be of float32, bfloat16 or float16, got {q.dtype}")
    for name, x in (("k", k), ("v", v)):
        if x.dtype is not q.dtype:
            raise TypeError(f"{function}: {name} must have the dtype of q ({q.dtype}), got {x.dtype}")
        if x.device != q.device:
            raise ValueError(f"{function}: {name} must be on the device of q ({q.device}), got {x.device}")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(
            f"{function}: v must have the shape of k but for the last, {list(k.shape)}, got {list(v.shape)}"
        )
    if k.shape[:-3] != q.shape[:-3]:
        raise ValueError(f"{function}: k must have the batch of q ({q.shape[0]}), got {k.shape[0]}")
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"{function}: k.head_dim must equal q.head_dim ({q.shape[-1]}), got {k.shape[-1]}")
    if min(q.numel(), k.numel(), v.numel()) == 0:
        raise ValueError(
            f"{function}: q, k and v must not be empty, got {[list(x.shape) for x in (q, k, v)]}; all ranks have shards"
        )
    if q.shape[-2] % k.shape[-2]:
        raise ValueError(f"{function}: q must have a multiple of the heads of k ({k.shape[-2]}), got {q.shape[-2]}")
    return q, k, v


# ---- features -----------------------------------------------------------------------------------


def _numbers(function: str, given: dict[str, Any]) -> dict[str, Any]:
    scale, softcap, dropout_p = given.get("softmax_scale"), given.get("softcap", 0.0), given.get("dropout_p", 0.0)
    for name, x in (("softmax_scale", scale), ("softcap", softcap), ("dropout_p", dropout_p)):
        if isinstance(x, bool) or not (isinstance(x, (int, float)) or (name == "softmax_scale" and x is None)):
            raise TypeError(f"{function}: {name} must be a number, got {type(x).__name__}")
        if x is not None and not math.isfinite(x):
            raise ValueError(f"{function}: {name} must be finite, got {x}")
    if softcap < 0:
        raise ValueError(f"{function}: softcap must not be negative, got {softcap}")
    if not 0 <= dropout_p <= 1:
        raise ValueError(f"{function}: dropout_p must be from 0 to 1, got {dropout_p}")
    if dropout_p and softcap:
        raise ValueError(
            f"{function}: softcap does not support dropout, got dropout_p = {dropout_p}, softcap = {softcap}"
        )
    return {
        "softmax_scale": None if scale is None else float(scale), "softcap": float(softcap),
        "dropout_p": float(dropout_p),
    }  # fmt: skip


def _of_heads(
    function: str, given: dict[str, Any], q: Tensor, dim: int, documents: Documents | None
) -> dict[str, Tensor]:
    """Slopes and sinks."""
    heads, found = q.shape[dim + 1], {}
    batch = q.shape[0] if documents is None else len(documents.starts) - 1
    for name, shapes in (("alibi_slopes", ([heads], [batch, heads])), ("s_aux", ([heads],))):
        if (x := given.get(name)) is None:
            continue
        if not isinstance(x, Tensor):
            raise TypeError(f"{function}: {name} must be a torch tensor, got {type(x).__name__}")
        if list(x.shape) not in shapes:
            rule = " or ".join(map(str, shapes))
            raise ValueError(f"{function}: {name} must have the shape {rule}, got {list(x.shape)}")
        if name == "alibi_slopes" and x.dtype is not torch.float32:
            raise TypeError(f"{function}: alibi_slopes must be of float32, got {x.dtype}")
        if x.dtype not in _DTYPES:
            raise TypeError(f"{function}: {name} must be of float32, bfloat16 or float16, got {x.dtype}")
        _check_device(function, name, x, q)
        found[name] = x
    return found


def _score_mod(function: str, given: dict[str, Any], q: Tensor) -> tuple[str | None, dict[str, Any], dict[str, Tensor]]:
    """Its code, its captures that are numbers, and those that are tensors."""
    found = snippet(_core, function, given.get("score_mod"), given.get("captures"))
    if found is None:
        return None, {}, {}
    code, captures = found
    tensors = {f"captures[{name!r}]": x for name, x in captures.items() if isinstance(x, Tensor)}
    constants = {name: x for name, x in captures.items() if not isinstance(x, Tensor)}
    for name, x in constants.items():
        if not isinstance(x, (int, float)):
            raise TypeError(
                f"{function}: captures[{name!r}] must be a torch tensor or a number, got {type(x).__name__}"
            )
    for name, x in tensors.items():
        _check_device(function, name, x, q)
    if torch.is_grad_enabled() and (learned := [x for x in tensors.values() if x.requires_grad]):
        refuse_captures(function, code, sum(x.numel() for x in learned))
    return code, constants, tensors


def _check_device(function: str, name: str, x: Tensor, q: Tensor) -> None:
    if x.device != q.device:
        raise ValueError(f"{function}: {name} must be on the device of q ({q.device}), got {x.device}")


def _documents(function: str, given: dict[str, Any], q: Tensor, total: int) -> Documents:
    starts, longest = given["cu_seqlens"], given["max_seqlen"]
    if not isinstance(starts, Tensor) or starts.dtype is not torch.int32 or starts.dim() != 1 or len(starts) < 2:
        got = f"{starts.dtype} of shape {list(starts.shape)}" if isinstance(starts, Tensor) else type(starts).__name__
        raise TypeError(f"{function}: cu_seqlens must be a tensor of int32 with B + 1 starts, got {got}")
    if isinstance(longest, bool) or not isinstance(longest, int) or longest < 1:
        raise ValueError(f"{function}: max_seqlen must be a positive integer, got {longest!r}")
    if starts.device.type != "cpu":
        return Documents(starts, None, longest)
    on_host = tuple(starts.tolist())
    lengths = [b - a for a, b in itertools.pairwise(on_host)]
    if on_host[0] != 0 or on_host[-1] != total or min(lengths) < 0:
        raise ValueError(
            f"{function}: cu_seqlens must rise from 0 to the {total} tokens of all ranks, got {on_host[0]} to "
            f"{on_host[-1]}, the shortest document having {min(lengths)}"
        )
    if max(lengths) > longest:
        raise ValueError(
            f"{function}: max_seqlen must be at least the tokens of the longest document ({max(lengths)}), "
            f"got {longest}"
        )
    return Documents(starts.to(q.device), on_host, longest)


# ---- ways ---------------------------------------------------------------------------------------


def _ways(function: str, how: Any, worlds: list[int], heads: int) -> tuple[str, ...]:
    """A way for each group."""
    if len(worlds) == 2:
        ways = ("ring", "all_to_all") if how == "auto" else how
        if not isinstance(ways, (tuple, list)) or len(ways) != 2 or ways[0] not in _OUTER or ways[1] != "all_to_all":
            raise ValueError(
                f"{function}: how must be ('ring', 'all_to_all'), ('all_gather', 'all_to_all') or 'auto' for two "
                f"groups, got {how!r}"
            )
        ways = tuple(ways)
    elif isinstance(how, str) and how in _WAYS:
        ways = (how,)
    else:
        raise ValueError(f"{function}: how must be one of {', '.join(_WAYS)}, auto for one group, got {how!r}")
    if ways[-1] == "all_to_all" and heads % worlds[-1]:
        raise ValueError(
            f"{function}: q must have heads that the {worlds[-1]} ranks divide for how='all_to_all', got {heads}"
        )
    return ways


@functools.cache
def _room(device: torch.device) -> int:
    """What a call may need beside its tensors: a quarter of the memory, used or not, so that a choice is always one."""
    if device.type == "xpu":
        return int(torch.xpu.get_device_properties(device).total_memory) // 4
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # of torchrun
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4 // ranks_here


def _check_dropout(
    function: str, ways: tuple[str, ...], documents: Documents | None, dropout_p: float, chunk: int
) -> None:
    if ways == ("all_to_all",):
        return
    if documents is not None:
        raise NotImplementedError(
            f"{function}: dropout_p must be 0 with packed documents, but for how='all_to_all', got {dropout_p} with "
            f"how={ways[0]!r}"
        )
    if chunk % _ROWS_OF_A_DRAW:
        raise ValueError(
            f"{function}: q must have chunks of a multiple of {_ROWS_OF_A_DRAW} rows with dropout, but for "
            f"how='all_to_all', got {chunk}"
        )
