"""Arrays of any rank as the four dimensions that kernels know."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from xeflash.call.values import shape_of

if TYPE_CHECKING:
    from xeflash.call.schema import Engine


def to_4d(core: Engine, query: Any, key: Any, value: Any, mask: Any, out: Any) -> tuple[Any, Any, Any, Any, Any]:
    """The same arrays with exactly one batch dimension; leading dimensions of 5 and more are merged into it."""
    rank = len(query.shape)
    if rank < 2:
        raise ValueError(
            f"attention: query must have at least 2 dimensions, got {rank}; query.shape = {list(query.shape)}"
        )
    for name, array in (("key", key), ("value", value)):
        shape = shape_of("attention", name, array)
        if len(shape) != rank:
            raise ValueError(
                f"attention: {name} must have the {rank} dimensions of query, got {len(shape)}; "
                f"{name}.shape = {list(shape)}"
            )
    if mask is not None:
        shape_of("attention", "attn_mask", mask)
    if out is not None:
        shape, want = shape_of("attention", "out", out), (*query.shape[:-1], value.shape[-1])
        if shape != want:
            raise ValueError(f"attention: out must have the shape {list(want)}, got {list(shape)}")
    if rank < 4:
        ones = (1,) * (4 - rank)
        query, key, value = (a.reshape((*ones, *a.shape)) for a in (query, key, value))
        return query, key, value, mask, None if out is None else out.reshape((*ones, *out.shape))
    lead = tuple(query.shape[:-3])
    batch = prod(lead)
    for name, array in (("key", key), ("value", value)):
        if tuple(array.shape[:-3]) != lead:
            raise ValueError(
                f"attention: {name} must have the leading dimensions {list(lead)} of query, "
                f"got {list(array.shape[:-3])}"
            )
    if out is not None:
        for name, array in (("query", query), ("key", key), ("value", value), ("attn_mask", mask)):
            if array is not None:  # what follows may copy it, and a copy shares nothing
                core.refuse_shared("attention", out, name, array)
    if mask is not None and len(mask.shape) > 3:
        mask_lead = (1,) * (rank - len(mask.shape)) + tuple(mask.shape[:-3])
        if len(mask_lead) != len(lead) or any(n not in (1, m) for n, m in zip(mask_lead, lead, strict=True)):
            full = [*query.shape[:-1], key.shape[-2]]
            raise ValueError(
                f"attention: attn_mask must broadcast to {full}, got {list(mask.shape)}; "
                f"attn_mask.shape = {list(mask.shape)}"
            )
        if all(n == 1 for n in mask_lead):
            mask = mask.reshape((1, *mask.shape[-3:]))
        else:
            expand = mask.broadcast_to if hasattr(mask, "broadcast_to") else _numpy_broadcast(mask)
            mask = expand((*lead, *mask.shape[-3:])).reshape((batch, *mask.shape[-3:]))
    if out is not None:
        flat = out.reshape((batch, *out.shape[-3:]))
        if not _same_memory(flat, out):
            raise ValueError("attention: out must have leading dimensions that merge into one without a copy")
        out = flat
    query, key, value = (a.reshape((batch, *a.shape[-3:])) for a in (query, key, value))
    return query, key, value, mask, out


def ids_of_batch(ids: Any, lead: tuple[int, ...]) -> Any:
    """The ids of documents (S,) or (batch, S), of such as may have the leading dimensions of query."""
    shape = shape_of("attention", "document_ids", ids)
    if len(shape) < 2:
        return ids
    if shape[:-1] != tuple(lead):
        raise ValueError(
            f"attention: document_ids must have the leading dimensions {list(lead)} of query, or none, "
            f"got {list(shape[:-1])}"
        )
    return ids.reshape((prod(lead), shape[-1]))


def lists_of_batch(lists: Any, lead: tuple[int, ...], rows: int) -> Any:
    """Lists of keys (batch, L, n) of such as have the leading dimensions of query, whose rows are L."""
    shape = shape_of("attention", "gather_kv_indices", lists)
    if len(shape) < 2 or shape[:-1] != (*lead, rows):
        axes = ", ".join(map(str, (*lead, rows)))
        raise ValueError(f"attention: gather_kv_indices must have shape [{axes}, keys of a query], got {list(shape)}")
    return lists.reshape((prod(lead), *shape[-2:]))


def _numpy_broadcast(mask: Any) -> Any:
    import numpy

    return lambda shape: numpy.broadcast_to(mask, shape)


def _same_memory(a: Any, b: Any) -> bool:
    if hasattr(a, "data_ptr"):
        return bool(a.data_ptr() == b.data_ptr())
    return bool(a.__array_interface__["data"][0] == b.__array_interface__["data"][0])
