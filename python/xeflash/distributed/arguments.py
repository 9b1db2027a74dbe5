"""Arguments of a call over ranks: checked before anything moves, and translated to the words of its blocks."""

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
from xeflash.call.bind import in_words_of_schema
from xeflash.call.call import Call
from xeflash.call.newer_words import flags
from xeflash.call.ready import ready
from xeflash.call.schema import ROWS, THD, WITH_GRADIENTS
from xeflash.call.values import seeds, snippet
from xeflash.distributed.blocks import Documents, Spread
from xeflash.distributed.gradients import Choice, Job
from xeflash.distributed.shards import ZIGZAG, check_shards, pieces_of
from xeflash.torch_ops.attention.gradients import check_room, refuse_captures
from xeflash.torch_ops.library import check_gradients, refuse_transforms

_OUTER = ("all_gather", "ring")
_WAYS = (*_OUTER, "all_to_all")
_ROWS_OF_A_DRAW = 8  # dropout counts rows in eights

Read = tuple[Job, tuple[Tensor, ...], dict[str, Any]]  # the job, its tensors, the facts that ranks compare


def read(call: Call, groups: tuple[dist.ProcessGroup, ...]) -> Read:
    """Checks a call and returns its job; raises an error for what cannot be done."""
    (call, wants_third), function = flags(in_words_of_schema(call)), call.function
    wants_lse = call.get("return_lse", False)
    dim = 0 if call.layout == THD else 1
    q, k, v = _shards(call, 3 + dim)
    check_gradients(call, WITH_GRADIENTS)
    records = torch.is_grad_enabled()
    wanted = [records and x.requires_grad for x in (q, k, v)]
    if records:
        refuse_transforms(function)
        if q.device.type == "xpu" and any(wanted):
            check_room(function, _core.arch_of(q, function, "q"), q, v)
    shards, worlds = call.get("shards", ZIGZAG), [group.size() for group in groups]
    check_shards(function, shards)
    rows, keys = q.shape[dim], k.shape[dim]
    within, pieces = math.prod(worlds[1:]), pieces_of(worlds[0], shards) // worlds[0]
    for name, length in (("q", rows), ("k", keys)):
        if length * within % pieces:
            raise call.refuse(name, f"must have a multiple of {pieces} rows for {shards!r}", length)

    documents = _documents(call, q, math.prod(worlds) * rows) if call.layout == THD else None
    learned = _slopes_and_sinks(call)
    _check(call, q, k, v, documents)
    numbers = _numbers(call)
    dropout_p = numbers["dropout_p"]
    snippet_of, captured = _score_mod(call)
    learned |= captured
    left, right = call.get("window_left", -1), 0 if call.get("causal", False) else call.get("window_right", -1)
    positional = left >= 0 or right >= 0 or "alibi_slopes" in learned or snippet_of or dropout_p > 0
    if rows != keys and (positional or documents is not None):
        raise call.refuse("k", f"must have as many rows as q ({rows}) with masks, documents or positions", keys)
    how, chunk = call.get("how", "auto"), rows * within // pieces
    auto = None
    if how == "auto" and len(worlds) == 1:
        by_heads_alone = dropout_p and (documents is not None or chunk % _ROWS_OF_A_DRAW)
        auto = Choice(q.dtype, any(wanted), ("all_to_all",) if by_heads_alone else _WAYS)
        if by_heads_alone and q.shape[dim + 1] % worlds[0]:
            _check_dropout(call, _OUTER, documents, dropout_p, chunk)
    ways = _ways(call, how, worlds, q.shape[dim + 1]) if auto is None else ()
    if dropout_p and auto is None:
        _check_dropout(call, ways, documents, dropout_p, chunk)
    if dropout_p and wants_third:
        rule, got = "must be False with dropout, whose probabilities are not there", f"dropout_p = {dropout_p}"
        raise call.refuse("return_lse", rule, got, NotImplementedError)

    said = {**numbers, "window_left": left, "window_right": right, **snippet_of}
    same = Call({"function": function, "layout": call.layout, **said}, call.words)
    spread = Spread(same, tuple(learned), documents, all_heads=q.shape[dim + 1])
    job = Job(spread, groups, ways, shards, (q.shape, k.shape, v.shape), wants_lse, wants_lse and not wants_third, auto)
    facts = {
        "q.shape": list(q.shape), "k.shape": list(k.shape), "v.shape": list(v.shape), "dtype": q.dtype,
        "device": q.device.type, "how": ways or "auto", "shards": shards, "causal": bool(call.get("causal", False)),
        "window_size": (left, right), **numbers, **{name: list(x.shape) for name, x in learned.items()},
        "score_mod": same.get("score_mod"), "captures": same.get("captures", {}), "return_attn_probs": wants_lse,
        "requires_grad of q, k, v": wanted, "seed": seeds(function, q) if dropout_p else (0, 0),
    }  # fmt: skip
    if auto is not None:
        facts["room"] = _room(q.device)
    if documents is not None:
        facts["cu_seqlens"] = list(documents.on_host or documents.starts.shape)
        facts["max_seqlen"] = documents.longest
    return job, (q, k, v, *learned.values()), facts


# ---- q, k and v ---------------------------------------------------------------------------------


def _shards(call: Call, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns q, k and v, in autocast's type if autocast is on."""
    for name in ("q", "k", "v"):
        x = call[name]
        if not isinstance(x, Tensor) or type(x) not in (Tensor, torch.nn.Parameter):
            rule = "must be a torch tensor, this rank's shard (of a DTensor: to_local())"
            raise call.refuse(name, rule, type(x).__name__, TypeError)
        if x.device.type not in ("cpu", "xpu") or x.layout is not torch.strided:
            got = x.device if x.layout is torch.strided else x.layout
            raise call.refuse(name, "must be a dense tensor on a cpu or xpu device", got, TypeError)
        if x.dim() != rank:
            raise call.refuse(name, f"must have {rank} dimensions", x.dim())
    q, k, v = call["q"], call["k"], call["v"]
    if torch.is_autocast_enabled(q.device.type):
        dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v = (x.to(dtype) if x.is_floating_point() else x for x in (q, k, v))
    return q, k, v


def _check(call: Call, q: Tensor, k: Tensor, v: Tensor, documents: Documents | None) -> None:
    """Checks this rank's shards by the rules of the extension, before anything moves."""
    own = [name for name in call.arguments if name not in ROWS and name != "captures"]
    alone = call.with_(*own, q=q, k=k, v=v, seed=0)
    if documents is not None:  # the documents of the first rows
        of_q, of_k = (documents.starts.clamp(max=len(x)) for x in (q, k))
        longest = documents.longest
        alone = alone.with_(cu_seqlens_q=of_q, cu_seqlens_k=of_k, max_seqlen_q=longest, max_seqlen_k=longest)
    _core.check_shapes(**ready(alone).arguments, words=call.words)
    if min(q.numel(), k.numel(), v.numel()) == 0:
        shapes = [list(x.shape) for x in (q, k, v)]
        raise ValueError(f"{call.function}: q, k and v must not be empty, got {shapes}; all ranks have shards")


# ---- features -----------------------------------------------------------------------------------


def _numbers(call: Call) -> dict[str, Any]:
    scale, softcap, dropout_p = call.get("softmax_scale"), call.get("softcap", 0.0), call.get("dropout_p", 0.0)
    if dropout_p and softcap:
        got = f"dropout_p = {dropout_p}, softcap = {softcap}"
        raise call.refuse("softcap", "does not support dropout", got)
    scale = None if scale is None else float(scale)
    return {"softmax_scale": scale, "softcap": float(softcap), "dropout_p": float(dropout_p)}


def _slopes_and_sinks(call: Call) -> dict[str, Tensor]:
    """Returns the slopes and sinks that are given."""
    found = {name: call[name] for name in ("alibi_slopes", "s_aux") if call.get(name) is not None}
    for name, x in found.items():
        if not isinstance(x, Tensor):
            raise call.refuse(name, "must be a torch tensor", type(x).__name__, TypeError)
    return found


def _score_mod(call: Call) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Returns a score_mod's code with the captures that are numbers, by the schema's words, and the tensor captures."""
    found = snippet(call.function, call.get("score_mod"), call.get("captures"))
    if found is None:
        return {}, {}
    code, captures = found
    tensors = {f"captures[{name!r}]": x for name, x in captures.items() if isinstance(x, Tensor)}
    constants = {name: x for name, x in captures.items() if not isinstance(x, Tensor)}
    for name, x in constants.items():
        if not isinstance(x, int | float):
            raise call.refuse(f"captures[{name!r}]", "must be a torch tensor or a number", type(x).__name__, TypeError)
    if torch.is_grad_enabled() and (learned := [x for x in tensors.values() if x.requires_grad]):
        refuse_captures(call.function, code, sum(x.numel() for x in learned))
    return {"score_mod": code, "captures": constants}, tensors


def _documents(call: Call, q: Tensor, total: int) -> Documents:
    starts, longest = call["cu_seqlens"], call["max_seqlen"]
    if not isinstance(starts, Tensor) or starts.dtype is not torch.int32 or starts.dim() != 1 or len(starts) < 2:
        got = f"{starts.dtype} of shape {list(starts.shape)}" if isinstance(starts, Tensor) else type(starts).__name__
        raise call.refuse("cu_seqlens", "must be a tensor of int32 with B + 1 starts", got, TypeError)
    if isinstance(longest, bool) or not isinstance(longest, int) or longest < 1:
        raise call.refuse("max_seqlen", "must be a positive integer", repr(longest))
    if starts.device.type != "cpu":
        return Documents(starts, None, longest)
    on_host = tuple(starts.tolist())
    lengths = [b - a for a, b in itertools.pairwise(on_host)]
    if on_host[0] != 0 or on_host[-1] != total or min(lengths) < 0:
        got = f"{on_host[0]} to {on_host[-1]}, the shortest document having {min(lengths)}"
        raise call.refuse("cu_seqlens", f"must rise from 0 to the {total} tokens of all ranks", got)
    if max(lengths) > longest:
        rule = f"must be at least the tokens of the longest document ({max(lengths)})"
        raise call.refuse("max_seqlen", rule, longest)
    return Documents(starts.to(q.device), on_host, longest)


# ---- ways ---------------------------------------------------------------------------------------


def _ways(call: Call, how: Any, worlds: list[int], heads: int) -> tuple[str, ...]:
    """Returns a way for each group."""
    if len(worlds) == 2:
        ways = ("ring", "all_to_all") if how == "auto" else how
        if not isinstance(ways, tuple | list) or len(ways) != 2 or ways[0] not in _OUTER or ways[1] != "all_to_all":
            rule = "must be ('ring', 'all_to_all'), ('all_gather', 'all_to_all') or 'auto' for two groups"
            raise call.refuse("how", rule, repr(how))
        ways = tuple(ways)
    elif isinstance(how, str) and how in _WAYS:
        ways = (how,)
    else:
        raise call.refuse("how", f"must be one of {', '.join(_WAYS)}, auto for one group", repr(how))
    if ways[-1] == "all_to_all" and heads % worlds[-1]:
        raise call.refuse("q", f"must have a multiple of {worlds[-1]} heads for how='all_to_all'", heads)
    return ways


@functools.cache
def _room(device: torch.device) -> int:
    """Returns the bytes that a call may need beside its tensors: a quarter of all memory, so that choices are fixed."""
    if device.type == "xpu":
        return int(torch.xpu.get_device_properties(device).total_memory) // 4
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # torchrun sets it
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4 // ranks_here


def _check_dropout(
    call: Call, ways: tuple[str, ...], documents: Documents | None, dropout_p: float, chunk: int
) -> None:
    if ways == ("all_to_all",):
        return
    if documents is not None:
        got = f"{dropout_p} with how={ways[0]!r}"
        raise call.refuse(
            "dropout_p", "must be 0 with packed documents, except with how='all_to_all'", got, NotImplementedError
        )
    if chunk % _ROWS_OF_A_DRAW:
        rule = f"must have chunks of a multiple of {_ROWS_OF_A_DRAW} rows with dropout, except with how='all_to_all'"
        raise call.refuse("q", rule, chunk)
