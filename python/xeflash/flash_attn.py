"""The functions of flash-attn 2, with its signatures and semantics.

Layout (batch, sequence, heads, head_dim); variable-length forms pack all sequences into (tokens, heads, head_dim) with
``cu_seqlens`` (int32, batch + 1 starts). ``k`` and ``v`` may have fewer heads than ``q`` (GQA, MQA). Causal masks and
windows are aligned bottom-right: query i sits at key i + Sk - Sq. A row that sees no key gives 0 and an LSE of +inf.
Beyond flash-attn: fp32, any head_dim up to 576, a head_dim of V of its own, and attention sinks (``s_aux``).

Keywords of flash-attn 3 and 4 are taken, too: ``learnable_sink`` is s_aux, ``page_table`` is block_table, ``k_descale``
and ``v_descale`` are k_scale and v_scale, ``return_lse`` returns (out, LSE), a window's side and softcap may be None,
and ``pack_gqa`` changes nothing. What else they have is refused by name. By position, arguments are flash-attn 2's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from xeflash import _core
from xeflash._common import BSHD, LEARNED, THD, engine, seeds, shape_of, snippet, window
from xeflash._interop import UsmPart
from xeflash._newer import LSE_ALONE, takes_newer_keywords
from xeflash.kv_cache import attend_cache


def _run(
    function: str,
    layout: int,
    *,
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float,
    window_size: Sequence[Any],
    softcap: float,
    return_attn_probs: bool,
    score_mod: str | None = None,
    captures: Mapping[str, Any] | None = None,
    **more: Any,
) -> Any:
    """A function's call; `more` are arguments that the extension knows by the same names."""
    arrays = {"q": q, "k": k, "v": v, "captures": captures, "softcap": softcap, **more}
    core = engine(function, q, k, v, arrays, LEARNED)
    if dropout_p and softcap:
        raise ValueError(
            f"{function}: softcap does not support dropout, got dropout_p = {dropout_p}, softcap = {softcap}"
        )
    left, right = window(function, window_size)
    return_lse = return_attn_probs is LSE_ALONE or return_attn_probs
    shows_dropout = bool(dropout_p and return_lse) and return_attn_probs is not LSE_ALONE
    if shows_dropout and core is not _core:
        import torch  # needs no time, as the arrays are its tensors

        if torch.compiler.is_compiling():
            raise NotImplementedError(
                f"{function}: return_attn_probs with dropout must not be compiled, got dropout_p = {dropout_p}"
            )
    seed, offset = seeds(function, dropout_p, q, core=_core if shows_dropout else core)
    out, lse = core.forward(
        function=function, layout=layout, q=q, k=k, v=v, window_left=left, window_right=right, softcap=softcap,
        score_mod=snippet(core, function, score_mod, captures), dropout_p=dropout_p, seed=seed, offset=offset,
        return_lse=return_lse, **more,
    )  # fmt: skip
    if not return_lse:
        return out
    if not shows_dropout:
        return out, lse, None
    return out, lse, _probabilities(
        function, out, score_mod, captures, layout=layout, q=q, k=k, v=v, lse=lse, window_left=left,
        window_right=right, dropout_p=dropout_p, seed=seed, offset=offset, **more,
    )  # fmt: skip


def _probabilities(
    function: str, out: Any, score_mod: str | None, captures: Mapping[str, Any] | None, **given: Any
) -> Any:
    """flash-attn's S_dmask, which has no gradient."""

    def constant(name: str, x: Any) -> Any:
        if not hasattr(x, "detach"):
            return x
        return x.detach().to(out.dtype) if name in ("q", "k", "v") else x.detach()  # autocast's type

    captures = captures and {name: constant("", x) for name, x in captures.items()}
    given = {name: constant(name, x) for name, x in given.items()}
    return _core.probabilities(function=function, score_mod=snippet(_core, function, score_mod, captures), **given)


@takes_newer_keywords
def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[Any] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,  # noqa: ARG001  it always is
    return_attn_probs: bool = False,
    *,
    s_aux: Any = None,
    num_splits: int = 0,
    score_mod: str | None = None,
    captures: Mapping[str, Any] | None = None,
) -> Any:
    """Attention of q (B, Sq, H, D) on k (B, Sk, Hk, D) and v (B, Sk, Hk, Dv).

    Args:
        dropout_p: probability of dropping a softmax probability; see ``manual_seed``.
        softmax_scale: factor of q k^T, of any sign; default 1 / sqrt(D).
        causal: key j is visible to query i iff j <= i + Sk - Sq.
        window_size: (left, right) keys visible around the diagonal; -1 is unlimited.
        softcap: scores become softcap * tanh(score / softcap); 0 is off.
        alibi_slopes: fp32 (H,) or (B, H); adds -slope * |i + Sk - Sq - j| to a score.
        deterministic: of the backward pass, which gives the same bits each time in any case.
        return_attn_probs: also return the LSE, fp32 (B, H, Sq), and S_dmask: with dropout the probabilities
            (B, H, Sq, Sk), negative where they were dropped, for checks, else None. They are normalised, unlike
            flash-attn's, which are relative to a running maximum of its blocks.
        s_aux: (H,) sink logits that join the softmax without a value.
        num_splits: of the keys of a single query, each computed on its own, then merged; 0 chooses.
        score_mod, captures: C++ that changes a score, see ``attention``.

    >>> import numpy as np, xeflash
    >>> q = np.random.default_rng(0).standard_normal((2, 7, 8, 128), np.float32)
    >>> k = v = np.random.default_rng(1).standard_normal((2, 30, 2, 128), np.float32)
    >>> out, lse, _ = xeflash.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    >>> out.shape, lse.shape
    ((2, 7, 8, 128), (2, 8, 7))
    """
    return _run(
        "flash_attn_func", BSHD, q=q, k=k, v=v, dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal,
        window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, return_attn_probs=return_attn_probs,
        s_aux=s_aux, num_splits=num_splits, score_mod=score_mod, captures=captures,
    )  # fmt: skip


@takes_newer_keywords
def flash_attn_qkvpacked_func(
    qkv: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[Any] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,  # noqa: ARG001  it always is
    return_attn_probs: bool = False,
    *,
    s_aux: Any = None,
) -> Any:
    """As flash_attn_func, for qkv (B, S, 3, H, D); nothing is copied.

    >>> import numpy as np, xeflash
    >>> xeflash.flash_attn_qkvpacked_func(np.ones((1, 4, 3, 2, 64), np.float32)).shape
    (1, 4, 2, 64)
    """
    q, k, v = _unpack("flash_attn_qkvpacked_func", "qkv", qkv, 5, 3)
    with _named_after("qkv", "qkv"):
        return _run(
            "flash_attn_qkvpacked_func", BSHD, q=q, k=k, v=v, dropout_p=dropout_p, softmax_scale=softmax_scale,
            causal=causal, window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes,
            return_attn_probs=return_attn_probs, s_aux=s_aux,
        )  # fmt: skip


@takes_newer_keywords
def flash_attn_kvpacked_func(
    q: Any,
    kv: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[Any] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,  # noqa: ARG001  it always is
    return_attn_probs: bool = False,
    *,
    s_aux: Any = None,
) -> Any:
    """As flash_attn_func, for kv (B, Sk, 2, Hk, D); nothing is copied.

    >>> import numpy as np, xeflash
    >>> q, kv = np.ones((1, 4, 2, 64), np.float32), np.ones((1, 9, 2, 1, 64), np.float32)
    >>> xeflash.flash_attn_kvpacked_func(q, kv).shape
    (1, 4, 2, 64)
    """
    k, v = _unpack("flash_attn_kvpacked_func", "kv", kv, 5, 2)
    with _named_after("kv", "kv"):
        return _run(
            "flash_attn_kvpacked_func", BSHD, q=q, k=k, v=v, dropout_p=dropout_p, softmax_scale=softmax_scale,
            causal=causal, window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes,
            return_attn_probs=return_attn_probs, s_aux=s_aux,
        )  # fmt: skip


@takes_newer_keywords
def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[Any] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,  # noqa: ARG001  it always is
    return_attn_probs: bool = False,
    block_table: Any = None,
    *,
    s_aux: Any = None,
    seqused_k: Any = None,
    num_splits: int = 0,
    k_scale: Any = None,
    v_scale: Any = None,
    score_mod: str | None = None,
    captures: Mapping[str, Any] | None = None,
) -> Any:
    """Attention of packed sequences: q (tokens, H, D), k (tokens, Hk, D) and v (tokens, Hk, Dv).

    Args:
        cu_seqlens_q, cu_seqlens_k: int32 (B + 1,): where the sequences start, and their end; they may be empty.
        max_seqlen_q, max_seqlen_k: the tokens of the longest sequences, or more.
        block_table: int32 (B, pages of a sequence): k and v are pools (pages, page, Hk, D) of a paged cache, and
            cu_seqlens_k gives lengths only; it may be None with seqused_k.
        seqused_k: int32 (B,): limits the keys of each sequence to the first ones.
        k_scale, v_scale: of quantised pools, as in flash_attn_with_kvcache.
        score_mod, captures: see ``attention``; positions are those in a sequence, b is its number.

    The other arguments are as in flash_attn_func; the LSE is (H, tokens of q).

    ``cu_seqlens_q`` and ``cu_seqlens_k`` in host memory are checked; on a device they are trusted, as reading them
    would wait for its queue: rows beyond ``max_seqlen_q`` would not be written.

    >>> import numpy as np, xeflash
    >>> q = k = v = np.ones((7, 2, 64), np.float32)
    >>> starts = np.array([0, 3, 3, 7], np.int32)  # sequences of 3, 0 and 4 tokens
    >>> xeflash.flash_attn_varlen_func(q, k, v, starts, starts, 4, 4, causal=True).shape
    (7, 2, 64)
    """
    function = "flash_attn_varlen_func"
    packing: dict[str, Any] = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "seqused_k": seqused_k}
    packing |= {"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k}
    if block_table is not None:
        if dropout_p:
            raise NotImplementedError(f"{function}: dropout_p must be 0 with block_table, got {dropout_p}")
        out, lse = attend_cache(
            function, THD, q=q, k_cache=k, v_cache=v, block_table=block_table, softmax_scale=softmax_scale,
            causal=causal, window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, s_aux=s_aux,
            num_splits=num_splits, k_scale=k_scale, v_scale=v_scale, score_mod=score_mod, captures=captures,
            return_lse=return_attn_probs is LSE_ALONE or return_attn_probs, **packing,
        )  # fmt: skip
        return (out, lse, None) if return_attn_probs else out
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if scale is not None:
            raise NotImplementedError(f"{function}: {name} must be None without block_table, got {_what(scale)}")
    return _run(
        function, THD, q=q, k=k, v=v, dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal,
        window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, return_attn_probs=return_attn_probs,
        s_aux=s_aux, num_splits=num_splits, **packing, score_mod=score_mod, captures=captures,
    )  # fmt: skip


@takes_newer_keywords
def flash_attn_varlen_qkvpacked_func(
    qkv: Any,
    cu_seqlens: Any,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[Any] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,  # noqa: ARG001  it always is
    return_attn_probs: bool = False,
    *,
    s_aux: Any = None,
) -> Any:
    """As flash_attn_varlen_func, for qkv (tokens, 3, H, D); nothing is copied.

    ``cu_seqlens`` and ``max_seqlen`` are those of q and of k.

    >>> import numpy as np, xeflash
    >>> starts = np.array([0, 3, 7], np.int32)
    >>> xeflash.flash_attn_varlen_qkvpacked_func(np.ones((7, 3, 2, 64), np.float32), starts, 4).shape
    (7, 2, 64)
    """
    function = "flash_attn_varlen_qkvpacked_func"
    q, k, v = _unpack(function, "qkv", qkv, 4, 3)
    with _named_after("qkv", "qkv"):
        return _run(
            function, THD, q=q, k=k, v=v, dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal,
            window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, return_attn_probs=return_attn_probs,
            s_aux=s_aux,
            cu_seqlens_q=cu_seqlens,
            cu_seqlens_k=cu_seqlens, max_seqlen_q=max_seqlen, max_seqlen_k=max_seqlen,
        )  # fmt: skip


@takes_newer_keywords
def flash_attn_varlen_kvpacked_func(
    q: Any,
    kv: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[Any] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,  # noqa: ARG001  it always is
    return_attn_probs: bool = False,
    *,
    s_aux: Any = None,
) -> Any:
    """As flash_attn_varlen_func, for kv (tokens, 2, Hk, D); nothing is copied.

    >>> import numpy as np, xeflash
    >>> q, kv = np.ones((2, 2, 64), np.float32), np.ones((7, 2, 1, 64), np.float32)
    >>> starts_q, starts_k = np.array([0, 1, 2], np.int32), np.array([0, 3, 7], np.int32)
    >>> xeflash.flash_attn_varlen_kvpacked_func(q, kv, starts_q, starts_k, 1, 4).shape
    (2, 2, 64)
    """
    function = "flash_attn_varlen_kvpacked_func"
    k, v = _unpack(function, "kv", kv, 4, 2)
    with _named_after("kv", "kv"):
        return _run(
            function, THD, q=q, k=k, v=v, dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal,
            window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, return_attn_probs=return_attn_probs,
            s_aux=s_aux, cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
        )  # fmt: skip


@contextmanager
def _named_after(packed: str, parts: str) -> Iterator[None]:
    """Names the arguments of a packed form in messages about those that they become."""
    names = dict.fromkeys(parts, packed)
    if packed == "qkv":
        names |= {f"{name}_{part}": name for name in ("cu_seqlens", "max_seqlen") for part in "qk"}
    try:
        yield
    except (TypeError, ValueError, NotImplementedError) as error:
        function, colon, text = str(error).partition(": ")
        text = re.sub(r"(?<![\w.'])\w+(?![\w'])", lambda word: names.get(word[0], word[0]), text)
        raise type(error)(function + colon + text) from error


def _what(value: Any) -> Any:
    return value if isinstance(value, int | float) else type(value).__name__


def _unpack(function: str, name: str, packed: Any, rank: int, parts: int) -> tuple[Any, ...]:
    """Views of the parts of (..., parts, H, D)."""
    shape = shape_of(function, name, packed)
    if len(shape) != rank or shape[-3] != parts:
        raise ValueError(
            f"{function}: {name} must have {rank} dimensions with {parts} in the third from last, "
            f"got shape {list(shape)}"
        )
    if hasattr(packed, "__getitem__"):
        unbind = getattr(packed, "unbind", None)  # of which torch makes one gradient, not one for each part
        return unbind(-3) if unbind else tuple(packed[..., i, :, :] for i in range(parts))
    return tuple(UsmPart(packed, i) for i in range(parts))
