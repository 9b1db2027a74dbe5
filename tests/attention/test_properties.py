"""Random shapes, strides and flags against the reference. Sizes of heads and variants come from a small set, so that
few kernels are compiled."""

import math
import os

import hypothesis.strategies as st
import torch
import xeflash
from arrays import DTYPES, from_array, to_array
from cases import BROADCASTS
from hypothesis import given, settings
from reference import Features
from tolerance import check_attention

KERNELS = [("bf16", 64, 64), ("fp32", 16, 16), ("fp16", 59, 59)]
EXAMPLES = 400 if os.environ.get("XEFLASH_LONG") else 100

lengths = st.integers(1, 40) | st.integers(1, 300)


@st.composite
def windows(draw, keys):
    limit = st.just(-1) | st.integers(0, keys - 1)
    return draw(limit), draw(limit)


@st.composite
def strided(draw, shape, dtype, seed):
    """A (B, H, S, D) tensor: its outer dimensions lie in memory in any order, with gaps; the last one is contiguous."""
    order = draw(st.permutations(range(3)))
    gaps = [draw(st.integers(0, 3)) for _ in range(3)]
    lead, start = draw(st.integers(0, 5)), draw(st.integers(0, 3))
    strides, step = [0, 0, 0, 1], shape[3] + lead
    for axis, gap in zip(reversed(order), gaps, strict=True):
        strides[axis] = step
        step *= shape[axis] + gap
    memory = torch.full((step + start + lead,), float("nan"), dtype=dtype)
    x = memory.as_strided(shape, strides, start)
    return x.copy_(torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype))


@st.composite
def problems(draw):
    dtype, dim, dim_v = draw(st.sampled_from(KERNELS))
    dtype = DTYPES[dtype]
    batch, heads_k, group = (
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from([1, 3, 4, 5])),
    )
    variant = draw(st.sampled_from(["plain", "plain", "mask", "softcap", "alibi", "dropout"]))
    # Small tiles have kernels of their own: not for every variant.
    rows, keys = (
        draw(lengths if variant in ("plain", "mask") else st.integers(33, 150)),
        draw(lengths),
    )
    heads, seed = heads_k * group, draw(st.integers(0, 2**20))
    q = draw(strided((batch, heads, rows, dim), dtype, seed))
    k = draw(strided((batch, heads_k, keys, dim), dtype, seed + 1))
    v = draw(strided((batch, heads_k, keys, dim_v), dtype, seed + 2))

    generator = torch.Generator().manual_seed(seed + 3)
    f = Features(window=draw(windows(keys)), top_left=draw(st.booleans()))
    f = f.with_(scale=draw(st.sampled_from([None, 0.0, -0.1, 0.25]) | st.floats(-0.25, 0.25, width=32)))
    if draw(st.booleans()):
        f = f.with_(sinks=torch.randn(heads, generator=generator))
    if variant == "mask":
        sizes = {"b": batch, "h": heads, "q": rows, "k": keys, "1": 1}
        shape = [sizes[letter] for letter in BROADCASTS[draw(st.sampled_from(sorted(BROADCASTS)))]]
        f = f.with_(mask=torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.1, 0.9, 1.0])))
    elif variant == "softcap":
        f = f.with_(softcap=draw(st.sampled_from([0.5, 3.0, 50.0])))
    elif variant == "alibi":
        shape = draw(st.sampled_from([(heads,), (batch, heads)]))
        f = f.with_(alibi=torch.rand(shape, generator=generator))
    elif variant == "dropout":
        rng = (draw(st.integers(0, 2**64 - 1)), draw(st.integers(0, 2**64 - 1)))
        f = f.with_(dropout=draw(st.sampled_from([1e-4, 0.1, 0.5, 0.99])), rng=rng)
    return q, k, v, f


@settings(max_examples=EXAMPLES)
@given(problems(), st.sampled_from(["torch", "numpy"]))
def test_attention_matches_reference(problem, kind):
    q, k, v, f = problem
    out, lse = xeflash.attention(
        *(to_array(x, kind) for x in (q, k, v)),
        attn_mask=to_array(f.mask, kind),
        dropout_p=f.dropout,
        scale=f.scale,
        enable_gqa=True,
        bottom_right=not f.top_left,
        window_size=f.window,
        softcap=f.softcap,
        alibi_slopes=to_array(f.alibi, kind),
        sinks=to_array(f.sinks, kind),
        return_lse=True,
        rng=f.rng if f.dropout else None,
    )
    case = f"{tuple(q.shape)} {tuple(k.shape)} {f}"
    check_attention(case, q, k, v, f.with_(empty_lse=-math.inf), from_array(out, kind), from_array(lse, kind))


@st.composite
def packed_sequences(draw):
    kernel = draw(st.sampled_from(KERNELS))
    sequences = draw(
        st.lists(
            st.tuples(st.integers(0, 90), st.integers(0, 90), st.integers(0, 9)),
            min_size=1,
            max_size=6,
        )
    )
    # Sequences share one window, which must stay below the longest.
    most = max(1, *(keys for _, keys, _ in sequences))
    return (
        kernel,
        sequences,
        draw(windows(most)),
        draw(st.booleans()),
        draw(st.integers(1, 4)),
        draw(st.integers(0, 99)),
    )


@settings(max_examples=EXAMPLES // 2)
@given(packed_sequences())
def test_varlen_matches_the_sequences_one_by_one(problem):
    (dtype, dim, dim_v), sequences, window, with_used, heads, seed = problem
    torch.manual_seed(seed)
    rows, keys, unused = (list(column) for column in zip(*sequences, strict=True))
    used = [max(0, n - less) for n, less in zip(keys, unused, strict=True)] if with_used else keys
    cu_q, cu_k = (torch.tensor([0, *n]).cumsum(0).int() for n in (rows, keys))
    q = torch.randn(sum(rows), heads * 2, dim).to(DTYPES[dtype])
    k, v = (
        torch.randn(sum(keys), heads, dim).to(q.dtype),
        torch.randn(sum(keys), heads, dim_v).to(q.dtype),
    )
    seqused_k = torch.tensor(used, dtype=torch.int32) if with_used else None
    out, lse, _ = xeflash.flash_attn_varlen_func(
        *(q, k, v, cu_q, cu_k, max(rows), max(keys)),
        window_size=window,
        return_attn_probs=True,
        seqused_k=seqused_k,
    )
    assert out.shape == (sum(rows), heads * 2, dim_v) and lse.shape == (heads * 2, sum(rows))
    for i in range(len(rows)):
        row, key = slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i] + used[i])
        parts = (x[part].transpose(0, 1)[None] for x, part in ((q, row), (k, key), (v, key), (out, row)))
        q_i, k_i, v_i, out_i = parts
        check_attention(
            f"sequence {i} of {problem}",
            q_i,
            k_i,
            v_i,
            Features(window=window),
            out_i,
            lse[None, :, row],
        )
