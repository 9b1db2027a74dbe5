"""Blocks that are left out: torch's BlockMask, flash-attn 4's tensors, or bools become bits, as kernels read them.

A block of rows and keys has two bits: listed, and full, which says that mask_mod hides none of its keys. The bits lie
in memory by rows, and once more by keys, for the gradients of keys and values (kernels/attention/listed.hpp).
"""

from __future__ import annotations

import sys
from numbers import Integral
from typing import Any, NamedTuple

from xeflash.api.attention.bits import are_bools, dtype_of, in_words
from xeflash.api.attention.made_once import made_once
from xeflash.call.call import Call
from xeflash.call.schema import BHSD, THD
from xeflash.call.values import host_sees, namespace, shape_of

_NAMES = frozenset({"block_mask", "block_size", "mask_mod"})
# These do not go with blocks and conditions.
_ALONE = ("document_ids", "attention_chunk", "gather_kv_indices", "tree_mask", "unified_max")
_LEAST, _MOST = 16, 1 << 20  # rows or keys of a block: kLeastBlock and kMostBlock of host/attention/blocks.cpp
_LIMIT = 2**63
_OF_TORCH = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
_OF_FLASH = ("mask_block_cnt", "mask_block_idx", "full_block_cnt", "full_block_idx")
_DENSE = "torch.strided"
_OF_PACKED = ("cu_total_m_blocks", "cu_block_idx_offsets")  # fields beside them, for sequences of other lengths


class _Axes(NamedTuple):
    """The sizes of a call: its sequences, heads, rows and keys; and how many of these there are, if that is fewer."""

    batch: int
    heads: int
    rows: int
    keys: int
    rows_there: int
    keys_there: int


class _Lists(NamedTuple):
    """Lists of the partial and of the full blocks of keys for each block of rows, with their names for messages."""

    names: tuple[str, ...]
    arrays: tuple[Any, ...]  # counts and indices of both, of which the second two may be None
    size: Any = None
    size_name: str = ""
    hides: Any = None  # the function of Python that hides keys of partial blocks


def with_blocks(call: Call) -> Call:
    """Replaces block_mask and block_size by bits of blocks.

    Blocks of packed sequences are those of each sequence, and blocks of a cache are those of its room.
    """
    if _NAMES.isdisjoint(call.arguments):
        return call
    call = call.without_none(*_NAMES)
    _refuse_other_masks(call)
    if "block_mask" not in call:
        if "block_size" in call:
            raise call.refuse("block_size", "must come with block_mask", f"{call['block_size']!r} without one")
        return call
    if (axes := _axes(call)) is None:
        return call.with_("block_mask", "block_size")  # the call will be refused
    lists = _lists(call, axes)
    size = _size(call, lists)
    unit = min(size[0] & -size[0], _MOST), min(size[1] & -size[1], _MOST)
    bits = _of_bools(call, axes, size, unit) if lists is None else _of_lists(call, lists, axes, size, unit)
    return call.with_(
        "block_mask", "block_size", words={"blocks": call.word("block_mask")},
        blocks=bits, block_rows=unit[0], block_keys=unit[1],
    )  # fmt: skip


def _refuse_other_masks(call: Call) -> None:
    name = "block_mask" if "block_mask" in call else "mask_mod"
    if name not in call:
        return
    for other in _ALONE:
        value = call.get(other)
        if value is not None and not (isinstance(value, Integral) and value == 0 and other == "attention_chunk"):
            raise call.refuse_given(name, f"must be None with {other}")


def _axes(call: Call) -> _Axes | None:
    """Returns the sizes of a call, or None if it will be refused: an array has another rank."""
    given = call.arguments
    of_k = "k_cache" if "k_cache" in given else "k"
    packs, cached = call.layout == THD, of_k == "k_cache"
    q, k = (shape_of(call.function, call.word(name), given[name]) for name in ("q", of_k))
    if len(q) != (3 if packs else 4) or len(k) != (3 if packs and not cached else 4):
        return None
    if packs:
        starts = shape_of(call.function, call.word("cu_seqlens_q"), given["cu_seqlens_q"])
        rows, keys = given["max_seqlen_q"], given["max_seqlen_k"]
        if len(starts) != 1 or not hasattr(rows, "__index__") or not hasattr(keys, "__index__"):
            return None
        return _Axes(starts[0] - 1, q[1], rows, keys, min(rows, q[0]), keys if cached else min(keys, k[0]))
    row, head = (2, 1) if call.layout == BHSD else (1, 2)
    keys = k[row]
    for name in ("block_table", "beam_index"):
        if (table := given.get(name)) is not None:
            columns = (*shape_of(call.function, call.word(name), table), 0, 0)[1]
            keys = keys * columns if name == "block_table" else min(keys, columns)
    return _Axes(q[0], q[head], q[row], keys, q[row], keys)


def _size(call: Call, lists: _Lists | None) -> tuple[int, int]:
    """Returns the rows and the keys of a block."""
    given = call.get("block_size")
    size = None if given is None else _two(call, "block_size", given)
    if lists is None or lists.size is None:
        if size is None:
            raise call.refuse("block_size", f"must be given, as {call.word('block_mask')} has none", None)
        return size
    found = _two(call, lists.size_name, lists.size)
    if given is not None and size != found:
        raise call.refuse("block_size", f"must be None, or that of {call.word('block_mask')} {found}", given)
    return found


def _two(call: Call, name: str, size: Any) -> tuple[int, int]:
    sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
    if len(sides) != 2 or any(not isinstance(x, int | Integral) or isinstance(x, bool) for x in sides):
        raise call.refuse(name, "must be an integer, or two of them (rows, keys)", f"{size!r:.60}", TypeError)
    rows, keys = sides
    if min(rows, keys) < _LEAST or rows % _LEAST or keys % _LEAST:
        raise call.refuse(name, f"must be a multiple of {_LEAST}, of rows and of keys", size, NotImplementedError)
    if max(rows, keys) >= _LIMIT:
        raise call.refuse(name, "must be below 2^63", size)
    return int(rows), int(keys)


# ---- bools ---------------------------------------------------------------------------------------


def _of_bools(call: Call, axes: _Axes, size: tuple[int, int], unit: tuple[int, int]) -> Any:
    mask, name = call["block_mask"], call.word("block_mask")
    shape = shape_of(call.function, name, mask)
    if not are_bools(mask):
        rule = "must be bool, a BlockMask of torch, or four tensors of int32: counts and indices"
        raise call.refuse(
            "block_mask", f"{rule} of partial and of full blocks", dtype_of(mask) or type(mask).__name__, TypeError
        )
    if (layout := str(getattr(mask, "layout", _DENSE))) != _DENSE:
        raise call.refuse("block_mask", "must be a dense tensor of bools", layout, TypeError)
    blocks = (-(-axes.rows // size[0]), -(-axes.keys // size[1]))
    if len(shape) != 4 or shape[0] not in (1, axes.batch) or shape[1] not in (1, axes.heads) or shape[2:] != blocks:
        of = f"{axes.rows} rows and {axes.keys} keys in blocks of {size[0]} and {size[1]}"
        want = [_or_one(axes.batch), _or_one(axes.heads), *blocks]
        raise call.refuse("block_mask", f"must have shape [{', '.join(map(str, want))}] ({of})", list(shape))
    partial = "mask_mod" in call

    def make() -> Any:
        xp = namespace(call.function, name, mask)
        listed = _split(xp, mask, axes, size, unit)
        return _packed(xp, listed, xp.zeros_like(listed) if partial else listed)

    return made_once([mask], ("bools", axes, size, partial), make)


def _or_one(count: int) -> str:
    return "1" if count == 1 else f"1 or {count}"


def _split(xp: Any, bools: Any, axes: _Axes, size: tuple[int, int], unit: tuple[int, int]) -> Any:
    """Divides blocks of `size` into blocks of `unit`, a power of two, as many as there are."""
    for axis, length, side, part in zip((-2, -1), axes[4:], size, unit, strict=True):
        if side != part or axes[2:4] != axes[4:]:
            where = {} if xp.__name__ == "numpy" else {"device": bools.device}
            of = xp.arange(-(-length // part), **where) * part // side
            bools = xp.index_select(bools, axis, of) if xp.__name__ == "torch" else xp.take(bools, of, axis=axis)
    return bools


def _packed(xp: Any, listed: Any, full: Any) -> Any:
    """Returns the bits of blocks (..., QB, KB): those that are listed and full by rows, then both by keys."""
    both = (listed, full)
    turned = (x.mT if hasattr(x, "mT") else x.swapaxes(-1, -2) for x in both)
    words = (in_words(xp, x) for x in (*both, *turned))
    join = xp.concat if hasattr(xp, "concat") else xp.concatenate
    return join([x.reshape((*x.shape[:2], x.shape[2] * x.shape[3])) for x in words], axis=-1)


# ---- lists ---------------------------------------------------------------------------------------


def _lists(call: Call, axes: _Axes) -> _Lists | None:
    """Returns the lists of a BlockMask, of flash-attn's object or of a tuple; None for another array."""
    mask, name = call["block_mask"], call.word("block_mask")
    if hasattr(mask, "kv_num_blocks"):
        arrays = tuple(getattr(mask, field, None) for field in _OF_TORCH)
        lengths, own = getattr(mask, "seq_lengths", None), getattr(mask, "mask_mod", None)
        if lengths is not None and tuple(lengths) != axes[2:4]:
            rule = f"must be the rows and keys of this call, {tuple(axes[2:4])}"
            raise call.refuse(f"{name}.seq_lengths", rule, tuple(lengths))
        names = tuple(f"{name}.{field}" for field in _OF_TORCH)
        size, size_name = mask.BLOCK_SIZE, f"{name}.BLOCK_SIZE"
        return _Lists(names, arrays, size, size_name, None if _hides_nothing(own) else own)
    if hasattr(mask, "mask_block_cnt"):
        for field in _OF_PACKED:
            if (found := getattr(mask, field, None)) is not None:
                rule = "must be None, as all sequences have the same blocks of rows"
                raise call.refuse(f"{name}.{field}", rule, type(found).__name__, NotImplementedError)
        arrays = tuple(getattr(mask, field, None) for field in _OF_FLASH)
        names, size = tuple(f"{name}.{field}" for field in _OF_FLASH), getattr(mask, "block_size", None)
        return _Lists(names, arrays, size, f"{name}.block_size")
    if isinstance(mask, tuple | list):
        if len(mask) not in (2, 4):
            raise call.refuse(
                "block_mask", "must have four tensors, or two if no block is full", f"{len(mask)} of them"
            )
        return _Lists(tuple(f"{name}[{i}]" for i in range(4)), (*mask, None, None)[:4])
    return None


def _hides_nothing(mask_mod: Any) -> bool:
    """Returns whether a BlockMask has no condition, or the one of torch that is always true."""
    of_torch = getattr(mask_mod, "__module__", "") == "torch.nn.attention.flex_attention"
    return mask_mod is None or (of_torch and getattr(mask_mod, "__name__", "") == "noop_mask")


def _of_lists(call: Call, lists: _Lists, axes: _Axes, size: tuple[int, int], unit: tuple[int, int]) -> Any:
    blocks = (-(-axes.rows // size[0]), -(-axes.keys // size[1]))
    for i, (name, x) in enumerate(zip(lists.names, lists.arrays, strict=True)):
        if x is None and i > 1 and lists.arrays[5 - i] is None:
            continue
        _check_list(call, name, x, lists.arrays[0])
        _check_shape(call, lists, i, axes, blocks[0])
    partial, xp = "mask_mod" in call, namespace(call.function, lists.names[0], lists.arrays[0])

    def make() -> Any:
        of_partial, of_full = (_named(call, lists, i, blocks[1], xp) for i in (0, 2))
        if lists.hides is not None and not partial:
            _refuse_python(call, lists)
        listed = of_partial if of_full is None else of_partial | of_full
        if not partial:
            of_full = listed
        elif of_full is None:
            of_full = xp.zeros_like(listed)
        return _packed(xp, *(_split(xp, x, axes, size, unit) for x in _broadcast(xp, listed, of_full)))

    tensors = [x for x in lists.arrays if x is not None]
    return made_once(tensors, ("lists", axes, size, partial, lists.hides is None), make)


def _check_list(call: Call, name: str, x: Any, first: Any) -> None:
    torch: Any = sys.modules.get("torch")
    of_torch = torch is not None and isinstance(x, torch.Tensor)
    of_numpy = type(x).__module__ == "numpy"
    if not (of_torch or of_numpy) or of_numpy != (type(first).__module__ == "numpy"):
        rule = "must be a torch tensor of int32, or a numpy array as the others"
        raise call.refuse(name, rule, type(x).__name__, TypeError)
    if not of_torch:
        if dtype_of(x) != "int32":
            raise call.refuse(name, "must be an array of int32", dtype_of(x), TypeError)
        return
    if x.dtype is not torch.int32 or x.layout is not torch.strided or x.is_nested:
        got = "a nested one" if x.is_nested else x.dtype if x.layout is torch.strided else x.layout
        raise call.refuse(name, "must be a dense tensor of int32", got, TypeError)
    if isinstance(call["q"], torch.Tensor) and x.device != call["q"].device:
        raise call.refuse(name, f"must be on the device of {call.word('q')} ({call['q'].device})", x.device)


def _broadcast(xp: Any, *arrays: Any) -> Any:
    return xp.broadcast_tensors(*arrays) if xp.__name__ == "torch" else xp.broadcast_arrays(*arrays)


def _check_shape(call: Call, lists: _Lists, i: int, axes: _Axes, blocks: int) -> None:
    name, shape = lists.names[i], tuple(lists.arrays[i].shape)
    own = shape[:-1] if i % 2 else shape  # without the indices of a list
    fits = 1 <= len(own) <= 3 and own[-1] == blocks
    lead = (1, 1, *own[:-1])[-2:]
    if not fits or lead[0] not in (1, axes.batch) or lead[1] not in (1, axes.heads):
        want = [_or_one(axes.batch), _or_one(axes.heads), blocks, *["blocks of a list"] * (i % 2)]
        raise call.refuse(name, f"must have shape [{', '.join(map(str, want))}] ({axes.rows} rows)", list(shape))


def _named(call: Call, lists: _Lists, i: int, blocks: int, xp: Any) -> Any:
    """Returns bools (1 or B, 1 or H, QB, KB): which blocks the lists at `i` name. Their rest may be anything."""
    counts, indices = lists.arrays[i], lists.arrays[i + 1]
    if counts is None:
        return None
    counts = counts.reshape((*(1,) * (3 - counts.ndim), *counts.shape))
    indices = indices.reshape((*(1,) * (4 - indices.ndim), *indices.shape))
    most, of_torch = indices.shape[-1], xp.__name__ == "torch"
    where = {"device": counts.device} if of_torch else {}
    counted = xp.arange(most, **where) < counts[..., None]
    inside = (indices >= 0) & (indices < blocks)
    if _can_look(call, lists.names[i], counts):
        if 0 not in counts.shape and not 0 <= int(counts.min()) <= int(counts.max()) <= most:
            wrong = counts[(counts < 0) | (counts > most)]
            raise call.refuse(lists.names[i], f"must be 0 to {most}, the indices of a list", int(wrong[0]))
        if bool((counted & ~inside).any()):
            wrong = _broadcast(xp, indices, counted)[0][counted & ~inside]
            raise call.refuse(lists.names[i + 1], f"must be 0 to {blocks - 1}, the blocks of keys", int(wrong[0]))
    at = xp.where(counted & inside, indices, blocks)
    found = xp.zeros((*at.shape[:-1], blocks + 1), dtype=xp.bool if of_torch else bool, **where)
    if of_torch:
        at = at.long()
        found = found.scatter(-1, at, xp.ones_like(at, dtype=xp.bool))
    else:
        xp.put_along_axis(found, at, True, -1)
    return found[..., :blocks]


def _can_look(call: Call, name: str, x: Any) -> bool:
    """Returns whether the numbers of an array can be looked at without waiting for them."""
    return host_sees(call.function, name, x) and not _is_traced(x)


def _is_traced(x: Any) -> bool:
    """Returns whether an array has no numbers, or something follows what is done with it."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor):
        return False
    proxies = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)  # of make_fx
    unseen = torch.compiler.is_compiling() or hasattr(x, "fake_mode") or x.is_meta
    return bool(unseen or proxies is not None or torch._C._functorch.peek_interpreter_stack() is not None)


def _refuse_python(call: Call, lists: _Lists) -> None:
    """Refuses partial blocks whose keys a function of Python hides; waits for their counts."""
    counts, own = lists.arrays[0], lists.hides
    if _is_traced(counts) or bool(counts.any()):
        rule = f"must say in C++ what {call.word('block_mask')}.mask_mod says in Python, as blocks are partial"
        raise call.refuse(
            "mask_mod", rule, f"None beside {getattr(own, '__name__', type(own).__name__)}", NotImplementedError
        )
