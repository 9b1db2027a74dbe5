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

from collections.abc import Mapping, Sequence
from typing import Any

from xeflash.api.attention.blocks import with_blocks
from xeflash.api.attention.float8 import in_8_bits, packed_in_16_bits, query_in_16_bits, without_scales
from xeflash.api.attention.results import attend, attend_without_gradients
from xeflash.api.attention.rewrites import as_cache, in_parts, starts_of_both
from xeflash.api.attention.used_queries import used_queries
from xeflash.call.bind import public
from xeflash.call.call import Call
from xeflash.call.newer_words import WORDS
from xeflash.call.schema import BSHD, THD


@public(BSHD, words=WORDS)
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
    mask_mod: str | None = None,
    block_mask: Any = None,
    block_size: int | tuple[int, int] | None = None,
    document_ids: Any = None,
    attention_chunk: int = 0,
    gather_kv_indices: Any = None,
    out: Any = None,
) -> Any:
    """Computes attention of q (B, Sq, H, D) on k (B, Sk, Hk, D) and v (B, Sk, Hk, Dv).

    Args:
        dropout_p: probability of dropping a softmax probability; see ``manual_seed``.
        softmax_scale: factor of q k^T, of any sign; default 1 / sqrt(D).
        causal: key j is visible to query i iff j <= i + Sk - Sq.
        window_size: (left, right) keys visible around the diagonal; -1 is unlimited. As in flash-attn, so is a number
            of at least the number of keys (with packed sequences max_seqlen_k).
        softcap: scores become softcap * tanh(score / softcap); 0 is off.
        alibi_slopes: fp32 (H,) or (B, H); adds -slope * |i + Sk - Sq - j| to a score.
        deterministic: has no effect: the backward pass always gives the same bits.
        return_attn_probs: also return the LSE, fp32 (B, H, Sq), in bf16 exact to 1e-4, and S_dmask. With dropout
            S_dmask has the probabilities (B, H, Sq, Sk), negative where they were dropped, for checks; else it is None.
            They are normalised, unlike flash-attn's, which are relative to a running maximum of its blocks.
        s_aux: (H,) sink logits that join the softmax without a value.
        num_splits: parts of the keys, which different work-groups take and whose results are merged; up to 128; 0
            chooses.
        q_scale, k_scale, v_scale: factors of q, k and v in 8 bits: a number, or fp32 (B, Hk). q in float8 becomes bf16,
            and so does the result; k and v in float8 or int8 are read as they are.
        score_mod, captures: C++ that changes a score, see ``attention``.
        mask_mod, block_mask, block_size: keys that are hidden and blocks that are left out, see ``attention``. Another
            word for block_mask is flash-attn 4's block_sparse_tensors.
        document_ids: int32 (Sk,) or (B, Sk), the document of each key; a query sees those of its own (``attention``).
        attention_chunk: positions of a chunk: a query, at i + Sk - Sq, sees the keys of its own; 0 is off.
        gather_kv_indices: int32 (B, Sq, n), the keys that each query sees, in any order, each once; negative numbers
            stand for no key (see ``attention``).
        out: where to write the result.

    >>> import numpy as np, xeflash
    >>> q = np.random.default_rng(0).standard_normal((2, 7, 8, 64), np.float32)
    >>> k = v = np.random.default_rng(1).standard_normal((2, 30, 2, 64), np.float32)
    >>> out, lse, _ = xeflash.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    >>> out.shape, lse.shape
    ((2, 7, 8, 64), (2, 8, 7))
    """


@flash_attn_func.body
def _(call: Call) -> Any:
    if in_8_bits(call.arguments["k"]):
        return attend_without_gradients(as_cache(call), "k and v in 8 bits")
    return attend(with_blocks(without_scales(query_in_16_bits(call))))


@public(BSHD, words=WORDS)
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
    """Computes attention as flash_attn_func does, for qkv (B, S, 3, H, D), which is not copied.

    >>> import numpy as np, xeflash
    >>> xeflash.flash_attn_qkvpacked_func(np.ones((1, 4, 3, 2, 64), np.float32)).shape
    (1, 4, 2, 64)
    """


@flash_attn_qkvpacked_func.body
def _(call: Call) -> Any:
    return attend(in_parts(call, "qkv"))


@public(BSHD, words=WORDS)
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
    """Computes attention as flash_attn_func does, for kv (B, Sk, 2, Hk, D), which is not copied.

    >>> import numpy as np, xeflash
    >>> q, kv = np.ones((1, 4, 2, 64), np.float32), np.ones((1, 9, 2, 1, 64), np.float32)
    >>> xeflash.flash_attn_kvpacked_func(q, kv).shape
    (1, 4, 2, 64)
    """


@flash_attn_kvpacked_func.body
def _(call: Call) -> Any:
    return attend(in_parts(call, "kv"))


@public(THD, words=WORDS)
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
    mask_mod: str | None = None,
    block_mask: Any = None,
    block_size: int | tuple[int, int] | None = None,
    attention_chunk: int = 0,
    tree_mask: Any = None,
    out: Any = None,
) -> Any:
    """Computes attention of packed sequences: q (tokens, H, D), k (tokens, Hk, D) and v (tokens, Hk, Dv).

    Args:
        cu_seqlens_q, cu_seqlens_k: int32 (B + 1,): where the sequences start, and their end; they may be empty.
        max_seqlen_q, max_seqlen_k: at least the tokens of the longest sequences.
        block_table: int32 (B, pages of a sequence): k and v are pools (pages, page, Hk, D) of a paged cache, and
            cu_seqlens_k gives lengths only; with seqused_k, cu_seqlens_k may be None or left out. Pages get no
            gradients.
        seqused_q, seqused_k: int32 (B,): limit each sequence to its first queries, or keys. Other queries are rows that
            see no key. seqused_q does not go with dropout and score_mod.
        q_scale: as in flash_attn_func.
        k_scale, v_scale: factors of quantised pools, as in flash_attn_with_kvcache. Without pages, k and v in float8
            become bf16 first, times a number or fp32 (B, Hk).
        score_mod, captures: see ``attention``; positions are those in a sequence, b is its number.
        mask_mod, block_mask, block_size: see ``attention``; blocks are those of each sequence, of max_seqlen_q rows and
            max_seqlen_k keys. They do not go with seqused_q and tree_mask.
        tree_mask: as in flash_attn_with_kvcache, on pages, with T at least max_seqlen_q; a sequence of fewer queries
            has the first rows and columns of its mask.

    The other arguments are as in flash_attn_func; the LSE is (H, tokens of q).

    ``cu_seqlens_q`` and ``cu_seqlens_k`` in host memory are checked; on a device they are trusted, as reading them
    would wait for its queue, unless XEFLASH_CHECK is 1: rows beyond ``max_seqlen_q`` would not be written.

    >>> import numpy as np, xeflash
    >>> q = k = v = np.ones((7, 2, 64), np.float32)
    >>> starts = np.array([0, 3, 3, 7], np.int32)  # sequences of 3, 0 and 4 tokens
    >>> xeflash.flash_attn_varlen_func(q, k, v, starts, starts, 4, 4, causal=True).shape
    (7, 2, 64)
    """


@flash_attn_varlen_func.body
def _(call: Call) -> Any:
    if call.arguments.get("block_table") is None:
        return attend(with_blocks(used_queries(packed_in_16_bits(call))))
    paged = as_cache(call)
    if "seqused_q" in call.arguments:
        paged = used_queries(query_in_16_bits(paged))  # scales first, as sequences are other ones then
    return attend_without_gradients(paged, "block_table")


@public(THD, words=WORDS)
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
    """Computes attention as flash_attn_varlen_func does, for qkv (tokens, 3, H, D), which is not copied.

    ``cu_seqlens`` and ``max_seqlen`` are those of q and of k.

    >>> import numpy as np, xeflash
    >>> starts = np.array([0, 3, 7], np.int32)
    >>> xeflash.flash_attn_varlen_qkvpacked_func(np.ones((7, 3, 2, 64), np.float32), starts, 4).shape
    (7, 2, 64)
    """


@flash_attn_varlen_qkvpacked_func.body
def _(call: Call) -> Any:
    return attend(starts_of_both(in_parts(call, "qkv")))


@public(THD, words=WORDS)
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
    """Computes attention as flash_attn_varlen_func does, for kv (tokens, 2, Hk, D), which is not copied.

    >>> import numpy as np, xeflash
    >>> q, kv = np.ones((2, 2, 64), np.float32), np.ones((7, 2, 1, 64), np.float32)
    >>> starts_q, starts_k = np.array([0, 1, 2], np.int32), np.array([0, 3, 7], np.int32)
    >>> xeflash.flash_attn_varlen_kvpacked_func(q, kv, starts_q, starts_k, 1, 4).shape
    (2, 2, 64)
    """


@flash_attn_varlen_kvpacked_func.body
def _(call: Call) -> Any:
    return attend(in_parts(call, "kv"))
