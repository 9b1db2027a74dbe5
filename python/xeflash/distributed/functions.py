"""The public functions: flash-attn's words, and where the shards of a sequence lie.

Each rank gives its own shard of q, k and v, and gets that of the output. All ranks of a group call alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from xeflash.call.bind import public
from xeflash.call.call import Call
from xeflash.call.newer_words import WORDS
from xeflash.call.schema import BSHD, THD
from xeflash.distributed import running


def _run(call: Call) -> Any:
    """Runs a call outside of torch.compile's graphs, as transports do not belong into them."""
    if torch.compiler.is_dynamo_compiling():
        from xeflash.distributed import uncompiled

        return uncompiled.run(call)
    return running.run(call)


@public(BSHD, words=WORDS, with_ranks=True)
def context_parallel_attn_func(
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
    score_mod: str | None = None,
    captures: Mapping[str, Any] | None = None,
    group: Any = None,
    shards: str = "zigzag",
    how: str | tuple[str, str] = "auto",
) -> Any:
    """Computes ``flash_attn_func`` of a sequence that lies in shards on the W ranks of a group.

    Args:
        q: (B, L, H, D), this rank's rows of the sequence, see ``shard``. float32, bfloat16 or float16 on cpu or xpu.
        k: (B, L, Hk, D), the same rows; H is a multiple of Hk. Without a mask, and if nothing depends on positions, k
            and v may belong to another sequence, which is dealt alike.
        v: (B, L, Hk, Dv).
        dropout_p: probability of dropping a softmax probability. All ranks draw the numbers of one process with rank
            0's seed. In a ring and with gathered keys, chunks must be multiples of 8 rows.
        softmax_scale: factor of q k^T, of any sign; default 1 / sqrt(D).
        causal: row i of the whole sequence sees key j iff j <= i.
        window_size: (left, right) keys visible around the diagonal; -1 is unlimited. A ring ends after the last step in
            which a rank sees a key; with windows it ends soonest with shards="ranges".
        softcap: scores become softcap * tanh(score / softcap); 0 is off. It does not go with dropout.
        alibi_slopes: fp32 (H,) or (B, H); adds -slope * |i - j| to a score. Each rank gives the slopes of all heads.
        deterministic: has no effect: the backward pass always gives the same bits.
        return_attn_probs: also return the LSE of this rank's rows, fp32 (B, H, L), and None. It does not go with
            dropout, as probabilities are not available.
        s_aux: (H,) sink logits that join the softmax without a value. Each rank gives those of all heads.
        score_mod: C++ that changes a score, see ``attention``; b, h, q_idx and k_idx are those of one process.
        captures: tensors, the same on all ranks, and numbers for score_mod.
        group: a group of torch.distributed, None for the default one; or two, as a tuple (outer, inner) or a DeviceMesh
            of two dimensions, to exchange heads in the inner one, and keys in the outer one.
        shards: how ``shard`` dealt the rows: "zigzag", which balances the work of ranks under causal masks, or
            "ranges".
        how: "all_gather", "all_to_all", "ring", or "auto", which takes the way that sends the fewest bytes (see
            ``cost``). For two groups it is a pair, the outer way first: ("ring", "all_to_all") or ("all_gather",
            "all_to_all").

    Returns:
        The rows of the output that belong to q, and with return_attn_probs (out, LSE, None).

    What each way needs and gives:
        "all_gather" gathers K and V of all ranks, so memory grows with W; dK and dV are summed in fp32 in the order of
        ranks. The backward pass gathers again. "all_to_all" exchanges shards of all heads for all rows of some; H must
        be a multiple of W. "ring" holds the keys of two shards at a time. In the forward pass "all_to_all" gives the
        bits of one process; so does "all_gather" if chunks are multiples of the kernel's rows. A ring merges parts,
        which rounds differently. Each way gives the same bits each time.

    Gradients:
        The gradients of q, k and v belong to this rank's rows, and are complete. Those of alibi_slopes, s_aux and
        captures are this rank's part, which the caller sums over the group like a parameter's; after "all_to_all"
        slopes and sinks of other ranks' heads have 0 here. Gradients cannot be differentiated again.

    All ranks must call alike: shapes, types, features and the number of the call are compared before anything moves
    (see ``check_calls``), and a ValueError on all ranks says what differs. torch.compile leaves the call out of its
    graph, and refuses it with fullgraph=True.

    >>> import torch, torch.distributed as dist, xeflash.distributed as cp
    >>> # q, k, v = (cp.shard(x) for x in (q, k, v))                   (B, S, H, D) to (B, S / W, H, D)
    >>> # out = cp.unshard(cp.context_parallel_attn_func(q, k, v, causal=True))
    """


@context_parallel_attn_func.body
def _(call: Call) -> Any:
    return _run(call)


@public(THD, words=WORDS, with_ranks=True)
def context_parallel_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
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
    score_mod: str | None = None,
    captures: Mapping[str, Any] | None = None,
    group: Any = None,
    shards: str = "zigzag",
    how: str | tuple[str, str] = "auto",
) -> Any:
    """Computes ``flash_attn_varlen_func`` of packed documents whose tokens lie in shards on the ranks of a group.

    Shards are dealt without regard to where documents begin: a document may lie on several ranks.

    Args:
        q: (L, H, D), this rank's tokens; ``shard(x, 0)`` deals them.
        k: (L, Hk, D), the same tokens.
        v: (L, Hk, Dv).
        cu_seqlens: int32 (B + 1,): the starts of the documents among the W L tokens of all ranks, and their end. In
            host memory it is checked and compared, and a ring skips steps in which no document has both rows and keys;
            on a device it is trusted, as reading it would wait.
        max_seqlen: at least the tokens of the longest document.
        dropout_p: as in ``context_parallel_attn_func``, with how="all_to_all" alone.
        alibi_slopes: fp32 (H,) or (B, H), of B documents.
        return_attn_probs: also return the LSE, fp32 (H, L), and None.
        score_mod: positions are those in a document, b is its number.
        softmax_scale, causal, window_size, softcap, deterministic, s_aux, captures, group, shards, how: as in
            ``context_parallel_attn_func``.
    """


@context_parallel_attn_varlen_func.body
def _(call: Call) -> Any:
    return _run(call)
