"""Random shapes, strides and flags against the reference. Sizes of heads and variants come from a small set, so that
few kernels are compiled."""

import math
import os
from dataclasses import dataclass

import hypothesis.strategies as st
import torch
import xeflash
from arrays import DTYPES, from_array, to_array
from cases import BROADCASTS
from hypothesis import given, settings
from tolerance import check_attention, check_sequences
from xeflash.selftest.reference import Features

KERNELS = [("bf16", 64, 64), ("fp32", 16, 16), ("fp16", 59, 59)]
EXAMPLES = 400 if os.environ.get("XEFLASH_LONG") else 50

lengths = st.integers(1, 40) | st.integers(1, 300)


@st.composite
def windows(draw, keys):
    limit = st.just(-1) | st.integers(0, keys - 1)
    return draw(limit), draw(limit)


@dataclass(frozen=True)
class Layout:
    """How a (B, H, S, D) array lies in memory: its outer dimensions in any order, with gaps, after some elements."""

    order: tuple[int, ...]
    gaps: tuple[int, ...]
    row_gap: int
    start: int

    def lay_out(self, values):
        strides, step = [0, 0, 0, 1], values.shape[3] + self.row_gap
        for axis, gap in zip(reversed(self.order), self.gaps, strict=True):
            strides[axis] = step
            step *= values.shape[axis] + gap
        memory = torch.full((step + self.start,), math.nan, dtype=values.dtype)
        return memory.as_strided(values.shape, strides, self.start).copy_(values)


gaps = st.integers(0, 3)
layouts = st.builds(Layout, st.permutations(range(3)).map(tuple), st.tuples(gaps, gaps, gaps), st.integers(0, 5), gaps)


@dataclass(frozen=True)
class Problem:
    """What hypothesis draws and prints; values come from the seed."""

    kernel: tuple[str, int, int]
    batch: int
    heads: int
    heads_k: int
    rows: int
    keys: int
    window: tuple[int, int]
    top_left: bool
    scale: float | None
    sinks: bool
    variant: str
    choice: object  # of the variant: broadcast and visible fraction, softcap, slopes per batch, or dropout and rng
    layouts: tuple[Layout, Layout, Layout]
    kind: str
    seed: int

    def build(self):
        generator = torch.Generator().manual_seed(self.seed)
        (dtype, dim, dim_v), heads_k = self.kernel, self.heads_k
        shapes = [(self.heads, self.rows, dim), (heads_k, self.keys, dim), (heads_k, self.keys, dim_v)]
        values = [torch.randn(self.batch, *shape, generator=generator).to(DTYPES[dtype]) for shape in shapes]
        q, k, v = (layout.lay_out(x) for layout, x in zip(self.layouts, values, strict=True))
        f = Features(self.scale, self.window, self.top_left, empty_lse=-math.inf)
        if self.sinks:
            f = f.with_(sinks=torch.randn(self.heads, generator=generator))
        if self.variant == "mask":
            broadcast, fraction = self.choice
            sizes = {"b": self.batch, "h": self.heads, "q": self.rows, "k": self.keys, "1": 1}
            f = f.with_(mask=torch.rand([sizes[letter] for letter in broadcast], generator=generator) < fraction)
        elif self.variant == "softcap":
            f = f.with_(softcap=self.choice)
        elif self.variant == "alibi":
            shape = (self.batch, self.heads) if self.choice else (self.heads,)
            f = f.with_(alibi=torch.rand(shape, generator=generator))
        elif self.variant == "dropout":
            f = f.with_(dropout=self.choice[0], rng=self.choice[1:])
        return q, k, v, f


CHOICES = {
    "plain": st.none(),
    "mask": st.tuples(st.sampled_from(sorted(BROADCASTS)), st.sampled_from([0.0, 0.1, 0.9, 1.0])),
    "softcap": st.sampled_from([0.5, 3.0, 50.0]),
    "alibi": st.booleans(),
    "dropout": st.tuples(st.sampled_from([1e-4, 0.1, 0.5, 0.99]), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
}


@st.composite
def problems(draw):
    variant = draw(st.sampled_from(["plain", *CHOICES]))
    # Small tiles have kernels of their own: not for every variant.
    rows, keys = draw(lengths if variant in ("plain", "mask") else st.integers(33, 150)), draw(lengths)
    heads_k = draw(st.integers(1, 3))
    return Problem(
        kernel=draw(st.sampled_from(KERNELS)),
        batch=draw(st.integers(1, 3)),
        heads=heads_k * draw(st.sampled_from([1, 3, 4, 5])),
        heads_k=heads_k,
        rows=rows,
        keys=keys,
        window=draw(windows(keys)),
        top_left=draw(st.booleans()),
        scale=draw(st.sampled_from([None, 0.0, -0.1, 0.25]) | st.floats(-0.25, 0.25, width=32)),
        sinks=draw(st.booleans()),
        variant=variant,
        choice=draw(CHOICES[variant]),
        layouts=draw(st.tuples(layouts, layouts, layouts)),
        kind=draw(st.sampled_from(["torch", "numpy"])),
        seed=draw(st.integers(0, 2**20)),
    )


@settings(max_examples=EXAMPLES)
@given(problems())
def test_attention_matches_reference(problem):
    q, k, v, f = problem.build()
    out, lse = xeflash.attention(
        *(to_array(x, problem.kind) for x in (q, k, v)),
        attn_mask=to_array(f.mask, problem.kind),
        dropout_p=f.dropout,
        scale=f.scale,
        enable_gqa=True,
        bottom_right=not f.top_left,
        window_size=f.window,
        softcap=f.softcap,
        alibi_slopes=to_array(f.alibi, problem.kind),
        sinks=to_array(f.sinks, problem.kind),
        return_lse=True,
        rng=f.rng if f.dropout else None,
    )
    check_attention("problem", q, k, v, f, from_array(out, problem.kind), from_array(lse, problem.kind))


@st.composite
def packed_sequences(draw):
    """Kernel, (rows, keys, unused keys) of each sequence, window, with seqused_k, heads, seed."""
    length = st.integers(0, 90)
    sequences = draw(st.lists(st.tuples(length, length, st.integers(0, 9)), min_size=1, max_size=6))
    window = draw(windows(max(1, *(keys for _, keys, _ in sequences))))
    numbers = draw(st.tuples(st.booleans(), st.integers(1, 4), st.integers(0, 99)))
    return draw(st.sampled_from(KERNELS)), sequences, window, *numbers


@settings(max_examples=EXAMPLES // 2)
@given(packed_sequences())
def test_varlen_matches_the_sequences_one_by_one(problem):
    (dtype, dim, dim_v), sequences, window, with_used, heads, seed = problem
    torch.manual_seed(seed)
    rows, keys, unused = (list(column) for column in zip(*sequences, strict=True))
    used = [max(0, n - less) for n, less in zip(keys, unused, strict=True)] if with_used else keys
    cu_q, cu_k = (torch.tensor([0, *n]).cumsum(0).int() for n in (rows, keys))
    q = torch.randn(sum(rows), heads * 2, dim).to(DTYPES[dtype])
    k, v = torch.randn(sum(keys), heads, dim).to(q.dtype), torch.randn(sum(keys), heads, dim_v).to(q.dtype)
    seqused_k = torch.tensor(used, dtype=torch.int32) if with_used else None
    arguments = (q, k, v, cu_q, cu_k, max(rows), max(keys))
    out, lse, _ = xeflash.flash_attn_varlen_func(
        *arguments, window_size=window, return_attn_probs=True, seqused_k=seqused_k
    )
    assert out.shape == (sum(rows), heads * 2, dim_v)
    assert lse.shape == (heads * 2, sum(rows))
    check_sequences("problem", (q, k, v), (cu_q, cu_k), Features(window=window), out, lse, used)
