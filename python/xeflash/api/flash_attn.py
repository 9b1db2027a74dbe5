"""The functions of flash-attn 2, with its signatures and semantics.

Layout (batch, sequence, heads, head_dim); variable-length forms pack all sequences into (tokens, heads, head_dim) with
``cu_seqlens`` (int32, batch + 1 starts). ``k`` and ``v`` may have fewer heads than ``q`` (GQA, MQA). Causal masks and
windows are aligned bottom-right: query i sits at key i + Sk - Sq. A row that sees no key gives 0 and an LSE of +inf.
Beyond flash-attn: fp32, any head_dim up to 576, a head_dim of V of its own, and attention sinks (``s_aux``).

Keywords of flash-attn 3 and 4, vLLM and SGLang are taken, too: ``learnable_sink`` and ``sinks`` are s_aux,
``page_table`` is block_table, ``q_descale`` and its like are q_scale, k_scale and v_scale, ``return_lse`` and
``return_softmax_lse`` return (out, LSE), a window, its side and softcap may be None, and ``pack_gqa``, ``fa_version``
and ``zero_tensors`` change nothing. What else they have is refused by name. By position, arguments are flash-attn 2's.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from xeflash import _core
from xeflash.api.float8 import dense_in_8_bits, packed_in_8_bits, take_query
from xeflash.api.kv_cache import attend_cache
from xeflash.api.picked import take_picks
from xeflash.api.public import public, renamed, take_flags
from xeflash.api.route import engine
from xeflash.api.used_queries import take_used_queries
from xeflash.call.schema import BSHD, THD, WITH_GRADIENTS
from xeflash.call.values import is_on, seeds, shape_of, shown, snippet, take_window
from xeflash.runtime.interop import UsmPart


def _run(function: str, layout: int, given: dict[str, Any]) -> Any:
    """A function's call; `given` are its arguments."""
    return_lse, return_probs = take_flags(function, given)
    take_window(function, given)
    q, dropout_p, softcap = given["q"], given.get("dropout_p"), given.get("softcap")
    core = engine(function, q, given["k"], given["v"], given, WITH_GRADIENTS)
    drops = is_on(function, "dropout_p", dropout_p)
    if drops and is_on(function, "softcap", softcap):
        raise ValueError(
            f"{function}: softcap does not support dropout, got dropout_p = {dropout_p}, softcap = {softcap}"
        )
    shows_dropout = drops and return_probs
    if shows_dropout and core is not _core:
        import torch  # needs no time, as the arrays are its tensors

        if torch.compiler.is_compiling():
            raise NotImplementedError(
                f"{function}: return_attn_probs with dropout must not be compiled, got dropout_p = {dropout_p}"
            )
    if drops:
        given["seed"], given["offset"] = seeds(function, dropout_p, q, core=_core if shows_dropout else core)
    given["return_lse"] = return_lse
    picked = take_picks(function, BSHD, (q, given["k"], given["v"]), given)
    if picked is not None:
        return (*picked, None) if return_probs else picked if return_lse else picked[0]
    snippet_of = (given.pop("score_mod", None), given.pop("captures", None))
    if any(x is not None for x in snippet_of):
        given["score_mod"] = snippet(core, function, *snippet_of)
    given["layout"], given["function"] = layout, function
    out, lse = core.forward(**given)
    if not return_lse:
        return out
    if not return_probs:
        return out, lse
    if not shows_dropout:
        return out, lse, None
    return out, lse, _probabilities(function, out, *snippet_of, {**given, "lse": lse})


def _dense(function: str, given: dict[str, Any]) -> Any:
    if dense_in_8_bits(function, given):
        given |= {"k_cache": given.pop("k"), "v_cache": given.pop("v")}
        with renamed({"k_cache": "k", "v_cache": "v"}):
            return _of_cache(function, BSHD, given, "k and v in 8 bits")
    return _run(function, BSHD, given)


def _packed(function: str, given: dict[str, Any]) -> Any:
    """Arguments of which q, k and v, or k and v, are one array."""
    name = "qkv" if "qkv" in given else "kv"
    varlen = "varlen" in function
    parts = "qkv"[3 - len(name) :]
    given |= zip(parts, _unpack(function, name, given.pop(name), 4 if varlen else 5, len(parts)), strict=True)
    for both in ("cu_seqlens", "max_seqlen"):
        if both in given:
            given[f"{both}_q"] = given[f"{both}_k"] = given.pop(both)
    names = dict.fromkeys(parts, name)
    if name == "qkv":
        names |= {f"{both}_{part}": both for both in ("cu_seqlens", "max_seqlen") for part in "qk"}
    with renamed(names):
        return _run(function, THD if varlen else BSHD, given)


def _varlen(function: str, given: dict[str, Any]) -> Any:
    if given.get("block_table") is None:
        given.pop("block_table", None)
        packed_in_8_bits(function, given)
        take_used_queries(function, given)
        return _run(function, THD, given)
    given |= {"k_cache": given.pop("k"), "v_cache": given.pop("v")}
    take_query(function, given)  # before sequences are other ones
    take_used_queries(function, given)
    return _of_cache(function, THD, given, "block_table")


def _of_cache(function: str, layout: int, given: dict[str, Any], why: str) -> Any:
    """A call on keys and values that have no gradients, for the reason `why`."""
    for name in ("document_ids", "gather_kv_indices"):
        if (value := given.pop(name, None)) is not None:
            raise NotImplementedError(f"{function}: {name} must be None with {why}, got {shown(value)}")
    dropout_p = given.pop("dropout_p", 0)
    if isinstance(dropout_p, bool) or is_on(function, "dropout_p", dropout_p):
        raise NotImplementedError(f"{function}: dropout_p must be 0 with {why}, got {shown(dropout_p)}")
    given["return_lse"], return_probs = take_flags(function, given)
    if layout == THD and len(of_k := shape_of(function, "k", given["k_cache"])) == 3:
        raise ValueError(
            f"{function}: block_table must be None unless k has pages (pages, rows, heads, head_dim), "
            f"got one with k.shape = {list(of_k)}"
        )
    recorded = _detach(given)
    out, lse = attend_cache(function, layout, given)
    if recorded:
        from xeflash.torch_ops.gradients import without_gradient

        out = without_gradient(f"{function}: there must be no gradients with {why}, got a backward pass", out, recorded)
    if return_probs:
        return out, lse, None
    return (out, lse) if given["return_lse"] else out


def _detach(given: dict[str, Any]) -> list[Any]:
    """Detaches q, keys and values that require grad; returns them as they were. flash-attn runs such calls."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return []
    tensors = {name: x for name in ("q", "k_cache", "v_cache") if isinstance(x := given[name], torch.Tensor)}
    recorded = {name: x for name, x in tensors.items() if x.requires_grad}
    given |= {name: x.detach() for name, x in recorded.items()}
    return list(recorded.values())


def _probabilities(
    function: str, out: Any, score_mod: str | None, captures: Mapping[str, Any] | None, given: dict[str, Any]
) -> Any:
    """flash-attn's S_dmask, which has no gradient."""

    def constant(name: str, x: Any) -> Any:
        if not hasattr(x, "detach"):
            return x
        return x.detach().to(out.dtype) if name in ("q", "k", "v") else x.detach()  # autocast's type

    captures = captures and {name: constant("", x) for name, x in captures.items()}
    given = {name: constant(name, x) for name, x in given.items()}
    given |= {"score_mod": snippet(_core, function, score_mod, captures)}
    return _core.probabilities(**given)


@public(_dense)
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
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    s_aux: Any = None,
    num_splits: int = 0,
    q_scale: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    score_mod: str | None = None,
    captures: Mapping[str, Any] | None = None,
    document_ids: Any = None,
    attention_chunk: int = 0,
    gather_kv_indices: Any = None,
    out: Any = None,
) -> Any:
    """Attention of q (B, Sq, H, D) on k (B, Sk, Hk, D) and v (B, Sk, Hk, Dv).

    Args:
        dropout_p: probability of dropping a softmax probability; see ``manual_seed``.
        softmax_scale: factor of q k^T, of any sign; default 1 / sqrt(D).
        causal: key j is visible to query i iff j <= i + Sk - Sq.
        window_size: (left, right) keys visible around the diagonal; -1 is unlimited, and so is, as in flash-attn, a
            number that is not below the keys (those of the longest sequence: max_seqlen_k).
        softcap: scores become softcap * tanh(score / softcap); 0 is off.
        alibi_slopes: fp32 (H,) or (B, H); adds -slope * |i + Sk - Sq - j| to a score.
        deterministic: of the backward pass, which gives the same bits each time in any case.
        return_attn_probs: also return the LSE, fp32 (B, H, Sq), of bf16 to within 1e-4, and S_dmask: with dropout the
            probabilities (B, H, Sq, Sk), negative where they were dropped, for checks, else None. They are normalised,
            unlike flash-attn's, which are relative to a running maximum of its blocks.
        s_aux: (H,) sink logits that join the softmax without a value.
        num_splits: of the keys, each for other work-groups, whose results are merged; up to 128; 0 chooses.
        q_scale, k_scale, v_scale: what the elements of q, k and v in 8 bits are multiplied by: a number, or fp32
            (B, Hk). q in float8 becomes bf16, as the result; k and v in float8 or int8 are read as they are.
        score_mod, captures: C++ that changes a score, see ``attention``.
        document_ids: int32 (Sk,) or (B, Sk), the document of each key; a query sees those of its own (``attention``).
        attention_chunk: positions of a chunk: a query, at i + Sk - Sq, sees the keys of its own; 0 is off.
        gather_kv_indices: int32 (B, Sq, n), the keys that each query sees, in any order, each once; negative numbers
            are none (``attention``).
        out: where to write the result.

    >>> import numpy as np, xeflash
    >>> q = np.random.default_rng(0).standard_normal((2, 7, 8, 64), np.float32)
    >>> k = v = np.random.default_rng(1).standard_normal((2, 30, 2, 64), np.float32)
    >>> out, lse, _ = xeflash.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    >>> out.shape, lse.shape
    ((2, 7, 8, 64), (2, 8, 7))
    """


@public(_packed)
def flash_attn_qkvpacked_func(
    qkv: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[Any] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    s_aux: Any = None,
    document_ids: Any = None,
    attention_chunk: int = 0,
) -> Any:
    """As flash_attn_func, for qkv (B, S, 3, H, D); nothing is copied.

    >>> import numpy as np, xeflash
    >>> xeflash.flash_attn_qkvpacked_func(np.ones((1, 4, 3, 2, 64), np.float32)).shape
    (1, 4, 2, 64)
    """


@public(_packed)
def flash_attn_kvpacked_func(
    q: Any,
    kv: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sequence[Any] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    s_aux: Any = None,
    document_ids: Any = None,
    attention_chunk: int = 0,
) -> Any:
    """As flash_attn_func, for kv (B, Sk, 2, Hk, D); nothing is copied.

    >>> import numpy as np, xeflash
    >>> q, kv = np.ones((1, 4, 2, 64), np.float32), np.ones((1, 9, 2, 1, 64), np.float32)
    >>> xeflash.flash_attn_kvpacked_func(q, kv).shape
    (1, 4, 2, 64)
    """


@public(_varlen)
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
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any = None,
    *,
    s_aux: Any = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    num_splits: int = 0,
    q_scale: Any = None,
    k_scale: Any = None,
    v_scale: Any = None,
    score_mod: str | None = None,
    captures: Mapping[str, Any] | None = None,
    attention_chunk: int = 0,
    out: Any = None,
) -> Any:
    """Attention of packed sequences: q (tokens, H, D), k (tokens, Hk, D) and v (tokens, Hk, Dv).

    Args:
        cu_seqlens_q, cu_seqlens_k: int32 (B + 1,): where the sequences start, and their end; they may be empty.
        max_seqlen_q, max_seqlen_k: the tokens of the longest sequences, or more.
        block_table: int32 (B, pages of a sequence): k and v are pools (pages, page, Hk, D) of a paged cache, and
            cu_seqlens_k gives lengths only; it may be None, or left out, with seqused_k. There are no gradients then.
        seqused_q, seqused_k: int32 (B,): limit the queries, or keys, of each sequence to the first ones. Other queries
            are rows that see no key. seqused_q comes without dropout and score_mod.
        q_scale: as in flash_attn_func.
        k_scale, v_scale: of quantised pools, as in flash_attn_with_kvcache. Without pages k and v in float8 become
            bf16 first, by a number or fp32 (B, Hk).
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


@public(_packed)
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
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    s_aux: Any = None,
    attention_chunk: int = 0,
) -> Any:
    """As flash_attn_varlen_func, for qkv (tokens, 3, H, D); nothing is copied.

    ``cu_seqlens`` and ``max_seqlen`` are those of q and of k.

    >>> import numpy as np, xeflash
    >>> starts = np.array([0, 3, 7], np.int32)
    >>> xeflash.flash_attn_varlen_qkvpacked_func(np.ones((7, 3, 2, 64), np.float32), starts, 4).shape
    (7, 2, 64)
    """


@public(_packed)
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
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    s_aux: Any = None,
    attention_chunk: int = 0,
) -> Any:
    """As flash_attn_varlen_func, for kv (tokens, 2, Hk, D); nothing is copied.

    >>> import numpy as np, xeflash
    >>> q, kv = np.ones((2, 2, 64), np.float32), np.ones((7, 2, 1, 64), np.float32)
    >>> starts_q, starts_k = np.array([0, 1, 2], np.int32), np.array([0, 3, 7], np.int32)
    >>> xeflash.flash_attn_varlen_kvpacked_func(q, kv, starts_q, starts_k, 1, 4).shape
    (2, 2, 64)
    """


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
