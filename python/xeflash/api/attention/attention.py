"""``attention``: the convention of torch.nn.functional.scaled_dot_product_attention, with all features of xeflash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xeflash.api.attention.blocks import with_blocks
from xeflash.api.attention.picked import run_picked
from xeflash.api.attention.ranks import in_4d, with_its_axes
from xeflash.api.attention.rewrites import seed_of_rng
from xeflash.call.bind import public
from xeflash.call.call import Call
from xeflash.call.schema import BHSD, DEFAULTS_OF_ATTENTION, OF_ATTENTION


@public(BHSD, words=OF_ATTENTION, **DEFAULTS_OF_ATTENTION)
def attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    bottom_right: bool = False,
    window_size: Sequence[Any] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    sinks: Any = None,
    score_mod: str | None = None,
    captures: Mapping[str, Any] | None = None,
    mask_mod: str | None = None,
    block_mask: Any = None,
    block_size: int | tuple[int, int] | None = None,
    document_ids: Any = None,
    attention_chunk: int = 0,
    gather_kv_indices: Any = None,
    return_lse: bool = False,
    rng: tuple[int, int] | None = None,
    out: Any = None,
) -> Any:
    """Computes attention of query (..., H, L, E) on key (..., Hk, S, E) and value (..., Hk, S, Ev).

    Args:
        attn_mask: boolean (True takes part), or additive in fp32 or the type of query. It broadcasts to (..., H, L, S)
            without being materialised, and may be combined with all other arguments.
        dropout_p: probability of dropping a softmax probability.
        is_causal: key j is visible to query i iff j <= i (torch's top-left), or j <= i + S - L with bottom_right.
        scale: factor of q k^T, of any sign; default 1 / sqrt(E).
        enable_gqa: key and value may have fewer heads; consecutive query heads then share a head.
        bottom_right: aligns the diagonal of is_causal, window_size and alibi_slopes at the last query and key.
        window_size: (left, right) keys visible around the diagonal; -1 is unlimited.
        softcap: scores become softcap * tanh(score / softcap); 0 is off.
        alibi_slopes: fp32 (H,) or (B, H); adds -slope * distance from the diagonal.
        sinks: (H,) logits that join the softmax without a value.
        score_mod: C++ that gives a score's new value, after everything above: an expression of s (the scaled score), b,
            h, q_idx, k_idx (batch, head, positions) and captures, or statements that return one. It may use operators,
            select(condition, a, b), number (as a float), whole (as an int, towards 0), floor (a float), min, max, abs,
            exp, exp2, log, log2, sqrt, tanh, sin, cos and inf; -inf hides a key. It may not branch (if, ?, for): use
            select. It gives each variable a value where it declares it, and has no numbers beyond float32. Bools, ints
            and floats of 32 bits convert as in C++, bool to int to float; s, positions and what is read at them are
            vectors, so a snippet that makes one of them a single bool, int or float (`float y = s`) does not compile:
            write `auto y = s`. It is compiled into the kernel at its first use. The snippet is code that runs in this
            process and may read and write all its memory: never take it from somebody whom you do not trust.
        captures: values that score_mod and mask_mod read by name: at most 8 numbers, and 8 arrays of up to 4 dimensions
            (fp32, fp16, bf16, int32, bool), read as `name[i]` or `name(i, j)`, or as `name` if it has no dimensions. An
            index past an end reads the element at that end. Tensors that require grad get gradients: each element's is
            the sum over the scores that have read it. mask_mod's have none.
        mask_mod: C++ that says whether a row sees a key: a condition of b, h, q_idx, k_idx and captures, or statements
            that return one, by the rules of score_mod. Blocks of 128 rows and keys that it hides are found first, and
            take no time.
        block_mask: blocks of rows and keys that are listed; others are left out, and take no time. It is bool (B or 1,
            H or 1, blocks of rows, blocks of keys) with block_size; a BlockMask of torch.nn.attention.flex_attention;
            or flash-attn 4's four tensors. B is the product of the leading dimensions of query. In full blocks of the
            latter two, mask_mod is not applied. Tensors are read once, until an operation of torch writes to them; who
            writes to them otherwise makes new ones.
        block_size: rows and keys of a block, a number or two, multiples of 16.
        document_ids: int32 (S,) or (..., S), the document of each key, in any order: a query sees only the keys of its
            own document, within is_causal and window_size. Queries are the last L of the S positions (bottom_right if L
            < S). Blocks of keys without an id of their queries take no time; most are such if the ids of a document lie
            together.
        attention_chunk: positions of a chunk: a query sees only the keys of its own chunk, within is_causal and
            window_size. The position of a query is that of its diagonal (bottom_right). 0 is off. Other blocks take no
            time.
        gather_kv_indices: sparse attention: an int32 torch tensor (..., L, n) of the keys that each query sees, for all
            heads, in any order and each once, within is_causal and window_size; negative numbers stand for no key. Few
            queries without gradients read only the rows of their lists, and sum in another order; for many queries,
            blocks of keys that 64 neighbours do not pick take no time.
        return_lse: also return log sum exp of the scores, fp32 (..., H, L); -inf for a row that sees no key.
        rng: (seed, offset) of dropout's counter-based generator; default the next of ``manual_seed``'s.
        out: where to write the result.

    A row that sees no key gives 0.

    >>> import numpy as np, xeflash
    >>> q = np.ones((1, 8, 5, 64), np.float32)
    >>> k = v = np.ones((1, 2, 9, 64), np.float32)
    >>> xeflash.attention(q, k, v, enable_gqa=True, is_causal=True, bottom_right=True).shape
    (1, 8, 5, 64)
    >>> near = np.linspace(0, 1, 1024, dtype=np.float32)
    >>> snippet = "s + near[q_idx - k_idx + 512]"
    >>> xeflash.attention(q, k, v, enable_gqa=True, score_mod=snippet, captures={"near": near}).shape
    (1, 8, 5, 64)
    """


@attention.body
def _(call: Call) -> Any:
    call = seed_of_rng(call)
    flat = in_4d(call)
    out, lse = run_picked(with_blocks(flat))
    if flat is not call:
        out, lse = with_its_axes(call, out, lse)
    return (out, lse) if call.get("return_lse") else out
