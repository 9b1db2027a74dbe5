"""Sparse attention: the lists of keys that are picked for each query become bits, or a cache of gathered rows.

The rows of a short list are read where they lie, for one query after the other: each is a sequence of one query, whose
keys a table names. So a decoding step reads the keys of its list and no others. Where queries are many they share what
they read: blocks of keys that no query of a tile has picked are passed over (picks.hpp).
"""

from __future__ import annotations

import sys
from typing import Any

from xeflash.api.route import run
from xeflash.call.call import Call
from xeflash.call.schema import BHSD, BSHD
from xeflash.call.values import host_sees

_NAME = "gather_kv_indices"
_WORD, _SPAN = 32, 64  # keys of a word, rows of a span: kWord and kSpan of params.hpp
_FEW = 8  # queries of a sequence, each of which reads for itself
# Arguments that need positions or gradients, which rows of a table lack. Zeros of these types are off.
_NEED_POSITIONS = "attn_mask alibi_slopes score_mod captures dropout_p document_ids attention_chunk out"
_ZERO_IS_OFF: dict[str, tuple[type, ...]] = {"dropout_p": (int, float), "attention_chunk": (int,), "captures": (dict,)}
_FLAGS = ("causal", "enable_gqa", "bottom_right", "return_lse")
_KEPT = ("function", "softmax_scale", "softcap", "num_splits", "return_lse", "s_aux")


def pick_keys(call: Call) -> Call:
    """Replaces a list of keys by bits or, where queries are few, by a cache of gathered rows."""
    indices = call.get(_NAME)
    if indices is None:
        return call.with_(_NAME) if _NAME in call else call
    torch: Any = sys.modules.get("torch")
    for name in ("q", "k", "v", _NAME):
        if torch is None or not isinstance(call[name], torch.Tensor):
            with_list = "" if name == _NAME else f" with {_NAME}"
            raise call.refuse(name, f"must be a torch tensor{with_list}", type(call[name]).__name__, TypeError)
    call, qkv = call.with_(_NAME), _in_rows(call)
    if any(x.ndim != 4 or x.layout != torch.strided for x in qkv):
        return call  # the call will be refused
    (batch, rows, *_), keys = qkv[0].shape, qkv[1].shape[1]
    if indices.device != qkv[0].device:
        raise call.refuse(_NAME, f"must be on the device of the queries ({qkv[0].device})", indices.device)
    _check(call, indices, (batch, rows), keys, torch)
    few = rows <= _FEW or rows * indices.shape[-1] <= keys
    if few and batch * rows * keys * indices.shape[-1] and _can_be_gathered(call, qkv, torch):
        return _gathered(call, qkv, indices, torch)
    picks, spans = _bits(indices, keys, torch)
    return call.with_(picks=picks, picked_spans=spans)


def run_picked(call: Call) -> tuple[Any, Any]:
    """Runs a call that may have a list of keys; returns (out, LSE or None)."""
    if _NAME not in call.arguments:
        return run(call)
    picked = pick_keys(call)
    out, lse = run(picked)
    return (out, lse) if "beam_index" not in picked else _in_its_rows(call, out, lse)


def _in_its_rows(call: Call, out: Any, lse: Any) -> tuple[Any, Any]:
    """Returns the results of a gathered call in the shapes and strides of the original call."""
    torch: Any = sys.modules["torch"]
    batch, rows = _in_rows(call)[0].shape[:2]
    out = out.view(batch, rows, *out.shape[2:])
    if lse is not None:
        lse = lse.view(batch, rows, -1).transpose(1, 2)
        lse = torch.where(lse == torch.inf, -torch.inf, lse) if call.layout == BHSD else lse.contiguous()
    return (out.transpose(1, 2) if call.layout == BHSD else out), lse


def _in_rows(call: Call) -> tuple[Any, Any, Any]:
    """Returns q, k and v as (B, S, H, D)."""
    qkv = call["q"], call["k"], call["v"]
    if call.layout != BHSD or any(x.ndim != 4 for x in qkv):
        return qkv
    return tuple(x.transpose(1, 2) for x in qkv)


def _can_be_gathered(call: Call, qkv: tuple[Any, Any, Any], torch: Any) -> bool:
    """Returns whether a call can run on gathered rows of its keys.

    A call that will be refused cannot, so that the message has the names of its own arguments.
    """
    q, k, v = qkv
    tensors = [x for x in (*qkv, *call.arguments.values()) if isinstance(x, torch.Tensor)]
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    if recorded or torch.compiler.is_compiling() or any(_is_given(call, x) for x in _NEED_POSITIONS.split()):
        return False
    if torch.is_autocast_enabled(q.device.type) and q.dtype != torch.get_autocast_dtype(q.device.type):
        return False
    if not all(isinstance(call.get(x, False), bool) for x in _FLAGS):
        return False
    grouped = q.shape[2] == k.shape[2] or call.get("enable_gqa", True)
    return grouped and _fit(q, k, v, torch) and _rows_have_numbers(k, v)


def _gathered(call: Call, qkv: tuple[Any, Any, Any], indices: Any, torch: Any) -> Call:
    """Returns a call with one query for each row, on a cache that has the rows of all keys."""
    rows, keys = indices.shape[1], qkv[1].shape[1]
    shift = keys - rows if call.get("bottom_right", True) else 0
    unlimited = keys + rows if call.layout == BHSD else keys  # to flash-attn, whatever the queries are
    sides = (call.get("window_left", -1), call.get("window_right", -1))
    left, right = (-1 if side >= unlimited else side for side in sides)
    seen = _visible(indices, shift, left, 0 if call.get("causal", False) else right, torch)
    kept = {name: call[name] for name in _KEPT if name in call}
    words = {"k_cache": call.word("k"), "v_cache": call.word("v")}
    return Call({**kept, "layout": BSHD, **_on_rows(qkv, seen, torch)}, {**call.words, **words})


def _is_given(call: Call, name: str) -> bool:
    value = call.get(name)
    return value is not None and not (type(value) in _ZERO_IS_OFF.get(name, ()) and not value)


def _fit(q: Any, k: Any, v: Any, torch: Any) -> bool:
    """Returns whether types, devices and sizes of q, k and v (B, S, H, D) match."""
    return (
        q.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and all(x.dtype == q.dtype and x.device == q.device and x.layout == torch.strided for x in (k, v))
        and k.shape[2] > 0
        and q.shape[2] % k.shape[2] == 0
        and (k.shape[0], k.shape[3]) == (q.shape[0], q.shape[3])
        and v.shape[:3] == k.shape[:3]
    )


def _check(call: Call, indices: Any, lead: tuple[int, int], keys: int, torch: Any) -> None:
    if indices.is_nested or indices.layout is not torch.strided:
        got = "a nested one" if indices.is_nested else indices.layout
        raise call.refuse(_NAME, "must be a dense tensor", got, TypeError)
    if indices.dtype is not torch.int32:
        raise call.refuse(_NAME, "must be int32", indices.dtype, TypeError)
    if indices.ndim != 3 or tuple(indices.shape[:2]) != lead:
        raise call.refuse(_NAME, f"must have shape [{lead[0]}, {lead[1]}, keys of a query]", list(indices.shape))
    if indices.numel() and host_sees(call.function, call.word(_NAME), indices):
        if int(indices.max()) >= keys:
            raise call.refuse(_NAME, f"must be below the {keys} keys", int(indices.max()))
        ordered = indices.sort(-1).values
        twice = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0)
        if bool(twice.any()):
            got = int(ordered[..., 1:][twice][0])
            raise call.refuse(_NAME, "must name each key of a query once", f"{got} twice")


def _visible(indices: Any, shift: int, left: int, right: int, torch: Any) -> Any:
    """Returns the list of keys with -1 in place of those that a window hides."""
    positions = torch.arange(shift, shift + indices.shape[1], device=indices.device, dtype=torch.int32)[:, None]
    if left >= 0:
        indices = torch.where(indices >= positions - left, indices, -1)
    if right >= 0:
        indices = torch.where(indices <= positions + right, indices, -1)
    return indices


def _rows_of_batch(x: Any) -> int:
    """Returns how many rows lie between two sequences of x (B, S, H, D), or 0 for one sequence."""
    return x.stride(0) // x.stride(1) if x.shape[0] > 1 and x.stride(1) else 0


def _rows_have_numbers(k: Any, v: Any) -> bool:
    """Returns whether a number names each row: all are contiguous, and equally far apart in k and in v."""
    for x in (k, v):
        if x.stride(1) == 0 or (x.shape[0] > 1 and x.stride(0) % x.stride(1)):
            return False
        if x.stride(3) != 1 and x.shape[3] > 1:
            return False
    return _rows_of_batch(k) == _rows_of_batch(v)


def _on_rows(qkv: tuple[Any, Any, Any], indices: Any, torch: Any) -> dict[str, Any]:
    """Returns the arguments of one query for each row of q (B, S, H, D), on the rows of all keys."""
    (q, k, v), (batch, rows, listed) = qkv, indices.shape
    apart = _rows_of_batch(k)
    order = (indices < 0).to(torch.int8).argsort(dim=-1, stable=True)
    first = torch.arange(batch, device=q.device, dtype=torch.int32)[:, None, None] * apart
    table = indices.gather(-1, order).clamp_(min=0) + first

    def as_cache(x: Any) -> Any:
        size = ((batch - 1) * apart + x.shape[1], listed, *x.shape[2:])
        return x.as_strided(size, (x.stride(1), 0, *x.stride()[2:]))

    return {
        "q": q.reshape(batch * rows, 1, *q.shape[2:]),
        "k_cache": as_cache(k),
        "v_cache": as_cache(v),
        "beam_index": table.view(batch * rows, listed),
        "cache_seqlens": (indices >= 0).sum(-1, dtype=torch.int32).view(-1),
    }


def _bits(indices: Any, keys: int, torch: Any) -> tuple[Any, Any]:
    """Returns a bit for each row and key, in words, and whether each span of rows has a bit in each word."""
    batch, rows, _ = indices.shape
    words = max(1, -(-keys // _WORD))  # without keys there is one, so that scatter works
    listed = indices.clamp(min=0).long()
    bit = torch.where(indices >= 0, torch.ones_like(indices) << (indices & (_WORD - 1)), 0)
    picks = torch.zeros((batch, rows, words), dtype=torch.int32, device=indices.device)
    picks.scatter_add_(-1, listed // _WORD, bit)
    padded = torch.nn.functional.pad(picks, (0, 0, 0, -rows % _SPAN))
    spans = (padded.view(batch, -(-rows // _SPAN), _SPAN, words) != 0).any(2).int()
    return (picks, spans) if keys else (picks[..., :0], spans[..., :0])
