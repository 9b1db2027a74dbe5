"""Attention by the book, in float64: every feature of the public functions, one sequence of lines, no blocks.

    S = scale Q K^T -> softcap -> ALiBi -> + bias or mask -> score_mod -> window, chunks, documents, tree, blocks
    P = softmax(S, sink);   O = dropout(P) V

Arrays are (batch, head, row, dim), of numpy or torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"

_MANY = 1 << 20  # elements of an array for all heads, beside which those of one head take no time of their own


class Blocks(NamedTuple):
    """Blocks of rows and keys, (B or 1, H or 1, blocks of rows, blocks of keys)."""

    listed: Any  # bool: a row sees keys of it
    full: Any  # bool: also those that mask_mod hides
    rows: int  # of a block
    keys: int


@dataclass(frozen=True)
class Features:
    """The features of an attention, apart from the shapes of Q, K and V."""

    scale: float | None = None  # None: D ** -0.5
    window: tuple[int, int] = (-1, -1)  # keys left and right of the diagonal, -1: no limit
    top_left: bool = False  # the diagonal starts at (0, 0) instead of ending at (Sq, Sk)
    softcap: float = 0.0
    alibi: Any = None  # slopes, (H,) or (B, H)
    mask: Any = None  # bool, True takes part, or float to add; broadcasts to (B, H, Sq, Sk)
    score_mod: Any = None  # f(S, b, h, i, j) -> S, of arrays that broadcast
    chunk: int = 0  # positions that see each other; 0: all
    documents: Any = None  # ids (Sk,) or (B, Sk): a row, of the last ones, sees keys of its own id
    tree: Any = None  # (Sq, Sq): which of the last Sq keys each row sees
    mask_mod: Any = None  # f(b, h, i, j) -> bool, of arrays that broadcast: the row sees the key
    blocks: Blocks | None = None  # of these batches
    sinks: Any = None  # (H,): logits that join the softmax without a value
    dropout: float = 0.0
    rng: tuple[int, int] = (0, 0)  # seed, offset of dropout
    empty_lse: float = field(default=np.inf)  # LSE of a row that sees no key
    batch0: int = 0  # first batch, as dropout numbers it
    head0: int = 0  # first head
    all_heads: int = 0  # the heads in all; 0: as many as there are here

    def with_(self, **changes: Any) -> Features:
        """Returns a copy with changes."""
        return replace(self, **changes)

    def one_head(self, head: int, heads: int) -> Features:
        """Returns the features of one head out of `heads`."""
        one = slice(head, head + 1)
        alibi, sinks = (None if x is None else x[..., one] for x in (self.alibi, self.sinks))
        has_heads = self.mask is not None and self.mask.ndim > 2 and self.mask.shape[-3] > 1
        mask = self.mask[..., one, :, :] if has_heads else self.mask
        blocks = self.blocks
        if blocks and blocks.listed.shape[1] > 1:
            blocks = blocks._replace(listed=blocks.listed[:, one], full=blocks.full[:, one])
        return self.with_(alibi=alibi, sinks=sinks, mask=mask, blocks=blocks, head0=head, all_heads=heads)


# ---- Philox 4x32-10 (Salmon et al., 2011) -------------------------------------------------------


def philox(counter: list[Array], key: tuple[int, int]) -> list[Array]:
    """Draws the four 32-bit words for a counter of four words (arrays of uint64 below 2**32, broadcast)."""
    low = np.uint64(0xFFFFFFFF)
    c = [np.asarray(word, np.uint64) for word in counter]
    k0, k1 = key
    for _ in range(10):
        product0, product1 = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (product1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k0),
            product1 & low,
            (product0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k1),
            product0 & low,
        ]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def dropout_scale(
    shape: tuple[int, int, int, int],
    p: float,
    rng: tuple[int, int],
    batch0: int = 0,
    head0: int = 0,
    all_heads: int = 0,
) -> Array:
    """Returns the factor of each probability (B, H, Sq, Sk): 0, or 65536 / (65536 - round(65536 p))."""
    batch, heads, rows, keys = shape
    below = round(p * 65536)
    seed, offset = rng
    key = (seed & 0xFFFFFFFF, (seed >> 32 & 0xFFFFFFFF) ^ (offset >> 32 & 0xFFFFFFFF))
    octets = (rows + 7) // 8
    planes = (np.arange(batch)[:, None] + batch0) * (all_heads or heads) + np.arange(heads) + head0
    words = philox(
        [
            np.arange(keys, dtype=np.uint64)[None, None, :],
            np.arange(octets, dtype=np.uint64)[None, :, None],
            planes.reshape(-1, 1, 1),
            np.uint64(offset & 0xFFFFFFFF),
        ],
        key,
    )
    draws = np.empty((batch * heads, octets, 8, keys), np.uint16)
    for r in range(8):  # row r of an octet takes half r % 2 of word r // 2
        draws[:, :, r] = words[r // 2] >> np.uint64(16 * (r % 2)) & np.uint64(0xFFFF)
    draws = draws.reshape(batch * heads, octets * 8, keys)[:, :rows].reshape(shape)
    keep = 65536 / (65536 - below) if below < 65536 else 0.0
    return np.where(draws < below, 0.0, keep)


# ---- which keys a row sees ----------------------------------------------------------------------


def visible(rows: int, keys: int, window: tuple[int, int], top_left: bool) -> Array:
    """Returns (Sq, Sk): key j is visible to row i iff -left <= j - (i + shift) <= right."""
    ahead = distance(rows, keys, top_left)
    left, right = window
    seen = np.ones((rows, keys), bool)
    if left >= 0:
        seen &= ahead >= -left
    if right >= 0:
        seen &= ahead <= right
    return seen


def seen_by(rows: int, keys: int, f: Features, batch: int = 1, heads: int = 1) -> Array:
    """Returns which keys each row sees: (Sq, Sk), or (B or 1, H or 1, Sq, Sk) where sequences or heads differ."""
    seen = visible(rows, keys, f.window, f.top_left)
    if f.chunk:
        positions, key_positions = np.arange(rows) + (0 if f.top_left else keys - rows), np.arange(keys)
        seen &= (positions // f.chunk)[:, None] == key_positions // f.chunk
    if f.tree is not None:
        seen[:, keys - rows :] &= f.tree
    if f.documents is not None:
        ids = np.atleast_2d(to_numpy(f.documents))[:, None]
        seen = np.asarray(seen & (ids[..., keys - rows :, None] == ids[..., None, :]))
    if f.mask_mod is None and f.blocks is None:
        return seen
    b, h, i, j = np.ogrid[:batch, :heads, :rows, :keys]
    by_mod = True if f.mask_mod is None else f.mask_mod(b + f.batch0, h + f.head0, i, j)
    if f.blocks is None:
        return np.asarray(seen & by_mod)
    block = ..., i[0, 0] // f.blocks.rows, j[0, 0] // f.blocks.keys
    return np.asarray(seen & f.blocks.listed[block] & (f.blocks.full[block] | by_mod))


def distance(rows: int, keys: int, top_left: bool) -> Array:
    """Returns j - (i + shift), (Sq, Sk)."""
    shift = 0 if top_left else keys - rows
    return np.arange(keys)[None, :] - (np.arange(rows)[:, None] + shift)


# ---- the formula --------------------------------------------------------------------------------

At: TypeAlias = Callable[[str, Any, Any], Any]  # (step, scores, their sizes) -> scores


class Result(NamedTuple):
    """The results of attention, and the arrays that led to them: (B, H, Sq, Sk), except for out and LSE."""

    out: Any
    lse: Any
    softmax: Any
    kept: Any  # the same after dropout
    size: Any  # the size of each score, before its terms cancel


def formula(
    q: Any, k: Any, v: Any, f: Features = Features(), work: Any = np.float64,
    at: At = lambda _, s, __: s, rounded: Callable[[Any], Any] = lambda x: x,
) -> Result:  # fmt: skip
    """Computes attention in the type `work` of numpy, or of torch, whose autograd differentiates it.

    Nothing is changed in place.

    Probabilities are `rounded`, and meet V in the type that they have then. `at` is called before the steps "softcap",
    "mask" and "softmax", where it may change scores: to what assumed roundings make of them.
    """
    xp: Any = np if isinstance(work, type) else sys.modules["torch"]

    def array(x: Any, dtype: Any = None) -> Any:
        x = to_numpy(x) if xp is np else x if hasattr(x, "detach") else xp.from_numpy(np.asarray(x))
        return x if dtype is None else x.astype(dtype, copy=False) if xp is np else x.to(dtype)

    def sizes(x: Any) -> Any:  # no gradient passes
        return abs(x if xp is np else x.detach())

    (batch, heads, rows, dim), keys = q.shape, k.shape[2]
    q, k, v = array(q, work), per_head(array(k, work), heads), per_head(array(v), heads)
    scale = dim**-0.5 if f.scale is None else f.scale
    with np.errstate(invalid="ignore", over="ignore"):
        s = xp.matmul(q, k.swapaxes(-1, -2)) * scale
        size = xp.matmul(sizes(q), sizes(k).swapaxes(-1, -2)) * abs(scale)
        if f.softcap > 0:
            s = f.softcap * xp.tanh(at("softcap", s, size) / f.softcap)
            size = xp.maximum(size * (1 - (sizes(s) / f.softcap) ** 2), sizes(s))
        if f.alibi is not None:
            slopes = xp.broadcast_to(array(f.alibi, work), (batch, heads))[:, :, None, None]
            s = s - slopes * array(np.abs(distance(rows, keys, f.top_left)), work)
            size = xp.maximum(size, sizes(s))
        if f.mask is not None:
            mask, s = array(f.mask), at("mask", s, size)
            s = xp.where(mask, s, -np.inf) if str(mask.dtype).endswith("bool") else s + array(mask, work)
        if f.score_mod is not None:
            b, h, i, j = np.ogrid[tuple(slice(n) for n in s.shape)]
            s = array(f.score_mod(s, *map(array, (b + f.batch0, h + f.head0, i, j))), work)
        s = xp.where(array(seen_by(rows, keys, f, batch, heads)), s, -np.inf)
        size = xp.maximum(size, sizes(s))
        if f.sinks is not None or keys == 0:  # a sink is a column without a value
            sinks = array(np.full(heads, -np.inf) if f.sinks is None else f.sinks, work)[:, None, None]
            sinks = xp.broadcast_to(sinks, (batch, heads, rows, 1))
            s, size = (xp.concatenate(pair, -1) for pair in ((s, sinks), (size, sizes(sinks))))
        s = at("softmax", s, size)
        most = xp.amax(s if xp is np else s.detach(), axis=-1, keepdims=True)
        empty = most == -np.inf
        most = xp.where(empty, 0.0, most)
        p = xp.exp(s - most)  # the largest is 1, so no sum is 0 but of rows without keys
        total = xp.where(empty, 1.0, p.sum(-1)[..., None])
        p, lse = p[..., :keys] / total, xp.where(empty, f.empty_lse, most + xp.log(total))[..., 0]
        kept = p
        if f.dropout > 0:
            shape = batch, heads, rows, keys
            kept = p * array(dropout_scale(shape, f.dropout, f.rng, f.batch0, f.head0, f.all_heads), work)
        weights = rounded(kept)
        out = xp.matmul(weights, array(v, weights.dtype))
    return Result(out, lse, p, kept, size[..., :keys])


def per_head(x: Any, heads: int) -> Any:
    """Repeats the heads of K or V, of numpy or torch, so that each head of Q has its own."""
    if x.shape[1] == heads:
        return x
    groups = (*x.shape[:2], heads // x.shape[1], *x.shape[2:])
    wide = x[:, :, None].expand(groups) if hasattr(x, "expand") else np.broadcast_to(x[:, :, None], groups)
    return wide.reshape(x.shape[0], heads, *x.shape[2:])


def by_heads(q: Array, k: Array, v: Array, f: Features) -> Iterator[tuple[Array, Array, Array, Features]]:
    """Yields all heads at once, or one after the other, as arrays of all scores may take gigabytes."""
    heads, heads_k = q.shape[1], k.shape[1]
    if q.shape[0] * heads * k.shape[2] * (q.shape[2] + q.shape[3]) < _MANY:
        yield q, k, v, f
        return
    for h in range(heads):
        h_k = h * heads_k // heads
        yield q[:, h : h + 1], k[:, h_k : h_k + 1], v[:, h_k : h_k + 1], f.one_head(h, heads)


def merged_reference(outs: Array, lses: Array) -> tuple[Array, Array, Array]:
    """Merges O (parts, ..., S, H, D) and LSE (parts, ..., H, S) into those of all keys; also returns O's size."""
    l = np.where(np.isposinf(lses), -np.inf, lses)
    top = np.max(l, axis=0)
    top = np.where(np.isneginf(top), 0.0, top)
    weights = np.exp(l - top)
    total = weights.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        weights = np.where(total > 0, weights / total, 0.0).swapaxes(-1, -2)[..., None]
        lse = np.where(total > 0, top + np.log(total), np.inf)
        terms = np.where(weights > 0, weights * outs, 0.0)  # a part that saw no key does not count
    return terms.sum(axis=0), lse, np.abs(terms).sum(axis=0)


# ---- arrays -------------------------------------------------------------------------------------


def to_numpy(x: Any) -> Array:
    """Returns an array of numpy or torch as a numpy array; torch's bf16 becomes float32."""
    if hasattr(x, "detach"):
        x = x.detach()
        return np.asarray((x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy())
    return np.asarray(x)


def to_float64(x: Any) -> Array:
    """Returns an array of numpy or torch as a numpy array of float64."""
    return to_numpy(x).astype(np.float64, copy=False)
