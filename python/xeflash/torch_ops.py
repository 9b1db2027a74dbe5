"""``torch.ops.xeflash.*``: the functions as operators of torch's dispatcher, for CPU and XPU tensors.

They can be traced (torch.compile, torch.export), see autocast and dispatch modes, and give results in memory of torch's
allocators without waiting for a device. The public functions go through them by themselves where that matters, see
``needed``; elsewhere they call the extension directly, which costs less. A result that was not asked for has no
elements; ``function`` is who calls, for messages.

This module stands in for the extension there: ``forward`` and ``merge_states`` are those of _core.pyi.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from numbers import Number
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import xeflash.jit  # noqa: F401  gives the extension its kernels
from xeflash import _core, _score_mod
from xeflash._arguments import ARRAYS
from xeflash._common import BHSD, BSHD, THD, seeds
from xeflash._torch_library import Pair, Results, Scalar, as_int64, as_lists, as_snippet, register, resolved
from xeflash._torch_library import needed as needed
from xeflash._torch_library import wants_gradients as wants_gradients
from xeflash.torch_gradients import Gradients, merge_with_gradients

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from xeflash._arguments import Arguments

_APPENDED = ("k_cache", "v_cache", "k_scale", "v_scale")  # written where there are new keys


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
    keep_rest: bool = False,
    score_mod: str | None = None,
    capture_names: Sequence[str] | None = None,
    capture_arrays: Sequence[Tensor] | None = None,
    capture_numbers: Sequence[Scalar] | None = None,
    function: str = "attention",
) -> Results:
    """xeflash.attention of 4-dimensional tensors."""
    snippet = as_snippet(function, score_mod, capture_names, capture_arrays, capture_numbers)
    seed, offset = seeds(function, dropout_p, query, None if seed is None else (seed, offset))
    rest = _rest(keep_rest, query, value)
    out, lse = _core.forward(
        function=function, layout=BHSD, q=query, k=key, v=value, softmax_scale=scale, causal=is_causal,
        window_left=window_left, window_right=window_right, bottom_right=bottom_right, softcap=softcap,
        alibi_slopes=alibi_slopes, s_aux=sinks, attn_mask=attn_mask, score_mod=snippet, dropout_p=dropout_p, seed=seed,
        offset=offset, return_lse=return_lse, rest=rest, enable_gqa=enable_gqa,
    )  # fmt: skip
    return out, _present(lse, query), _state(dropout_p, seed, offset), _present(rest, query, query.dtype)


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
    num_splits: int = 0,
    seed: int | None = None,
    offset: int = 0,
    return_lse: bool = False,
    keep_rest: bool = False,
    score_mod: str | None = None,
    capture_names: Sequence[str] | None = None,
    capture_arrays: Sequence[Tensor] | None = None,
    capture_numbers: Sequence[Scalar] | None = None,
    function: str = "flash_attn_func",
) -> Results:
    """xeflash.flash_attn_func."""
    snippet = as_snippet(function, score_mod, capture_names, capture_arrays, capture_numbers)
    seed, offset = seeds(function, dropout_p, q, None if seed is None else (seed, offset))
    rest = _rest(keep_rest, q, v)
    out, lse = _core.forward(
        function=function, layout=BSHD, q=q, k=k, v=v, softmax_scale=softmax_scale, causal=causal,
        window_left=window_left, window_right=window_right, softcap=softcap, alibi_slopes=alibi_slopes, s_aux=s_aux,
        num_splits=num_splits, score_mod=snippet, dropout_p=dropout_p, seed=seed, offset=offset, return_lse=return_lse,
        rest=rest,
    )  # fmt: skip
    return out, _present(lse, q), _state(dropout_p, seed, offset), _present(rest, q, q.dtype)


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
    num_splits: int = 0,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    k_factor: float | None = None,
    v_factor: float | None = None,
    seed: int | None = None,
    offset: int = 0,
    return_lse: bool = False,
    keep_rest: bool = False,
    score_mod: str | None = None,
    capture_names: Sequence[str] | None = None,
    capture_arrays: Sequence[Tensor] | None = None,
    capture_numbers: Sequence[Scalar] | None = None,
    function: str = "flash_attn_varlen_func",
) -> Results:
    """xeflash.flash_attn_varlen_func; scales (factors are those that are numbers) belong to pages in 8 bits."""
    snippet = as_snippet(function, score_mod, capture_names, capture_arrays, capture_numbers)
    paged = block_table is not None
    _refuse_both(function, k_scale=k_scale, k_factor=k_factor)
    _refuse_both(function, v_scale=v_scale, v_factor=v_factor)
    if not paged:
        scales = {"k_scale": k_scale, "v_scale": v_scale, "k_factor": k_factor, "v_factor": v_factor}
        for name, scale in scales.items():
            if scale is not None:
                raise ValueError(f"{function}: {name} must come with block_table, got one without")
    if paged and dropout_p:
        raise NotImplementedError(f"{function}: dropout_p must be 0 with block_table, got {dropout_p}")
    keys: dict[str, Any] = {"k_cache": k, "v_cache": v, "block_table": block_table} if paged else {"k": k, "v": v}
    seed, offset = seeds(function, dropout_p, q, None if seed is None else (seed, offset))
    rest = _rest(keep_rest, q, v)
    out, lse = _core.forward(
        function=function, layout=THD, q=q, **keys, k_scale=k_factor if k_scale is None else k_scale,
        v_scale=v_factor if v_scale is None else v_scale, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k, seqused_k=seqused_k, softmax_scale=softmax_scale,
        causal=causal, window_left=window_left, window_right=window_right, softcap=softcap, alibi_slopes=alibi_slopes,
        s_aux=s_aux, num_splits=num_splits, score_mod=snippet, dropout_p=dropout_p, seed=seed, offset=offset,
        return_lse=return_lse, rest=rest,
    )  # fmt: skip
    return out, _present(lse, q), _state(dropout_p, seed, offset), _present(rest, q, q.dtype)


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
    function: str = "flash_attn_with_kvcache",
) -> Pair:
    """The function of this name; cache_length and the factors are its cache_seqlens and scales that are numbers."""
    _refuse_both(function, k_scale=k_scale, k_factor=k_factor)
    _refuse_both(function, v_scale=v_scale, v_factor=v_factor)
    _refuse_both(function, cache_seqlens=cache_seqlens, cache_length=None if cache_length == -1 else cache_length)
    snippet = as_snippet(function, score_mod, capture_names, capture_arrays, capture_numbers)
    out, lse = _core.forward(
        function=function, layout=BSHD, q=q, k=k, v=v, k_cache=k_cache, v_cache=v_cache, rotary_cos=rotary_cos,
        rotary_sin=rotary_sin, cache_seqlens=cache_seqlens, cache_length=cache_length, cache_batch_idx=cache_batch_idx,
        cache_leftpad=cache_leftpad, block_table=block_table, softmax_scale=softmax_scale, causal=causal,
        window_left=window_left, window_right=window_right, softcap=softcap, rotary_interleaved=rotary_interleaved,
        alibi_slopes=alibi_slopes, num_splits=num_splits, return_lse=return_lse, s_aux=s_aux, beam_index=beam_index,
        unified_max=unified_max, k_scale=k_factor if k_scale is None else k_scale,
        v_scale=v_factor if v_scale is None else v_scale, score_mod=snippet,
    )  # fmt: skip
    return out, _present(lse, q)


def merge(outs: Sequence[Tensor], lses: Sequence[Tensor]) -> Pair:
    """xeflash.merge_states of the outs and LSEs."""
    result: Pair = _core.merge_states(list(outs), list(lses))
    return result


def _refuse_both(function: str, **two: Any) -> None:
    """Two arguments that say the same, an array and a number."""
    (array, x), (number, y) = two.items()
    if x is not None and y is not None:
        raise ValueError(f"{function}: {number} must not be given with {array}, got {y}")


def _present(result: Tensor | None, like: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return like.new_empty(0, dtype=dtype) if result is None else result


def _rest(keep: bool, q: Tensor, v: Tensor) -> Tensor | None:
    """For what rounding takes from the output; float32 is not rounded."""
    keeps = keep and q.dtype.itemsize == 2 and v.dim() > 0
    return q.new_empty((*q.shape[:-1], v.shape[-1])) if keeps else None


def _state(dropout_p: float, seed: int, offset: int) -> Tensor:
    """What dropout drew its numbers from; nothing without it."""
    if not dropout_p:
        return _nothing()
    return torch.tensor([as_int64(seed), as_int64(offset)], dtype=torch.int64, device="cpu")


@functools.cache
def _nothing() -> Tensor:
    """One tensor for all calls: it has no elements that anyone could change, and making one takes its time."""
    with torch.inference_mode(False):
        return torch.empty(0, dtype=torch.int64, device="cpu")


# ---- the same without data: shapes, types and strides of the results ---------------------------


def _attention_fake(
    query: Tensor, key: Tensor, value: Tensor, *, function: str, return_lse: bool = False, keep_rest: bool = False,
    dropout_p: float = 0.0, **_more: Any,
) -> Results:  # fmt: skip
    _check_fake(function, {"query": query, "key": key, "value": value}, 4)
    batch, heads, rows, _dim = query.shape
    results = _results(query, (batch, heads, rows, value.shape[-1]), (batch, heads, rows), return_lse)
    return *results, _state_fake(dropout_p), _present(_rest(keep_rest, query, value), query, query.dtype)


def _flash_attn_fake(
    q: Tensor, k: Tensor, v: Tensor, *, function: str, return_lse: bool = False, keep_rest: bool = False,
    dropout_p: float = 0.0, **_more: Any,
) -> Results:  # fmt: skip
    _check_fake(function, {"q": q, "k": k, "v": v}, 4)
    batch, rows, heads, _dim = q.shape
    results = _results(q, (batch, rows, heads, v.shape[-1]), (batch, heads, rows), return_lse)
    return *results, _state_fake(dropout_p), _present(_rest(keep_rest, q, v), q, q.dtype)


def _varlen_fake(
    q: Tensor, k: Tensor, v: Tensor, *, function: str, block_table: Tensor | None = None, return_lse: bool = False,
    keep_rest: bool = False, dropout_p: float = 0.0, **_more: Any,
) -> Results:  # fmt: skip
    paged = block_table is not None
    _check_fake(function, {"q": q, "k": k, "v": v}, 3, 4 if paged else 3, cached=paged)
    tokens, heads, _dim = q.shape
    results = _results(q, (tokens, heads, v.shape[-1]), (heads, tokens), return_lse)
    return *results, _state_fake(dropout_p), _present(_rest(keep_rest, q, v), q, q.dtype)


def _kvcache_fake(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, *, function: str, return_lse: bool = False, **_more: Any
) -> Pair:
    _check_fake(function, {"q": q, "k_cache": k_cache, "v_cache": v_cache}, 4, cached=True)
    batch, rows, heads, _dim = q.shape
    return _results(q, (batch, rows, heads, v_cache.shape[-1]), (batch, heads, rows), return_lse)


def _merge_fake(outs: Sequence[Tensor], **_more: Any) -> Pair:
    *batch, rows, heads, _dim = outs[0].shape
    return _results(outs[0], tuple(outs[0].shape), (*batch, heads, rows), True)


def _check_fake(function: str, arrays: dict[str, Tensor], rank: int, rank_k: int = 0, cached: bool = False) -> None:
    """What the extension would refuse in q, k and v."""
    (q_name, q), *keys = arrays.items()
    for name, x, dims in ((q_name, q, rank), *((name, x, rank_k or rank) for name, x in keys)):
        if x.dim() != dims:
            rule = f"the {dims} dimensions of {q_name}" if x is not q and dims == rank else f"{dims} dimensions"
            raise ValueError(f"{function}: {name} must have {rule}, got {x.dim()}")
    for name, x in keys:
        if x.dtype is not q.dtype and not (cached and x.dtype.itemsize == 1):
            raise TypeError(f"{function}: {name} must have the dtype of {q_name} ({q.dtype}), got {x.dtype}")
    if keys[0][1].shape[-1] != q.shape[-1]:
        raise ValueError(
            f"{function}: {keys[0][0]}.head_dim must equal {q_name}.head_dim ({q.shape[-1]}), "
            f"got {keys[0][1].shape[-1]}"
        )


def _results(like: Tensor, out: tuple[Any, ...], lse: tuple[Any, ...], want_lse: bool) -> Pair:
    return like.new_empty(out), like.new_empty(lse if want_lse else (0,), dtype=torch.float32)


def _state_fake(dropout_p: float) -> Tensor:
    return torch.empty(2 if dropout_p else 0, dtype=torch.int64, device="cpu")


# ---- registration -------------------------------------------------------------------------------

# What the operator that follows torch's scaled_dot_product_attention calls them.
_NAMES_OF_ATTENTION = {
    "q": "query",
    "k": "key",
    "v": "value",
    "causal": "is_causal",
    "softmax_scale": "scale",
    "s_aux": "sinks",
}
_NAMES_OF_PAGES = {"k_cache": "k", "v_cache": "v"}
_NAMES: dict[int, dict[str, str]] = {BHSD: _NAMES_OF_ATTENTION, THD: _NAMES_OF_PAGES, BSHD: {}}

_attention_op = register(
    "attention", attention, _attention_fake, cast=("query", "key", "value"), random=True,
    differentiate=Gradients(BHSD, _NAMES_OF_ATTENTION),
)  # fmt: skip
_flash_attn_op = register(
    "flash_attn", flash_attn, _flash_attn_fake, cast=("q", "k", "v"), random=True, differentiate=Gradients(BSHD)
)
_varlen_op = register(
    "flash_attn_varlen", flash_attn_varlen, _varlen_fake, cast=("q", "k", "v"), random=True,
    differentiate=Gradients(THD),
)  # fmt: skip
_kvcache_op = register(
    "flash_attn_with_kvcache", flash_attn_with_kvcache, _kvcache_fake, cast=("q", "k", "v"), mutates=_APPENDED
)
_merge_op = register("merge_states", merge, _merge_fake, differentiate=merge_with_gradients)


# ---- in the place of the extension --------------------------------------------------------------


def forward(**arguments: Unpack[Arguments]) -> tuple[Any, Any]:
    """_core.forward by the operator of these arguments, which refuses those that it does not have."""
    given: dict[str, Any] = {**arguments}
    _prepare(given)
    layout, out = given.pop("layout"), given.pop("out", None)
    given |= as_lists(given.pop("score_mod", None))
    names = _NAMES[layout]
    if layout == BHSD:
        operator = _attention_op
    elif layout == THD:
        operator = _varlen_op
        given.setdefault("cu_seqlens_k", None)  # pages need none, and the schema has no default
    else:
        operator = _kvcache_op if "k_cache" in given else _flash_attn_op
    for name in ("seed", "offset"):
        if name in given:
            given[name] = None if given[name] is None else as_int64(given[name])
    for side in "kv":  # a scale that is a number has a name of its own in a schema
        if (scale := given.pop(f"{side}_scale", None)) is not None:
            if not isinstance(scale, Tensor) and abs(scale) >= 2**128:  # a schema's floats hold less than an int
                raise ValueError(
                    f"{given['function']}: {side}_scale must be positive and finite in float32, got {scale!s:.40}"
                )
            given[f"{side}_scale" if isinstance(scale, Tensor) else f"{side}_factor"] = scale
    result, lse, *_state = operator(**{names.get(name, name): value for name, value in given.items()})
    if out is not None:
        inputs = {names.get(name, name): x for name, x in given.items() if name in ARRAYS}
        result = _written(given["function"], out, result, given["q"], inputs)
    return result, lse if given.get("return_lse") else None


def _prepare(given: dict[str, Any]) -> None:
    """Checks types as the extension does, as a schema's message would not name the function; resolves negated views."""
    if torch.compiler.is_compiling():
        return
    function, names = given["function"], _NAMES[given["layout"]]
    if not isinstance(given["q"], Tensor):  # else torch would not have to see the call
        name, got = names.get("q", "q"), type(given["q"]).__name__
        raise TypeError(f"{function}: {name} must be a torch tensor, as another argument requires grad, got {got}")
    symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)
    seed = {"seed": 0} if given.get("seed", 0) is None else {}  # drawn by the operator
    _core.check_arguments(**{name: x for name, x in (given | seed).items() if not isinstance(x, symbolic)})
    if (snippet := given.get("score_mod")) is not None:
        _check_snippet(function, *snippet)
    appends = given.get("k") is not None
    for key, x in given.items():
        if key not in ARRAYS or x is None:
            continue
        name = names.get(key, key)
        if isinstance(x, Tensor):
            if x.layout is not torch.strided:
                raise TypeError(f"{function}: {name} must be a dense tensor, got one of {x.layout}")
            given[key] = resolved(function, name, x, key == "out" or (appends and key in _APPENDED))
        elif key not in ("k_scale", "v_scale") or not isinstance(x, int | float) or isinstance(x, bool):
            raise TypeError(
                f"{function}: {name} must be a torch tensor as {names.get('q', 'q')} is one, got {type(x).__name__}"
            )


def _check_snippet(function: str, text: str, captures: Mapping[str, Any]) -> None:
    _score_mod.check(function, text, captures)
    for name, x in captures.items():
        if not isinstance(x, Tensor | Number):
            raise TypeError(
                f'{function}: captures["{name}"] must be a number or a torch tensor, got {type(x).__name__}'
            )


def _written(function: str, out: Tensor, result: Tensor, q: Tensor, inputs: dict[str, Any]) -> Tensor:
    """`out` with the result in it; autocast may have computed in another type than that of q and out.

    Operators return new tensors, so the extension never sees `out`, and copy_ would broadcast and cast: its rules are
    said here again, where there may be no memory.
    """
    if out.shape != result.shape:
        raise ValueError(f"{function}: out must have the shape {list(result.shape)}, got {list(out.shape)}")
    if out.device != result.device:
        raise ValueError(f"{function}: out must be on the device of q ({result.device}), got {out.device}")
    if out.dtype not in (q.dtype, result.dtype):
        raise TypeError(f"{function}: out must have the dtype of q ({q.dtype}), got {out.dtype}")
    if _overlaps_itself(out):
        raise ValueError(f"{function}: out must not have elements in one place, got strides {list(out.stride())}")
    for name, x in inputs.items():
        refuse_shared(function, out, name, x)
    return out.copy_(result)


def _overlaps_itself(x: Tensor) -> bool:
    """False where each step is longer than all that the shorter ones reach, as slicing and transposing leave it."""
    axes = [(n, step) for n, step in zip(x.shape, x.stride(), strict=True) if n > 1]
    return any(n * step <= sum((m - 1) * other for m, other in axes if other <= step) for n, step in axes)


def refuse_shared(function: str, out: Any, name: str, other: Any) -> None:
    """_core.refuse_shared, where there is memory."""
    if torch.compiler.is_compiling() or type(out) is not Tensor or type(other) is not Tensor:
        return
    if other.device == out.device and other.numel():
        _core.refuse_shared(function, out, name, other)


def merge_states(outs: list[Any], lses: list[Any], /) -> tuple[Any, Any]:
    """_core.merge_states by its operator."""
    for kind, arrays in (("out", outs), ("lse", lses)):
        for i, x in enumerate(arrays):
            if not isinstance(x, Tensor) or x.layout is not torch.strided:
                raise TypeError(
                    f"merge_states: {kind} {i} must be a dense torch tensor as out 0 is one, got {type(x).__name__}"
                )
    result: Pair = _merge_op(outs, lses)
    return result
