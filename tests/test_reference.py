"""The reference and the tolerance rule themselves: known answers, and wrong results are rejected."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tolerance import assert_close, check_attention, torch_attention
from xeflash.selftest.reference import (
    Features,
    dropout_scale,
    formula,
    philox,
    visible,
)
from xeflash.selftest.tolerance import limit_of, rounded_scores, ulp

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def make(dtype=torch.float64, batch=2, heads=4, heads_k=2, rows=63, keys=127, dim=64, dim_v=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, heads, rows, dim), (batch, heads_k, keys, dim), (batch, heads_k, keys, dim_v)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


# Known answers published with the Random123 library for philox4x32-10.
@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        (
            "00000000 00000000 00000000 00000000",
            "00000000 00000000",
            "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        ),
        (
            "ffffffff ffffffff ffffffff ffffffff",
            "ffffffff ffffffff",
            "408f276d 41c83b0e a20bc7c6 6d5451fd",
        ),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_philox_known_answers(counter, key, words):
    counter, key, words = ([int(word, 16) for word in text.split()] for text in (counter, key, words))
    assert [int(word) for word in philox(counter, tuple(key))] == words


def test_dropout_draws_in_the_order_of_the_definition():
    seed, offset, p = 0x123456789ABCDEF0, 0x1_0000_0007, 0.3
    scale = dropout_scale((2, 3, 19, 5), p, (seed, offset), batch0=1)
    for batch, head, row, key in [
        (0, 0, 0, 0),
        (1, 2, 18, 4),
        (0, 1, 7, 3),
        (1, 0, 8, 2),
        (0, 2, 5, 1),
    ]:
        words = philox([key, row // 8, (batch + 1) * 3 + head, 7], (seed & 0xFFFFFFFF, seed >> 32 ^ 1))
        draw = int(words[row % 8 // 2]) >> 16 * (row % 2) & 0xFFFF
        assert scale[batch, head, row, key] == (0 if draw < 19661 else 65536 / 45875)


def test_dropout_keeps_the_mean():
    scale = dropout_scale((1, 4, 200, 200), 0.25, (7, 9))
    assert np.mean(scale == 0) == pytest.approx(0.25, abs=0.005)
    assert np.mean(scale) == pytest.approx(1, abs=0.01)
    assert np.all(dropout_scale((1, 1, 8, 8), 1.0, (7, 9)) == 0)


# ---- the reference against PyTorch in float64 ---------------------------------------------------


@pytest.mark.parametrize("sizes", [(63, 127), (127, 63), (1, 1), (23, 23)], ids=lambda s: f"q{s[0]}-k{s[1]}")
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_reference_equals_sdpa_in_float64(sizes, causal):
    q, k, v = make(rows=sizes[0], keys=sizes[1], dim_v=40)
    want = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=-0.2, enable_gqa=True)
    window = (-1, 0) if causal else (-1, -1)
    got = formula(q, k, v, Features(scale=-0.2, window=window, top_left=True)).out
    np.testing.assert_allclose(got, want.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(2, 4, 63, 127), (2, 1, 1, 127), (63, 127), (1, 4, 63, 1)])
def test_reference_adds_a_bias_like_sdpa(shape):
    q, k, v = make()
    bias = torch.randn(shape, dtype=torch.float64)
    for mask in (bias, bias > 0):
        want = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        got = formula(q, k, v, Features(mask=mask)).out
        np.testing.assert_allclose(got, want.numpy(), rtol=0, atol=1e-12)


def test_reference_lse_is_logsumexp_of_the_scores():
    q, k, v = make()
    scores = q @ k.repeat_interleave(2, 1).mT / 8
    sink = torch.randn(4, dtype=torch.float64)
    lse = formula(q, k, v).lse
    np.testing.assert_allclose(lse, scores.logsumexp(-1).numpy(), atol=1e-12)
    out, lse = formula(q, k, v, Features(sinks=sink))[:2]
    scores = torch.cat([scores, sink[:, None, None].expand(2, 4, 63, 1)], -1)
    np.testing.assert_allclose(lse, scores.logsumexp(-1).numpy(), atol=1e-12)
    want = scores.softmax(-1)[..., :-1] @ v.repeat_interleave(2, 1)
    np.testing.assert_allclose(out, want.numpy(), atol=1e-12)


def test_visible_windows():
    # flash-attn's own example: Sq = 2, Sk = 5, causal.
    assert visible(2, 5, (-1, 0), top_left=False).tolist() == [[True] * 4 + [False], [True] * 5]
    assert visible(5, 2, (-1, 0), top_left=False).sum(1).tolist() == [0, 0, 0, 1, 2]
    assert visible(2, 5, (-1, 0), top_left=True).sum(1).tolist() == [1, 2]
    assert visible(3, 3, (1, 0), top_left=False).tolist() == [
        [True, False, False],
        [True, True, False],
        [False, True, True],
    ]


def test_reference_of_rows_without_keys():
    q, k, v = make(rows=63, keys=23)
    out, lse = formula(q, k, v, Features(window=(-1, 0)))[:2]
    assert np.all(out[:, :, :40] == 0) and np.all(lse[:, :, :40] == np.inf) and np.isfinite(lse[:, :, 40:]).all()
    sinks = torch.tensor([0.5, 1.0, -2.0, 3.0])
    out, lse = formula(q, k, v, Features(window=(-1, 0), sinks=sinks))[:2]
    assert np.all(out[:, :, :40] == 0) and np.allclose(lse[:, :, 0], sinks.numpy())


def test_softcap_and_alibi_by_hand():
    q, k = torch.tensor([[[[2.0], [1.0]]]]), torch.tensor([[[[1.0], [3.0], [-2.0]]]])
    v = torch.eye(3)[None, None]
    out = formula(q, k, v, Features(scale=2.0, softcap=3.0, alibi=torch.tensor([0.25]))).out
    for row, query in enumerate((2.0, 1.0)):
        s = [3 * np.tanh(2 * query * key / 3) - 0.25 * abs(row + 1 - j) for j, key in enumerate((1.0, 3.0, -2.0))]
        np.testing.assert_allclose(out[0, 0, row], np.exp(s) / np.sum(np.exp(s)), rtol=1e-12)


# ---- the tolerance rule -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pytorch_itself_passes(dtype):
    q, k, v = make(dtype, rows=300, keys=1000)
    f = Features(window=(-1, 0), softcap=5.0, sinks=torch.zeros(4))
    out, lse = torch_attention(q, k, v, f)
    check_attention("torch", q, k, v, f, torch.tensor(out).to(dtype), torch.tensor(lse).float())


WRONG = {
    "scale-1-percent-off": dict(scale=1.01 / 8),
    "causal-one-key-more": dict(window=(-1, 1)),
    "causal-one-key-less": dict(window=(-1, -2)),
    "top-left": dict(top_left=True),
    "softcap-lost": dict(softcap=0.0),
    "alibi-1-percent-off": dict(alibi=torch.tensor([0.505, 0.25, 0.125, 0.06])),
    "sink-lost": dict(sinks=None),
    "bias-lost": dict(mask=None),
    "other-dropout": dict(rng=(1, 3)),
    "no-dropout": dict(dropout=0.0),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", WRONG)
def test_a_slightly_wrong_result_is_rejected(name, dtype):
    q, k, v = make(dtype, rows=127, keys=300)
    q = (q * 2).to(dtype)
    right = Features(window=(-1, 0), scale=1 / 8)
    needs = {
        "softcap": dict(softcap=20.0),
        "alibi": dict(alibi=torch.tensor([0.5, 0.25, 0.125, 0.06])),
    }
    needs |= {
        "sink": dict(sinks=torch.full((4,), 3.0)),
        "bias": dict(mask=torch.randn(127, 300).to(dtype)),
    }
    needs["other"] = needs["no"] = dict(dropout=0.1, rng=(1, 2))
    right = right.with_(**needs.get(name.split("-")[0], {}))
    wrong = right.with_(**WRONG[name])
    if name == "causal-one-key-less":  # the last key is hidden by a mask: a window of -2 means no limit
        hidden = torch.ones(127, 300, dtype=torch.bool).tril(300 - 127 - 1)
        wrong = right.with_(mask=hidden)
    out, lse = formula(q, k, v, wrong)[:2]
    out, lse = torch.tensor(out).to(dtype), torch.tensor(lse).float()
    with pytest.raises(AssertionError, match=r" at \[.*\]: got .*, want .*, error .*, limit "):
        check_attention(name, q, k, v, right, out, lse)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_wrong_lse_or_row_is_rejected(dtype):
    q, k, v = make(dtype)
    want, want_lse = formula(q, k, v)[:2]
    out, lse = torch.tensor(want).to(dtype), torch.tensor(want_lse).float()
    check_attention("exact", q, k, v, Features(), out, lse)
    for bad_out, bad_lse in [
        (out, torch.zeros_like(lse)),  # lost
        (out, lse / np.log(2)),  # left in base 2
        (out.roll(1, 2), lse),  # a row too far
        (out.index_fill(3, torch.tensor([63]), 0), lse),  # last column lost
        (out.clone().index_fill_(2, torch.tensor([5]), float("nan")), lse),
        (out.float() if dtype != torch.float32 else out.half(), lse),  # another dtype
        (out, lse.double()),
        (out[:, :, 1:], lse),
    ]:
        with pytest.raises(AssertionError):
            check_attention("wrong", q, k, v, Features(), bad_out, bad_lse)


def test_what_is_not_finite_must_match():
    want = np.array([1.0, np.inf, np.nan, -np.inf])
    assert_close("same", torch.tensor([1.0, np.inf, np.nan, -np.inf]), want, want)
    for bad in (
        [1.0, np.nan, np.nan, -np.inf],
        [1.0, np.inf, 0.0, -np.inf],
        [np.inf, np.inf, np.nan, -np.inf],
    ):
        with pytest.raises(AssertionError):
            assert_close("bad", torch.tensor(bad), want, want)


def test_rounding_term_is_that_of_the_largest_result():
    assert ulp(1.5, "bfloat16") == 2**-7 and ulp(0.75, "float16") == 2**-11 and ulp(4.0, "float32") == 2**-21
    assert ulp(0.0, "float16") == 2**-24 == float(np.finfo(np.float16).smallest_subnormal)
    assert limit_of(np.array([0.1, -1.5]), np.array([0.1, -1.5]), "bfloat16") == 2**-8 + 2**-22
    assert limit_of(np.array([1.0, np.inf]), np.array([1.25, np.nan]), "bfloat16") == 0.5 + 2**-8


@pytest.mark.parametrize("far", [0.0, 200.0, -200.0, 1e4])
@pytest.mark.parametrize("f", [Features(scale=1.0), Features(scale=1.0, alibi=torch.tensor([0.01, 0.02]))])
def test_term_of_the_scores_is_what_their_rounding_makes(f, far):
    q, k, v = torch.randn(1, 2, 5, 64), torch.randn(1, 1, 333, 64), torch.randn(1, 1, 333, 80)
    q[..., 0], k[..., 0] = 1.0, far
    out_bound, lse_bound = rounded_scores(formula(q, k, v, f), v)
    exact = modified_by(lambda s, *_: s, q, k, v, f)
    rounded = modified_by(lambda s, *_: s.astype(np.float32).astype(np.float64), q, k, v, f)
    moved_out, moved_lse = (np.max(np.abs(a - b)) for a, b in zip(rounded, exact, strict=True))
    assert out_bound / 100 < moved_out <= out_bound  # most roundings are smaller, and they cancel
    assert lse_bound / 100 < moved_lse <= lse_bound


def modified_by(change, q, k, v, f):
    return formula(q, k, v, f.with_(score_mod=change))[:2]


@pytest.mark.parametrize("far", [200.0, -200.0])
def test_scores_far_away_do_not_hide_a_fault(far):
    """Wrong by a key of 333, by values rounded to bf16, by a scale that is off by a ten-thousandth."""
    q, k, v = torch.randn(1, 2, 5, 64), torch.randn(1, 2, 333, 64), torch.randn(1, 2, 333, 64)
    q[..., 0], k[..., 0] = 1.0, far
    f = Features(scale=0.05)
    check_attention("right", q, k, v, f, *(torch.from_numpy(x).float() for x in formula(q, k, v, f)[:2]))
    for wrong in (
        formula(q, k[:, :, 1:], v[:, :, 1:], f)[:2],
        formula(q, k, v.bfloat16(), f)[:2],
        formula(q, k, v, f.with_(scale=0.05 * (1 + 1e-4)))[:2],
    ):
        with pytest.raises(AssertionError, match="limit"):
            check_attention("wrong", q, k, v, f, *(torch.from_numpy(x).float() for x in wrong))
