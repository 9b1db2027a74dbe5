"""attention() takes what F.scaled_dot_product_attention takes and gives what it gives."""

import inspect
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import xeflash
from cover import few
from tolerance import assert_close, check_attention
from xeflash.selftest.reference import Features, to_float64

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def make(lead=(2, 4), lead_k=None, rows=63, keys=127, dim=64, dim_v=64, dtype=torch.float32):
    lead_k = lead if lead_k is None else lead_k
    return [
        torch.randn(shape).to(dtype) for shape in ((*lead, rows, dim), (*lead_k, keys, dim), (*lead_k, keys, dim_v))
    ]


def check_sdpa(q, k, v, mask=None, **options):
    """Against SDPA in float64, with SDPA in the dtype as the yardstick."""
    out = xeflash.attention(q, k, v, mask, **options)
    mask64 = mask.double() if mask is not None and mask.is_floating_point() else mask
    want = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), mask64, **options)
    by_torch = F.scaled_dot_product_attention(q, k, v, mask, **options)
    assert out.dtype == by_torch.dtype and out.is_contiguous()
    assert_close("sdpa", out, want.numpy(), to_float64(by_torch))


def test_signature_starts_as_sdpas():
    parameters = list(inspect.signature(xeflash.attention).parameters.values())
    for ours, theirs in zip(
        parameters, torch.ops.aten.scaled_dot_product_attention.default._schema.arguments, strict=False
    ):
        default = theirs.default_value if theirs.has_default_value() else inspect.Parameter.empty
        assert (ours.name, ours.default, ours.kind) == (theirs.name, default, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [(127, 127), (23, 63), (63, 23), (1, 127)], ids=str)
def test_is_causal_is_top_left(sizes, dtype):
    check_sdpa(*make(rows=sizes[0], keys=sizes[1], dtype=dtype), is_causal=True)


@pytest.mark.parametrize(
    "shape",
    [(2, 4, 63, 127), (2, 1, 63, 127), (4, 1, 127), (63, 127), (1, 127), (1, 1), (2, 1, 1, 127)],
    ids=str,
)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_broadcast(shape, kind):
    mask = torch.randn(shape)
    mask = mask > -0.5 if kind == "bool" else mask
    check_sdpa(*make(), mask)


def test_mask_of_any_strides():
    mask = torch.randn(127, 63, 4, 2).permute(3, 2, 1, 0)
    check_sdpa(*make(), mask)
    check_sdpa(*make(), mask[:, :, :, :1].expand(2, 4, 63, 127))
    check_sdpa(*make(), mask > 0)


def test_mask_and_causal_together():
    q, k, v = make(rows=23, keys=63)
    mask = torch.rand(23, 63) < 0.7
    mask[:, 0] = True
    out, lse = xeflash.attention(q, k, v, mask, is_causal=True, return_lse=True)
    check_attention("both", q, k, v, Features(mask=mask, window=(-1, 0), top_left=True), out, lse)


@pytest.mark.parametrize("lead", [(5,), (2, 4), (2, 3, 4), (2, 1, 3, 2), (1,), ()], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_leading_dimensions(lead, causal):
    check_sdpa(*make(lead), is_causal=causal)


@pytest.mark.parametrize("lead", [(5,), (2, 3, 4)], ids=str)
def test_masks_of_other_ranks(lead):
    check_sdpa(*make(lead), torch.randn(*lead, 63, 127))
    check_sdpa(*make(lead), torch.randn(63, 127))
    check_sdpa(*make(lead), torch.rand(*lead[:-1], 1, 1, 127) < 0.9)


def test_leading_dimensions_that_cannot_be_merged():
    q, k, v = make((2, 3, 4))
    q, k, v = (x.permute(1, 0, 2, 3, 4).contiguous().permute(1, 0, 2, 3, 4) for x in (q, k, v))
    check_sdpa(q, k, v)


def test_lse_has_the_shape_of_the_rows():
    for lead in [(), (5,), (2, 4), (2, 3, 4)]:
        q, k, v = make(lead)
        _, lse = xeflash.attention(q, k, v, return_lse=True)
        assert lse.shape == (*lead, 63) and lse.dtype == torch.float32
        torch.testing.assert_close(lse, (q @ k.mT / 8).logsumexp(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("heads", [(8, 2), (10, 2), (3, 1)], ids=str)
def test_enable_gqa(heads):
    check_sdpa(*make((2, heads[0]), (2, heads[1])), enable_gqa=True)


def test_batch_and_heads_of_keys_broadcast_as_in_sdpa():
    q, k, v = make((2, 4), (1, 1))
    check_sdpa(q, k, v)


@pytest.mark.parametrize("scale", [0.3, -0.2, 0.0, 1.0])
def test_scale(scale):
    check_sdpa(*make(dtype=torch.bfloat16 if scale < 0 else torch.float32), scale=scale)


@pytest.mark.parametrize("dims", few([(64, 16), (16, 64), (192, 128), (1, 1), (3, 5)], (192, 128), (1, 1)), ids=str)
def test_value_dimension_differs(dims):
    check_sdpa(*make(dim=dims[0], dim_v=dims[1]))


def test_out_is_filled_and_returned():
    q, k, v = make()
    out = torch.full((2, 63, 4, 64), 7.0).transpose(1, 2)
    result = xeflash.attention(q, k, v, out=out)
    assert result.data_ptr() == out.data_ptr() and result.stride() == out.stride()
    assert torch.equal(out, xeflash.attention(q, k, v))
    result, lse = xeflash.attention(q, k, v, out=out, return_lse=True)
    assert result.data_ptr() == out.data_ptr() and lse.shape == (2, 4, 63)


# ---- dropout ------------------------------------------------------------------------------------


def test_dropout_is_reproducible():
    q, k, v = make()
    without = xeflash.attention(*(x.clone().requires_grad_() for x in (q, k, v)), rng=(0, -1))  # nothing is drawn
    assert torch.equal(without, xeflash.attention(q, k, v))
    one = xeflash.attention(q, k, v, dropout_p=0.2, rng=(3, 4))
    assert torch.equal(xeflash.attention(q, k, v, dropout_p=0.2, rng=(3, 4)), one)
    for rng in [(3, 5), (4, 4), (3 + 2**32, 4), (3, 4 + 2**32)]:
        assert not torch.equal(xeflash.attention(q, k, v, dropout_p=0.2, rng=rng), one)
    xeflash.manual_seed(7)
    first = [xeflash.attention(q, k, v, dropout_p=0.2) for _ in range(2)]
    xeflash.manual_seed(7)
    second = [xeflash.attention(q, k, v, dropout_p=0.2) for _ in range(2)]
    assert all(map(torch.equal, first, second)) and not torch.equal(*first)


@pytest.mark.parametrize("seed", [np.int64(7), torch.tensor(7), 7 - 2**64])
def test_seeds_are_integers_of_any_kind(seed):
    q = torch.randn(1, 2, 5, 64)
    xeflash.manual_seed(7)
    want = xeflash.attention(q, q, q, dropout_p=0.5)
    xeflash.manual_seed(seed)
    assert torch.equal(xeflash.attention(q, q, q, dropout_p=0.5), want)


@pytest.mark.parametrize("seed", [1.5, "7", None])
def test_other_seeds_are_refused(seed):
    with pytest.raises(TypeError, match=re.escape(f"manual_seed: seed must be an integer, got {seed!r}")):
        xeflash.manual_seed(seed)


def test_the_default_device_has_no_part_in_dropout():
    q = torch.randn(1, 2, 5, 64)
    torch.manual_seed(3)
    want = xeflash.attention(q, q, q, dropout_p=0.5)
    torch.manual_seed(3)
    with torch.device("meta"):
        got = xeflash.attention(q, q, q, dropout_p=0.5)
    assert torch.equal(got, want)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9])
def test_dropout_statistics(p):
    """With equal scores and V = 1 a row is the fraction of kept keys, scaled: deviation sqrt(p / (1 - p) / Sk)."""
    q, k, v = torch.zeros(2, 4, 200, 64), torch.zeros(2, 4, 1000, 64), torch.ones(2, 4, 1000, 64)
    rows = xeflash.attention(q, k, v, dropout_p=p, rng=(1, 2))[..., 0].double()
    deviation = (p / (1 - p) / 1000) ** 0.5
    assert abs(rows.mean() - 1) < 5 * deviation / 1600**0.5 + 1e-4
    assert rows.std() == pytest.approx(deviation, rel=0.1, abs=1e-6)


def test_dropout_of_everything():
    q, k, v = make()
    assert torch.all(xeflash.attention(q, k, v, dropout_p=1.0, rng=(1, 2)) == 0)


# ---- torch's modes ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_casts_the_inputs(dtype):
    q, k, v = make()
    want = xeflash.attention(*(x.to(dtype) for x in (q, k, v)))
    with torch.autocast("cpu", dtype):
        out = xeflash.attention(q, k, v)
        flash = xeflash.flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)))
        mixed = xeflash.attention(q.to(dtype), k, v)
    assert out.dtype == dtype and torch.equal(out, want) and torch.equal(mixed, want)
    assert torch.equal(flash.transpose(1, 2), want)
    assert xeflash.attention(q, k, v).dtype == torch.float32


def test_no_grad_and_inference_mode():
    q, k, v = make()
    want = xeflash.attention(q, k, v)
    leaves = [torch.nn.Parameter(x) for x in (q, k, v)]
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            out = xeflash.attention(*leaves)
            assert torch.equal(out, want) and not out.requires_grad
            assert torch.equal(xeflash.attention(*(x * 1 for x in (q, k, v))), want)
    assert xeflash.attention(*leaves).requires_grad
