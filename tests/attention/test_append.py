"""What flash_attn_with_kvcache writes: new keys and values, rotated and quantised, and nothing else."""

from itertools import product

import ml_dtypes
import numpy as np
import pytest
import torch
import xeflash
from arrays import DTYPES, FORMATS, from_array, is_on_gpu, to_array
from cover import few, few_rows
from specs import cached, run


def bytes_of(x):
    return x.view(torch.uint8)


def bits(x):
    return x.contiguous().view(torch.uint8).clone()


def append(k_cache, v_cache, k, v, lengths, heads=2, q=None, kind="torch", **options):
    q = torch.zeros(k.shape[0], 1, heads, k.shape[-1], dtype=k.dtype) if q is None else q
    options["cache_seqlens"] = torch.tensor(lengths, dtype=torch.int32)
    written = [k_cache, v_cache, *(options[name] for name in ("k_scale", "v_scale") if name in options)]
    there = {id(x): to_array(x, kind) for x in (q, k_cache, v_cache, k, v, *options.values())}
    arrays = [there[id(x)] for x in (q, k_cache, v_cache, k, v)]
    out = xeflash.flash_attn_with_kvcache(*arrays, **{name: there[id(x)] for name, x in options.items()})
    if is_on_gpu(kind):
        for x in written:
            if isinstance(x, torch.Tensor):
                bytes_of(x).copy_(bytes_of(from_array(there[id(x)], kind)))
    return out


@pytest.mark.parametrize("style", ["", "pairs", "halves"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_new_keys_are_rotated_and_written_and_nothing_else(dtype, style):
    run(cached(dtype, keys=(10, 3, 43), new=3, place="pad", rotary=style))


def test_pages_are_written_where_the_table_says():
    table = torch.tensor([[4, 1], [0, 3]], dtype=torch.int32)
    k_cache, v_cache = torch.zeros(5, 16, 1, 64), torch.zeros(5, 16, 1, 64)
    k, v = torch.randn(2, 4, 1, 64), torch.randn(2, 4, 1, 64)
    append(k_cache, v_cache, k, v, [14, 5], heads=1, block_table=table)
    for cache, new in ((k_cache, k), (v_cache, v)):
        want = torch.zeros_like(cache)
        want[4, 14:], want[1, :2], want[0, 5:9] = new[0, :2], new[0, 2:], new[1]
        assert torch.equal(cache, want)


def test_beams_are_written_where_the_index_says():
    index = torch.tensor([[0, 1, 1, 9], [1, 0, 0, 9]], dtype=torch.int32)
    k_cache, v_cache = torch.zeros(2, 6, 1, 64), torch.zeros(2, 6, 1, 64)
    k, v = torch.randn(2, 1, 1, 64), torch.randn(2, 1, 1, 64)
    append(k_cache, v_cache, k, v, [2, 2], heads=1, beam_index=index)
    assert torch.equal(k_cache[1, 2], k[0, 0])
    assert torch.equal(v_cache[0, 2], v[1, 0])


def test_appends_without_queries():
    k_cache, v_cache = torch.zeros(2, 9, 1, 64), torch.zeros(2, 9, 1, 64)
    k, v = torch.ones(2, 2, 1, 64), torch.ones(2, 2, 1, 64)
    out = append(k_cache, v_cache, k, v, [0, 7], heads=1, q=torch.zeros(2, 0, 1, 64))
    assert out.shape == (2, 0, 1, 64)
    assert k_cache[0, :2].all() and v_cache[1, 7:].all() and k_cache.sum() == 4 * 64


# ---- quantisation -------------------------------------------------------------------------------


def every_bf16():
    """All finite numbers, as (1, tokens, 1, 64)."""
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    return torch.where(x.float().isfinite(), x, 0).reshape(1, -1, 1, 64)


def quantised(x, name):
    """By PyTorch, saturating."""
    if name == "int8":
        return x.float().round().clamp(-127, 127).to(torch.int8)
    largest = torch.finfo(FORMATS[name]).max
    return x.float().clamp(-largest, largest).to(FORMATS[name])


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("name", FORMATS)
def test_every_number_is_rounded_to_the_nearest(name, scale):
    check_rounding(name, scale, "torch")


@pytest.mark.gpu
@pytest.mark.wide
@pytest.mark.parametrize("name", FORMATS)
def test_every_number_is_rounded_to_the_nearest_on_gpu(gpu, name):
    check_rounding(name, 0.25, "gpu")


def check_rounding(name, scale, kind):
    x = every_bf16()
    k_cache, v_cache = (torch.zeros(x.shape, dtype=FORMATS[name]) for _ in range(2))
    no_query = torch.zeros(1, 0, 1, 64, dtype=x.dtype)
    append(k_cache, v_cache, x, -x, [0], heads=1, q=no_query, kind=kind, k_scale=scale, v_scale=1.0)
    got, want = k_cache.float(), quantised(x.float() / scale, name).float()
    assert torch.equal(got, want), f"{x[got != want][:5]}: {got[got != want][:5]}, want {want[got != want][:5]}"
    assert torch.equal(v_cache.float(), quantised(-x, name).float())


@pytest.mark.parametrize("name", few(FORMATS, "int8"))
def test_array_of_scales_gets_the_largest_of_a_row(name):
    check_scales(name, "torch")


@pytest.mark.gpu
@pytest.mark.wide
@pytest.mark.parametrize("name", FORMATS)
def test_array_of_scales_gets_the_largest_of_a_row_on_gpu(gpu, name):
    check_scales(name, "gpu")


def check_scales(name, kind):
    x = torch.randn(1, 5, 2, 64) * torch.tensor([1e-3, 1.0, 50.0, 0.0, 7.0])[:, None, None]
    k_cache, v_cache = (torch.zeros(1, 9, 2, 64, dtype=FORMATS[name]) for _ in range(2))
    k_scale, v_scale = torch.full((1, 9, 2), 3.0), torch.full((1, 9, 2), 3.0)
    append(k_cache, v_cache, x, x, [4], q=torch.zeros(1, 0, 2, 64), kind=kind, k_scale=k_scale, v_scale=v_scale)
    largest = 127.0 if name == "int8" else torch.finfo(FORMATS[name]).max
    amax = x.abs().amax(-1)
    want = torch.where(amax > 0, amax / largest, 1.0)
    torch.testing.assert_close(k_scale[:, 4:], want, rtol=1e-6, atol=0)
    assert (k_scale[:, :4] == 3.0).all() and torch.equal(k_scale, v_scale)
    error = (k_cache[:, 4:].float() * k_scale[:, 4:, :, None] - x).abs()
    step = {"int8": 1 / 254, "e4m3": 2**-4, "e5m2": 2**-3}[name]
    assert (error <= 1.001 * step * amax[..., None]).all()


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize(("name", "rows"), few_rows(product(FORMATS, (1, 2)), *product(("e4m3", "int8"), (1,))))
def test_every_code_is_read_as_its_number(name, rows, kind):
    check_codes(name, rows, "fp32", kind)


@pytest.mark.wide
@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "dtype"), [(1, "fp32"), (8, "fp16"), (8, "bf16")])
@pytest.mark.parametrize("name", FORMATS)
def test_every_code_is_read_as_its_number_on_gpu(gpu, name, rows, dtype):
    check_codes(name, rows, dtype, "gpu")


def check_codes(name, rows, dtype, kind):
    """With one key a result is its value."""
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(FORMATS[name]).reshape(4, 1, 1, 64)
    q, k = torch.zeros(4, rows, 1, 64, dtype=DTYPES[dtype]), torch.zeros(4, 1, 1, 64, dtype=FORMATS[name])
    arrays = [q, k, codes]
    if is_on_gpu(kind):
        arrays = [to_array(x, kind) for x in arrays]
    if kind == "numpy":
        numpy_type = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "int8": np.int8}[name]
        arrays = [q.numpy(), *(x.view(torch.uint8).numpy().view(numpy_type) for x in (k, codes))]
    out = xeflash.flash_attn_with_kvcache(*arrays, k_scale=1.0, v_scale=0.5)
    out = from_array(out, kind) if is_on_gpu(kind) else torch.as_tensor(out)
    want = (codes.float() * 0.5).expand(4, rows, 1, 64)
    torch.testing.assert_close(out.float(), want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.wide
@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 8])
def test_fp16_denormals_keep_their_values_on_gpu(gpu, rows):
    """As keys and as values."""
    values = (2.0**-24 * torch.arange(1, 257)).half().reshape(4, 1, 1, 64)
    k = torch.zeros(4, 1, 1, 64).half()
    q = torch.zeros(4, rows, 1, 64).half()
    out = xeflash.flash_attn_with_kvcache(*(to_array(x, "usm") for x in (q, k, values)))
    assert torch.equal(from_array(out, "usm"), values.expand(4, rows, 1, 64))
    q, k = q + 1, values
    arrays = [to_array(x, "usm") for x in (q, k, values)]
    _, lse = xeflash.flash_attn_with_kvcache(*arrays, softmax_scale=2.0**12, return_softmax_lse=True)
    want = (2.0**12 * values.float().sum(-1)).expand(4, rows, 1).permute(0, 2, 1)
    torch.testing.assert_close(from_array(lse, "usm"), want, rtol=1e-5, atol=0)
