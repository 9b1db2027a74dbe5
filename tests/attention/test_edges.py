"""Empty arrays, rows that see nothing, NaN and infinity."""

import pytest
import torch
import torch.nn.functional as F
import xeflash
from cover import few
from plain import call, make
from tolerance import check_attention
from xeflash.selftest.reference import Features, formula

INF, NAN = float("inf"), float("nan")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


# ---- nothing to do ------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(0, 3, 5), (2, 0, 5), (2, 3, 0), (0, 0, 0)], ids=["B0", "Sq0", "Sk0", "all0"])
def test_empty_sizes_give_empty_or_zero_results(sizes):
    batch, rows, keys = sizes
    q, k, v = make(rows, keys, batch)
    out, lse = call(q, k, v)
    assert out.shape == (batch, 4, rows, 64) == F.scaled_dot_product_attention(q, k, v, enable_gqa=True).shape
    assert lse.shape == (batch, 4, rows) and torch.all(out == 0) and torch.all(lse == -INF)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out, lse, _ = xeflash.flash_attn_func(q, k, v, return_attn_probs=True)
    assert out.shape == (batch, rows, 4, 64) and lse.shape == (batch, 4, rows)
    assert torch.all(out == 0) and torch.all(lse == INF)


def test_no_keys_but_a_sink():
    q, k, v = make(keys=0)
    sinks = torch.randn(4)
    out, lse = call(q, k, v, sinks=sinks)
    assert torch.all(out == 0)
    torch.testing.assert_close(lse, sinks[None, :, None].expand(2, 4, 63))


def test_varlen_of_empty_sequences_only():
    q, k, v = torch.randn(0, 4, 64), torch.randn(0, 2, 64), torch.randn(0, 2, 64)
    cu = torch.zeros(4, dtype=torch.int32)
    out, lse, _ = xeflash.flash_attn_varlen_func(q, k, v, cu, cu, 0, 0, return_attn_probs=True)
    assert out.shape == (0, 4, 64) and lse.shape == (4, 0)


def test_varlen_without_sequences():
    q, cu = torch.randn(0, 4, 64), torch.zeros(1, dtype=torch.int32)
    assert xeflash.flash_attn_varlen_func(q, q, q, cu, cu, 0, 0).shape == (0, 4, 64)


# ---- rows that see nothing ----------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 63, 300])
def test_fully_masked_rows_are_zero(rows):
    q, k, v = make(rows)
    hidden = torch.rand(rows) < 0.5
    hidden[0] = True
    for mask in (
        ~hidden[:, None].expand(rows, 127),
        torch.zeros(rows, 127).masked_fill(hidden[:, None], -INF),
    ):
        out, lse = call(q, k, v, attn_mask=mask)
        assert torch.all(out[:, :, hidden] == 0) and torch.all(lse[:, :, hidden] == -INF)
        check_attention("masked rows", q, k, v, Features(mask=mask, empty_lse=-INF), out, lse)


@pytest.mark.parametrize("sizes", [(127, 23), (300, 1), (2, 1)], ids=str)
def test_causal_rows_before_the_first_key(sizes):
    rows, keys = sizes
    q, k, v = (x.transpose(1, 2) for x in make(rows, keys))
    out, lse, _ = xeflash.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert torch.all(out[:, : rows - keys] == 0) and torch.all(lse[:, :, : rows - keys] == INF)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out, lse = call(q, k, v, is_causal=True, bottom_right=True)
    assert torch.all(out[:, :, : rows - keys] == 0) and torch.all(lse[:, :, : rows - keys] == -INF)


def test_rows_that_see_nothing_but_a_sink():
    q, k, v = (x.transpose(1, 2) for x in make(63, 23))
    sinks = torch.tensor([0.0, 80.0, -80.0, 1.5])
    out, lse, _ = xeflash.flash_attn_func(q, k, v, causal=True, return_attn_probs=True, s_aux=sinks)
    assert torch.all(out[:, :40] == 0)
    torch.testing.assert_close(lse[:, :, :40], sinks[None, :, None].expand(2, 4, 40))


@pytest.mark.parametrize("dtype", few(DTYPES, torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("whole_row", [False, True], ids=["some-keys", "whole-rows"])
def test_lowest_float_as_mask_is_not_nan(dtype, whole_row):
    """The masks of transformers: a row of nothing but the lowest float is a mean over all keys, as in PyTorch."""
    q, k, v = make(dtype=dtype)
    mask = torch.zeros(63, 127, dtype=dtype)
    mask[:, 40:] = torch.finfo(dtype).min
    if whole_row:
        mask[5:9] = torch.finfo(dtype).min
    out, lse = call(q, k, v, attn_mask=mask)
    assert torch.isfinite(out).all() and torch.isfinite(lse).all()
    keep = [row for row in range(63) if not (whole_row and 5 <= row < 9)]
    want_mask = mask == 0
    f = Features(mask=want_mask[keep])
    check_attention("kept rows", q[:, :, keep], k, v, f, out[:, :, keep], lse[:, :, keep])
    if whole_row and dtype != torch.float16:  # fp16's lowest, 65504, still tells scores apart
        mean = v.double().mean(2, keepdim=True).repeat_interleave(2, 1).expand(2, 4, 4, 64)
        torch.testing.assert_close(out[:, :, 5:9].double(), mean, rtol=0, atol=2 * torch.finfo(dtype).eps)


# ---- NaN and infinity ---------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 63, 300])
@pytest.mark.parametrize("bad", [NAN, INF])
def test_a_bad_query_spoils_its_own_row_only(rows, bad):
    q, k, v = make(rows)
    want, want_lse = call(q, k, v)
    row = rows // 2
    q[1, 2, row, 3] = bad
    out, lse = call(q, k, v)
    assert torch.isnan(out[1, 2, row]).all() and not torch.isfinite(lse[1, 2, row])  # torch.logsumexp of inf is inf
    out[1, 2, row], lse[1, 2, row] = want[1, 2, row], want_lse[1, 2, row]
    assert torch.equal(out, want) and torch.equal(lse, want_lse)


def test_a_key_of_nan_spoils_the_rows_that_see_it():
    q, k, v = make(127, 127)
    k[:, 0, 60] = NAN
    out, lse = call(q, k, v, is_causal=True)
    assert torch.isnan(out[:, :2, 60:]).all() and torch.isnan(lse[:, :2, 60:]).all()
    assert torch.isfinite(lse[:, :2, :60]).all() and torch.isfinite(out[:, 2:]).all()


def test_nan_in_a_bias_is_not_hidden():
    q, k, v = make()
    mask = torch.zeros(63, 127)
    mask[7, 9] = NAN
    out, lse = call(q, k, v, attn_mask=mask)
    assert torch.isnan(out[:, :, 7]).all() and torch.isnan(lse[:, :, 7]).all()
    assert torch.isfinite(out[:, :, 8:]).all() and torch.isfinite(lse[:, :, :7]).all()


def test_infinite_values_reach_their_column_only():
    for keys in (126, 127):  # the last key may be one of a pair
        q, k, v = make(63, keys)
        v[0, 1, keys - 1, 5] = INF
        out, _ = call(q, k, v)
        assert torch.all(out[0, 2:, :, 5] == INF)
        out[0, 2:, :, 5] = 0
        assert torch.isfinite(out).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_infinite_value_at_the_last_key_of_a_pair(dtype):
    q, k, v = make(63, 127, dtype=dtype)
    v[0, 1, 126, 5] = INF
    out, _ = call(q, k, v)
    assert torch.all(out[0, 2:, :, 5] == INF)


def test_large_scores_do_not_overflow():
    q, k, v = make()
    q, k = q * 100, k * 100  # scores of some 1e4 x 8
    out, lse = call(q, k, v)
    check_attention("large", q, k, v, Features(), out, lse)


def test_fp16_result_overflows_to_infinity_where_it_must():
    q, k, _ = make(dtype=torch.float16)
    v = torch.full((2, 2, 127, 64), 60000.0, dtype=torch.float16)
    out, _ = call(q, k, v)
    assert torch.isfinite(out).all()


def test_one_element_of_everything():
    q, k, v = torch.tensor([[[[2.0]]]]), torch.tensor([[[[3.0]]]]), torch.tensor([[[[-5.0]]]])
    out, lse = call(q, k, v)
    want, want_lse = formula(q, k, v)[:2]
    assert out.item() == want.item() == -5 and lse.item() == pytest.approx(want_lse.item(), rel=1e-6)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_heads_of_one_column(dtype):
    """It has no second one that it could be multiplied in a pair with."""
    q, k, v = (x[..., :1].contiguous().requires_grad_() for x in make(23, 127, dtype=dtype))
    out, lse = call(q, k, v)
    check_attention("one column", q.detach(), k.detach(), v.detach(), Features(), out.detach(), lse.detach())
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    want = torch.autograd.grad(F.scaled_dot_product_attention(*exact, enable_gqa=True).sum(), exact)
    for got, y in zip(torch.autograd.grad(out.sum(), (q, k, v)), want, strict=True):
        torch.testing.assert_close(got.double(), y, rtol=0.02, atol=0.02)
