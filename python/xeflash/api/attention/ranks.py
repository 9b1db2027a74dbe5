"""Arrays of any rank as the four dimensions that kernels know."""

from __future__ import annotations

from math import prod
from typing import Any

from xeflash.api.route import refuse_shared
from xeflash.call.call import Call
from xeflash.call.values import shape_of


def in_4d(call: Call) -> Call:
    """Reshapes the arrays of a call to one batch dimension: five or more dimensions are merged, up to three get one."""
    query = call.arguments["q"]
    rank = len(shape_of("attention", "query", query))
    if rank == 4:
        return call
    if rank < 2:
        raise call.refuse("q", "must have at least 2 dimensions", f"{rank}; query.shape = {list(query.shape)}")
    _check_ranks(call, rank)
    given, lead = call.arguments.copy(), tuple(query.shape[:-3])
    first = (prod(lead),) if rank > 4 else (1,) * (4 - rank)
    if rank > 4:
        _check_lead(call, lead)
        if (mask := given.get("attn_mask")) is not None:
            given["attn_mask"] = _mask(call, mask, lead)
    for name in ("q", "k", "v"):
        given[name] = (x := given[name]).reshape((*first, *x.shape[-3:]))
    if (out := given.get("out")) is not None:
        given["out"] = out.reshape((*first, *out.shape[-3:]))
        if not _same_memory(given["out"], out):
            raise ValueError("attention: out must have leading dimensions that merge into one without a copy")
    if (ids := given.get("document_ids")) is not None:
        given["document_ids"] = _ids_of_batch(call, ids, lead)
    if (lists := given.get("gather_kv_indices")) is not None:
        given["gather_kv_indices"] = _lists_of_batch(call, lists, lead, query.shape[-2])
    return Call(given, call.words)


def with_its_axes(call: Call, out: Any, lse: Any) -> tuple[Any, Any]:
    """Returns the results of an in_4d call with the leading dimensions of the caller's query."""
    shape, result = call.arguments["q"].shape, call.arguments.get("out")
    lead, least = tuple(shape[:-3]), 4 - min(len(shape), 3)
    if result is None:
        result = out.reshape((*lead, *out.shape[least:]))
    return result, None if lse is None else lse.reshape((*lead, *lse.shape[least:]))


def _check_ranks(call: Call, rank: int) -> None:
    given = call.arguments
    for name in ("k", "v"):
        shape = shape_of("attention", call.word(name), given[name])
        if len(shape) != rank:
            got = f"{len(shape)}; {call.word(name)}.shape = {list(shape)}"
            raise call.refuse(name, f"must have the {rank} dimensions of query", got)
    if (mask := given.get("attn_mask")) is not None:
        shape_of("attention", "attn_mask", mask)
    if (out := given.get("out")) is not None:
        shape, want = shape_of("attention", "out", out), (*given["q"].shape[:-1], given["v"].shape[-1])
        if shape != want:
            raise call.refuse("out", f"must have the shape {list(want)}", list(shape))


def _check_lead(call: Call, lead: tuple[int, ...]) -> None:
    for name in ("k", "v"):
        if (shape := tuple(call[name].shape[:-3])) != lead:
            raise call.refuse(name, f"must have the leading dimensions {list(lead)} of query", list(shape))
    if call.get("out") is not None:
        for name in ("q", "k", "v", "attn_mask"):
            if call.get(name) is not None:  # later steps may copy it, and a copy shares no memory
                refuse_shared(call, name, call[name])


def _mask(call: Call, mask: Any, lead: tuple[int, ...]) -> Any:
    if len(mask.shape) <= 3:
        return mask
    mask_lead = (1,) * (len(lead) + 3 - len(mask.shape)) + tuple(mask.shape[:-3])
    if len(mask_lead) != len(lead) or any(n not in (1, m) for n, m in zip(mask_lead, lead, strict=True)):
        full = [*call["q"].shape[:-1], call["k"].shape[-2]]
        got = f"{list(mask.shape)}; attn_mask.shape = {list(mask.shape)}"
        raise call.refuse("attn_mask", f"must broadcast to {full}", got)
    if all(n == 1 for n in mask_lead):
        return mask.reshape((1, *mask.shape[-3:]))
    expand = mask.broadcast_to if hasattr(mask, "broadcast_to") else _numpy_broadcast(mask)
    return expand((*lead, *mask.shape[-3:])).reshape((prod(lead), *mask.shape[-3:]))


def _ids_of_batch(call: Call, ids: Any, lead: tuple[int, ...]) -> Any:
    """Reshapes ids of documents, (S,) or with the leading dimensions of query, to (S,) or (batch, S)."""
    shape = shape_of(call.function, "document_ids", ids)
    if len(shape) < 2:
        return ids
    if shape[:-1] != lead:
        rule = f"must have the leading dimensions {list(lead)} of query, or none"
        raise call.refuse("document_ids", rule, list(shape[:-1]))
    return ids.reshape((prod(lead), shape[-1]))


def _lists_of_batch(call: Call, lists: Any, lead: tuple[int, ...], rows: int) -> Any:
    """Reshapes lists of keys with the leading dimensions of query, whose rows are L, to (batch, L, n)."""
    shape = shape_of(call.function, "gather_kv_indices", lists)
    if len(shape) < 2 or shape[:-1] != (*lead, rows):
        axes = ", ".join(map(str, (*lead, rows)))
        raise call.refuse("gather_kv_indices", f"must have shape [{axes}, keys of a query]", list(shape))
    return lists.reshape((prod(lead), *shape[-2:]))


def _numpy_broadcast(mask: Any) -> Any:
    import numpy

    return lambda shape: numpy.broadcast_to(mask, shape)


def _same_memory(a: Any, b: Any) -> bool:
    if hasattr(a, "data_ptr"):
        return bool(a.data_ptr() == b.data_ptr())
    return bool(a.__array_interface__["data"][0] == b.__array_interface__["data"][0])
