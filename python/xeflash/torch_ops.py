"""``torch.ops.xeflash.*``: the functions as operators of torch's dispatcher, for CPU and XPU tensors.

They can be traced (torch.compile, torch.export), see autocast and dispatch modes, and give results in memory of torch's
allocators without waiting for a device. The public functions go through them by themselves where that matters, see
``needed``; elsewhere they call the extension directly, which costs less. A result that was not asked for has no
elements.

This module stands in for the extension there: ``forward``, ``forward_cached``, ``Cache`` and ``merge_states`` are
those of _core.pyi.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _get_tracing_state, _is_any_autocast_enabled, _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

import xeflash.jit  # noqa: F401  gives the extension its kernels
from xeflash import _core, _score_mod
from xeflash._common import BHSD, BSHD, THD, seeds

Pair = tuple[Tensor, Tensor]
Scalar = int | float

LIBRARY = torch.library.Library("xeflash", "DEF")
_KEYS = {"cpu": "CPU", "xpu": "XPU"}


def needed(q: Any, k: Any, v: Any) -> bool:
    """Whether torch has to see a call on these: it transforms, casts or records, or they are no plain tensors."""
    plain = type(q) is Tensor and type(k) is Tensor and type(v) is Tensor
    return bool(
        not (plain or all(type(x) is Tensor or not isinstance(x, Tensor) for x in (q, k, v)))
        or _len_torch_dispatch_stack()
        or _is_any_autocast_enabled()
        or peek_interpreter_stack() is not None
        or _get_tracing_state() is not None
    )


def refuse_gradients(function: str, *arrays: Any) -> None:
    """They are not computed yet, neither backward nor forward."""
    if is_grad_enabled():
        for array in arrays:
            if array is not None and isinstance(array, Tensor) and array.requires_grad:  # isinstance is slow for None
                raise NotImplementedError(
                    f"{function}: the backward pass is not there yet, but an input requires grad; "
                    "call it under torch.no_grad() or detach the input"
                )
    if forward_ad._current_level >= 0:
        for array in arrays:
            if isinstance(array, Tensor) and forward_ad.unpack_dual(array).tangent is not None:
                raise NotImplementedError(
                    f"{function}: forward-mode gradients are not there, but an input has a tangent"
                )


# ---- the kernels: what runs, and by its signature the schema -----------------------------------


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    bottom_right: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    seed: int | None = None,
    offset: int = 0,
    return_lse: bool = False,
    score_mod: str | None = None,
    capture_names: Sequence[str] | None = None,
    capture_arrays: Sequence[Tensor] | None = None,
    capture_numbers: Sequence[Scalar] | None = None,
) -> Pair:
    """xeflash.attention of 4-dimensional tensors."""
    refuse_gradients("attention", query, key, value, attn_mask, alibi_slopes, sinks, *(capture_arrays or ()))
    snippet = _snippet("attention", score_mod, capture_names, capture_arrays, capture_numbers)
    seed, offset = seeds("attention", dropout_p, query, None if seed is None else (seed, offset))
    out, lse = _core.forward(
        "attention", BHSD, query, key, value, None, None, None, 0, 0, None, attn_mask, alibi_slopes, sinks, scale,
        is_causal, window_left, window_right, not bottom_right, softcap, dropout_p, seed, offset, return_lse,
        enable_gqa, snippet, 0,
    )  # fmt: skip
    return out, _present(lse, query)


def flash_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    *,
    s_aux: Tensor | None = None,
    seed: int | None = None,
    offset: int = 0,
    return_lse: bool = False,
    score_mod: str | None = None,
    capture_names: Sequence[str] | None = None,
    capture_arrays: Sequence[Tensor] | None = None,
    capture_numbers: Sequence[Scalar] | None = None,
) -> Pair:
    """xeflash.flash_attn_func."""
    refuse_gradients("flash_attn_func", q, k, v, alibi_slopes, s_aux, *(capture_arrays or ()))
    snippet = _snippet("flash_attn_func", score_mod, capture_names, capture_arrays, capture_numbers)
    seed, offset = seeds("flash_attn_func", dropout_p, q, None if seed is None else (seed, offset))
    out, lse = _core.forward(
        "flash_attn_func", BSHD, q, k, v, None, None, None, 0, 0, None, None, alibi_slopes, s_aux, softmax_scale,
        causal, window_left, window_right, False, softcap, dropout_p, seed, offset, return_lse, True, snippet, 0,
    )  # fmt: skip
    return out, _present(lse, q)


def flash_attn_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    block_table: Tensor | None = None,
    *,
    s_aux: Tensor | None = None,
    seqused_k: Tensor | None = None,
    seed: int | None = None,
    offset: int = 0,
    return_lse: bool = False,
    score_mod: str | None = None,
    capture_names: Sequence[str] | None = None,
    capture_arrays: Sequence[Tensor] | None = None,
    capture_numbers: Sequence[Scalar] | None = None,
) -> Pair:
    """xeflash.flash_attn_varlen_func."""
    function = "flash_attn_varlen_func"
    refuse_gradients(function, q, k, v, alibi_slopes, s_aux, *(capture_arrays or ()))
    snippet = _snippet(function, score_mod, capture_names, capture_arrays, capture_numbers)
    if block_table is not None:
        if dropout_p:
            raise NotImplementedError(f"{function}: dropout_p must be 0 with block_table, got {dropout_p}")
        cache = _core.Cache(None, -1, None, None, block_table, None, None, None, None, None, None, None, True)
        out, lse = _core.forward_cached(
            function, q, k, v, None, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_k, alibi_slopes,
            s_aux, softmax_scale, causal, window_left, window_right, softcap, return_lse, 0, None, snippet, cache,
        )  # fmt: skip
        return out, _present(lse, q)
    seed, offset = seeds("flash_attn_varlen_func", dropout_p, q, None if seed is None else (seed, offset))
    out, lse = _core.forward(
        function, THD, q, k, v, None, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, seqused_k, None,
        alibi_slopes, s_aux, softmax_scale, causal, window_left, window_right, False, softcap, dropout_p, seed, offset,
        return_lse, True, snippet, 0,
    )  # fmt: skip
    return out, _present(lse, q)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    *,
    return_lse: bool = False,
    cache_length: int = -1,
    s_aux: Tensor | None = None,
    beam_index: Tensor | None = None,
    unified_max: float | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    k_factor: float | None = None,
    v_factor: float | None = None,
    score_mod: str | None = None,
    capture_names: Sequence[str] | None = None,
    capture_arrays: Sequence[Tensor] | None = None,
    capture_numbers: Sequence[Scalar] | None = None,
) -> Pair:
    """The function of this name; cache_length and the factors are its cache_seqlens and scales that are numbers."""
    function = "flash_attn_with_kvcache"
    arrays = (q, k_cache, v_cache, k, v, rotary_cos, rotary_sin, k_scale, v_scale, alibi_slopes, s_aux)
    refuse_gradients(function, *arrays, *(capture_arrays or ()))
    snippet = _snippet(function, score_mod, capture_names, capture_arrays, capture_numbers)
    cache = _core.Cache(
        cache_seqlens, cache_length, cache_batch_idx, cache_leftpad, block_table, beam_index,
        k_factor if k_scale is None else k_scale, v_factor if v_scale is None else v_scale, k, v, rotary_cos,
        rotary_sin, rotary_interleaved,
    )  # fmt: skip
    out, lse = _core.forward_cached(
        function, q, k_cache, v_cache, None, None, None, 0, 0, None, alibi_slopes, s_aux, softmax_scale, causal,
        window_left, window_right, softcap, return_lse, num_splits, unified_max, snippet, cache,
    )  # fmt: skip
    return out, _present(lse, q)


def merge(outs: Sequence[Tensor], lses: Sequence[Tensor]) -> Pair:
    """xeflash.merge_states of the outs and LSEs."""
    refuse_gradients("merge_states", *outs, *lses)
    result: Pair = _core.merge_states(list(outs), list(lses))
    return result


def _present(lse: Tensor | None, like: Tensor) -> Tensor:
    return like.new_empty(0, dtype=torch.float32) if lse is None else lse


# A snippet's captures as lists: the names of the arrays, then those of the numbers.


def _snippet(
    function: str,
    text: str | None,
    names: Sequence[str] | None,
    arrays: Sequence[Tensor] | None,
    numbers: Sequence[Scalar] | None,
) -> Any:
    if text is None and not names:
        return None
    return _score_mod.check(function, text, dict(zip(names or (), (*(arrays or ()), *(numbers or ())), strict=True)))


def _as_lists(snippet: tuple[str, Mapping[str, Any]] | None) -> dict[str, Any]:
    if snippet is None:
        return {}
    text, captures = snippet
    arrays = {name: x for name, x in captures.items() if isinstance(x, Tensor)}
    numbers = {name: x for name, x in captures.items() if not isinstance(x, Tensor)}
    return {
        "score_mod": text,
        "capture_names": [*arrays, *numbers],
        "capture_arrays": list(arrays.values()),
        "capture_numbers": list(numbers.values()),
    }


# ---- the same without data: shapes, types and strides of the results ---------------------------


def _attention_fake(query: Tensor, key: Tensor, value: Tensor, *features: Any, **more: Any) -> Pair:
    _refuse_any_gradient("attention", query, key, value, *features, *more.values())
    batch, heads, rows, _dim = query.shape
    return _results(query, (batch, heads, rows, value.shape[-1]), (batch, heads, rows), more.get("return_lse", False))


def _flash_attn_fake(q: Tensor, k: Tensor, v: Tensor, *features: Any, **more: Any) -> Pair:
    _refuse_any_gradient("flash_attn_func", q, k, v, *features, *more.values())
    batch, rows, heads, _dim = q.shape
    return _results(q, (batch, rows, heads, v.shape[-1]), (batch, heads, rows), more.get("return_lse", False))


def _varlen_fake(q: Tensor, k: Tensor, v: Tensor, *features: Any, **more: Any) -> Pair:
    _refuse_any_gradient("flash_attn_varlen_func", q, k, v, *features, *more.values())
    tokens, heads, _dim = q.shape
    return _results(q, (tokens, heads, v.shape[-1]), (heads, tokens), more.get("return_lse", False))


def _kvcache_fake(q: Tensor, k_cache: Tensor, v_cache: Tensor, *features: Any, **more: Any) -> Pair:
    _refuse_any_gradient("flash_attn_with_kvcache", q, k_cache, v_cache, *features, *more.values())
    batch, rows, heads, _dim = q.shape
    out, lse = (batch, rows, heads, v_cache.shape[-1]), (batch, heads, rows)
    return _results(q, out, lse, more.get("return_lse", False))


def _merge_fake(outs: Sequence[Tensor], lses: Sequence[Tensor]) -> Pair:
    _refuse_any_gradient("merge_states", outs, lses)
    *batch, rows, heads, _dim = outs[0].shape
    return _results(outs[0], tuple(outs[0].shape), (*batch, heads, rows), True)


def _refuse_any_gradient(function: str, *arguments: Any) -> None:
    lists = (x if isinstance(x, list | tuple) else [x] for x in arguments)
    refuse_gradients(function, *(x for values in lists for x in values))


def _results(like: Tensor, out: tuple[Any, ...], lse: tuple[Any, ...], want_lse: bool) -> Pair:
    return like.new_empty(out), like.new_empty(lse if want_lse else (0,), dtype=torch.float32)


# ---- registration -------------------------------------------------------------------------------


def _autocast(operator: Any, device: str, cast: tuple[int, ...]) -> Callable[..., Any]:
    """Casts the arguments at these places, as torch does for its own attention, and calls again below autocast."""
    above = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{_KEYS[device]}"))

    def kernel(*arguments: Any, **more: Any) -> Any:
        dtype, values = torch.get_autocast_dtype(device), list(arguments)
        paged = operator is torch.ops.xeflash.flash_attn_varlen.default and len(values) > 14 and values[14] is not None
        for place in (0,) if paged else cast:  # a cache is used where it is
            x = values[place] if place < len(values) else None
            if x is not None and x.is_floating_point() and x.dtype is not torch.float64:
                values[place] = x.to(dtype)
        with torch._C._ExcludeDispatchKeyGuard(above):
            return operator(*values, **more)

    return kernel


_TYPES = {"int": "SymInt", "Sequence[Tensor]": "Tensor[]", "Sequence[str]": "str[]", "Sequence[Scalar]": "Scalar[]"}


def _schema(kernel: Callable[..., Any], mutates: tuple[str, ...]) -> str:
    """The arguments of a kernel in the words of torch's dispatcher."""
    words = []
    for name, parameter in inspect.signature(kernel).parameters.items():
        annotation, _, optional = str(parameter.annotation).partition(" | ")
        kind = _TYPES.get(annotation, annotation)
        if name in mutates:
            kind += f"({'abcd'[mutates.index(name)]}!)"
        word = f"{kind}{'?' if optional else ''} {name}"
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        if parameter.default is not parameter.empty:
            word += f"={parameter.default!r}"
        words.append(word)
    return f"({', '.join(words)}) -> (Tensor, Tensor)"


def _register(
    name: str,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    cast: tuple[int, ...] = (),
    mutates: tuple[str, ...] = (),
    random: bool = False,
) -> None:
    tags = (torch.Tag.pt2_compliant_tag, *((torch.Tag.nondeterministic_seeded,) if random else ()))
    LIBRARY.define(name + _schema(kernel, mutates), tags=tags)
    operator = getattr(torch.ops.xeflash, name).default
    for device, key in _KEYS.items():
        LIBRARY.impl(name, kernel, key)
        if cast:
            LIBRARY.impl(name, _autocast(operator, device, cast), f"Autocast{key}")
    torch.library.register_fake(f"xeflash::{name}", fake, lib=LIBRARY)


_register("attention", attention, _attention_fake, (0, 1, 2), random=True)
_register("flash_attn", flash_attn, _flash_attn_fake, (0, 1, 2), random=True)
_register("flash_attn_varlen", flash_attn_varlen, _varlen_fake, (0, 1, 2), random=True)
_register(
    "flash_attn_with_kvcache",
    flash_attn_with_kvcache,
    _kvcache_fake,
    (0, 3, 4),
    mutates=("k_cache", "v_cache", "k_scale", "v_scale"),
)
_register("merge_states", merge, _merge_fake)

_attention_op = torch.ops.xeflash.attention.default
_flash_attn_op = torch.ops.xeflash.flash_attn.default
_varlen_op = torch.ops.xeflash.flash_attn_varlen.default
_kvcache_op = torch.ops.xeflash.flash_attn_with_kvcache.default
_merge_op = torch.ops.xeflash.merge_states.default


# ---- in the place of the extension --------------------------------------------------------------


def forward(
    function: str, layout: int, q: Any, k: Any, v: Any, out: Any, cu_q: Any, cu_k: Any, max_q: Any, max_k: Any,
    used_k: Any, bias: Any, alibi: Any, sinks: Any, scale: float | None, causal: bool, left: int, right: int,
    top_left: bool, softcap: float, dropout: float, seed: int | None, offset: int, want_lse: bool,
    broadcast_heads: bool, score_mod: Any, splits: int, /,
) -> tuple[Any, Any]:  # fmt: skip
    """_core.forward by the operator of the layout; seed None: it draws one."""
    more = {"softcap": softcap, "alibi_slopes": alibi, "return_lse": want_lse, **_as_lists(score_mod)}
    more |= {"window_left": left, "window_right": right, "seed": _as_int64(seed), "offset": _as_int64(offset)}
    if layout == BHSD:
        result, lse = _attention_op(
            q, k, v, bias, dropout, causal, scale, broadcast_heads, bottom_right=not top_left, sinks=sinks, **more
        )
    elif layout == BSHD:
        result, lse = _flash_attn_op(q, k, v, dropout, scale, causal, s_aux=sinks, **more)
    else:
        result, lse = _varlen_op(
            q, k, v, cu_q, cu_k, max_q, max_k, dropout, scale, causal, s_aux=sinks, seqused_k=used_k, **more
        )
    return result if out is None else out.copy_(result), lse if want_lse else None


def _as_int64(value: int | None) -> int | None:
    return value if value is None or value < 2**63 else value - 2**64


class Cache(NamedTuple):
    """The arguments of _core.Cache."""

    lengths: Any
    length: Any
    sequences: Any
    left_pad: Any
    pages: Any
    beams: Any
    k_scale: Any
    v_scale: Any
    k: Any
    v: Any
    cos: Any
    sin: Any
    interleaved: bool


def forward_cached(
    function: str, q: Any, k_cache: Any, v_cache: Any, out: Any, cu_q: Any, cu_k: Any, max_q: Any, max_k: Any,
    used_k: Any, alibi: Any, sinks: Any, scale: float | None, causal: bool, left: int, right: int, softcap: float,
    want_lse: bool, splits: int, unified_max: float | None, score_mod: Any, cache: Cache, /,
) -> tuple[Any, Any]:  # fmt: skip
    """_core.forward_cached by the operator of a cache, or of packed sequences."""
    more = {"s_aux": sinks, "window_left": left, "window_right": right, "softcap": softcap, "alibi_slopes": alibi}
    more |= {"return_lse": want_lse, **_as_lists(score_mod)}
    if cu_q is not None:
        result, lse = _varlen_op(
            q, k_cache, v_cache, cu_q, cu_k, max_q, max_k, 0.0, scale, causal, block_table=cache.pages,
            seqused_k=used_k, **more,
        )  # fmt: skip
    else:
        for side, scales in (("k", cache.k_scale), ("v", cache.v_scale)):
            if isinstance(scales, Tensor):
                more[f"{side}_scale"] = scales
            elif scales is not None:
                more[f"{side}_factor"] = float(scales)
        result, lse = _kvcache_op(
            q, k_cache, v_cache, cache.k, cache.v, cache.cos, cache.sin, cache.lengths, cache.sequences,
            cache.left_pad, cache.pages, scale, causal, rotary_interleaved=cache.interleaved, num_splits=splits,
            cache_length=cache.length, beam_index=cache.beams, unified_max=unified_max, **more,
        )  # fmt: skip
    return result, lse if want_lse else None


def merge_states(outs: list[Any], lses: list[Any], /) -> tuple[Any, Any]:
    """_core.merge_states by its operator."""
    result: Pair = _merge_op(outs, lses)
    return result
