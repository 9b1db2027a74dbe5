"""What flash_attn_with_kvcache refuses: the error's type and text, and that nothing was written."""

import re

import numpy as np
import pytest
import torch
import xeflash


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def call():
    """Two sequences of a cache of 100 keys, three new ones."""
    return {
        "q": zeros(2, 3, 4, 64),
        "k_cache": zeros(2, 100, 2, 64),
        "v_cache": zeros(2, 100, 2, 64),
        "k": torch.ones(2, 3, 2, 64),
        "v": torch.ones(2, 3, 2, 64),
        "cache_seqlens": int32(50, 60),
    }


PAGES = {"k_cache": zeros(9, 16, 2, 64), "v_cache": zeros(9, 16, 2, 64), "cache_seqlens": int32(20, 40)}
TABLE = int32(0, 1, 2, 3, 4, 5).view(2, 3)
BEAMS = int32(0, 1)[:, None].repeat(1, 100)
COS = zeros(200, 16)
FP8 = {name: zeros(2, 100, 2, 64, dtype=torch.float8_e4m3fn) for name in ("k_cache", "v_cache")}
INT8 = {name: zeros(2, 100, 2, 64, dtype=torch.int8) for name in ("k_cache", "v_cache")}

NESTED = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
REFUSED = {
    "capacity": (
        {"cache_seqlens": int32(50, 98)},
        ValueError,
        "cache_seqlens must be 0 to 97, the rows that the cache has for a sequence less the new ones, got 98 for sequence 1",
    ),
    "capacity-int": ({"cache_seqlens": 98}, ValueError, "cache_seqlens must be 0 to 97, "),
    "negative": ({"cache_seqlens": int32(-1, 5)}, ValueError, "cache_seqlens must be 0 to 97, "),
    "negative-int": ({"cache_seqlens": -3}, ValueError, "cache_seqlens must be 0 to the rows of the cache, got -3"),
    "lengths-entries": ({"cache_seqlens": int32(5)}, ValueError, "cache_seqlens must have 2 entries, got 1"),
    "lengths-dtype": ({"cache_seqlens": torch.tensor([5, 5])}, TypeError, "cache_seqlens must be int32, got "),
    "no-lengths": ({"cache_seqlens": None}, ValueError, "cache_seqlens must be given with k and v"),
    "k-alone": ({"v": None}, ValueError, "k and v must be given together"),
    "k-shape": (
        {"k": zeros(2, 3, 4, 64)},
        ValueError,
        "k must have shape [2, tokens, 2, 64], got [2, 3, 4, 64]",
    ),
    "v-tokens": ({"v": zeros(2, 4, 2, 64)}, ValueError, "v must have shape [2, 3, 2, 64], got [2, 4, 2, 64]"),
    "k-dtype": ({"k": zeros(2, 3, 2, 64).half()}, TypeError, "k must have the dtype of q (float32), got float16"),
    "cache-dtype": (
        {"k_cache": zeros(2, 100, 2, 64).half()},
        TypeError,
        "k_cache must have the dtype of q (float32), float8_e4m3fn, float8_e5m2 or int8, got float16",
    ),
    "v-cache-dtype": (
        {"v_cache": zeros(2, 100, 2, 64, dtype=torch.int8)},
        TypeError,
        "v_cache must have the dtype of k_cache (float32), got int8",
    ),
    "cache-batch": (
        {"k_cache": zeros(3, 100, 2, 64), "v_cache": zeros(3, 100, 2, 64)},
        ValueError,
        "k_cache.batch must equal q.batch (2), got 3",
    ),
    "cache-lengths": ({"v_cache": zeros(2, 99, 2, 64)}, ValueError, "v_cache.length must equal k_cache.length (100)"),
    "cache-strides": (
        {"k_cache": zeros(2, 100, 2, 128)[..., ::2]},
        ValueError,
        "k_cache must have a contiguous last dimension, got stride 2",
    ),
    "heads": (
        {"k_cache": zeros(2, 100, 3, 64), "v_cache": zeros(2, 100, 3, 64)},
        ValueError,
        "k_cache.heads must divide q.heads (4), got 3",
    ),
    "index-range": (
        {"cache_batch_idx": int32(0, 2)},
        ValueError,
        "cache_batch_idx must be 0 to 1, got 2 at [1, 0]",
    ),
    "index-twice": (
        {"cache_batch_idx": int32(1, 1)},
        ValueError,
        "cache_batch_idx must not append two sequences to one place, got 1 twice",
    ),
    "leftpad": (
        {"cache_leftpad": int32(0, 61)},
        ValueError,
        "cache_leftpad must be 0 to the sequence's length (60), got 61 for sequence 1",
    ),
    "page-size": (
        {**PAGES, "k_cache": zeros(9, 24, 2, 64), "v_cache": zeros(9, 24, 2, 64), "block_table": TABLE},
        ValueError,
        "k_cache.page must be a positive multiple of 16, got 24",
    ),
    "table-range": (
        {**PAGES, "block_table": int32(0, 1, 2, 3, 4, 9).view(2, 3)},
        ValueError,
        "block_table must be 0 to 8, got 9 at [1, 2]",
    ),
    "table-shape": (
        {**PAGES, "block_table": int32(0, 1)},
        ValueError,
        "block_table must have shape [2, columns], got [2]",
    ),
    "table-dtype": ({**PAGES, "block_table": TABLE.long()}, TypeError, "block_table must be int32, got "),
    "table-capacity": (
        {**PAGES, "block_table": TABLE, "cache_seqlens": int32(20, 46)},
        ValueError,
        "block_table must have pages of 16 rows for all of cache_seqlens and the new keys, got 3 columns with cache_seqlens = 46 for sequence 1",
    ),
    "table-twice": (
        {**PAGES, "block_table": int32(0, 1, 2, 3, 4, 1).view(2, 3)},
        ValueError,
        "block_table must not append two sequences to one place, got 1 twice",
    ),
    "table-and-index": (
        {**PAGES, "block_table": TABLE, "cache_batch_idx": int32(0, 1)},
        ValueError,
        "cache_batch_idx must be None with block_table",
    ),
    "table-and-leftpad": (
        {**PAGES, "block_table": TABLE, "cache_leftpad": int32(0, 1)},
        ValueError,
        "cache_leftpad must be None with block_table",
    ),
    "table-and-beams": (
        {**PAGES, "block_table": TABLE, "beam_index": BEAMS},
        ValueError,
        "beam_index must be None with block_table",
    ),
    "beams-and-index": (
        {"beam_index": BEAMS, "cache_batch_idx": int32(0, 1)},
        ValueError,
        "cache_batch_idx must be None with beam_index",
    ),
    "beams-range": ({"beam_index": BEAMS * 2}, ValueError, "beam_index must be 0 to 1, got 2 at [1, 0]"),
    "beams-twice": (
        {"beam_index": BEAMS * 0, "cache_seqlens": int32(50, 50)},
        ValueError,
        "beam_index must not append two sequences to one place, got 0 twice",
    ),
    "beams-short": ({"beam_index": BEAMS[:, :60].contiguous()}, ValueError, "cache_seqlens must be 0 to 57, "),
    "rotary-alone": ({"rotary_cos": COS}, ValueError, "rotary_cos and rotary_sin must be given together"),
    "rotary-without-k": (
        {"rotary_cos": COS, "rotary_sin": COS, "k": None, "v": None},
        ValueError,
        "k must be given with rotary_cos and rotary_sin",
    ),
    "rotary-wide": (
        {"rotary_cos": zeros(200, 40), "rotary_sin": zeros(200, 40)},
        ValueError,
        "rotary_cos.columns must be a multiple of 8, at most half of head_dim (64), got 40",
    ),
    "rotary-short": (
        {"rotary_cos": zeros(60, 16), "rotary_sin": zeros(60, 16)},
        ValueError,
        "rotary_cos.rows must be at least the longest sequence (63), got 60",
    ),
    "rotary-short-q": (
        {"rotary_cos": zeros(64, 16), "rotary_sin": zeros(64, 16), "q": zeros(2, 5, 4, 64), "causal": True},
        ValueError,
        "rotary_cos.rows must be more than the last position of q (64), got 64",
    ),
    "rotary-shapes": (
        {"rotary_cos": COS, "rotary_sin": zeros(200, 8)},
        ValueError,
        "rotary_sin must have the shape of rotary_cos [200, 16], got [200, 8]",
    ),
    "rotary-dtype": (
        {"rotary_cos": COS.half(), "rotary_sin": COS},
        TypeError,
        "rotary_cos must have the dtype of q (float32), got float16",
    ),
    "scale-of-floats": (
        {"k_scale": 1.0},
        ValueError,
        "k_scale must be None unless k_cache is int8 or an 8-bit float, got k_cache.dtype = float32",
    ),
    "int8-without-scale": (INT8, ValueError, "k_scale must be given with int8"),
    "scale-zero": ({**FP8, "k_scale": 0.0}, ValueError, "k_scale must be positive and finite in float32, got 0.0"),
    "scale-array-zero": (
        {**FP8, "k_scale": torch.zeros(1)},
        ValueError,
        "k_scale must be positive and finite in float32, got 0.0",
    ),
    "scale-array-bool": (
        {**FP8, "k_scale": torch.tensor(True)},
        TypeError,
        "k_scale must be a number or an array, got True (bool)",
    ),
    "scale-nested": ({**FP8, "v_scale": NESTED}, TypeError, "v_scale must be a torch tensor, a numpy array or have"),
    "scale-sparse": ({**FP8, "v_scale": torch.ones(1).to_sparse()}, TypeError, "v_scale must be a dense tensor"),
    "scale-bool": ({**FP8, "k_scale": True}, TypeError, "k_scale must be a number or an array, got True (bool)"),
    "scale-nan": (
        {**FP8, "v_scale": float("nan")},
        ValueError,
        "v_scale must be positive and finite in float32, got nan",
    ),
    "scale-shape": (
        {**FP8, "k_scale": torch.ones(2, 100), "v_scale": torch.ones(2, 100)},
        ValueError,
        "k_scale must be a number, or fp32 of one element, per head [2], per sequence and head [2, 2], or per row and "
        "head of k_cache [2, 100, 2], got [2, 100]",
    ),
    "scale-dtype": (
        {**FP8, "k_scale": torch.ones(2, 100, 2).half()},
        TypeError,
        "k_scale must be float32, got float16",
    ),
    "one-array-of-scales": (
        {**FP8, "k_scale": torch.ones(2, 100, 2), "v_scale": 1.0},
        ValueError,
        "k_scale and v_scale must both be one number, or both have more, got more of k_scale alone",
    ),
    "splits-many": ({"num_splits": 129}, ValueError, "num_splits must be 0 (automatic) to 128, got 129"),
    "splits-negative": ({"num_splits": -1}, ValueError, "num_splits must be 0 (automatic) to 128, got -1"),
    "unified-max-of-rows": (
        {"unified_max": 0.0},
        NotImplementedError,
        "unified_max is there for one query only, got q.length = 3",
    ),
    "unified-max-nan": ({"unified_max": float("nan")}, ValueError, "unified_max must be finite in float32, got nan"),
    "splits-type": ({"num_splits": "2"}, TypeError, "num_splits must be an integer, got"),
    "window": ({"window_size": (1, 2, 3)}, ValueError, "window_size must have 2 entries, got 3"),
    "softcap": ({"softcap": -1.0}, ValueError, "softcap must be 0 (off) or positive and finite in float32, got -1.0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_the_reason(name):
    changes, error, text = REFUSED[name]
    arguments = call() | changes
    with pytest.raises(error, match="^" + re.escape("flash_attn_with_kvcache: " + text)):
        xeflash.flash_attn_with_kvcache(**arguments)
    assert not arguments["k_cache"].float().any() and not arguments["v_cache"].float().any()


def test_refuses_a_cache_that_cannot_be_written():
    arguments = {name: x.numpy() for name, x in call().items()}
    arguments["v_cache"].flags.writeable = False
    text = "flash_attn_with_kvcache: v_cache must be writable to append to, got one that is read-only"
    with pytest.raises(ValueError, match="^" + text):
        xeflash.flash_attn_with_kvcache(**arguments)
    assert not arguments["k_cache"].any()


def test_refuses_gradients_of_a_cache():
    arguments = call()
    arguments["k_cache"].requires_grad_()
    with pytest.raises(NotImplementedError, match="^flash_attn_with_kvcache: k_cache must not require grad"):
        xeflash.flash_attn_with_kvcache(**arguments)


@pytest.mark.parametrize("name", ["k_cache", "v_cache"])
def test_there_is_a_cache(name):
    k = zeros(1, 3, 2, 64)
    caches = {"k_cache": zeros(1, 32, 2, 64), "v_cache": zeros(1, 32, 2, 64), name: None}
    with pytest.raises(TypeError, match=f"^flash_attn_with_kvcache: {name} must be a torch tensor, .*, got NoneType"):
        xeflash.flash_attn_with_kvcache(k, **caches, k=k, v=k, cache_seqlens=0)


def test_a_scale_that_no_float_holds_is_refused():
    q, cache = zeros(1, 1, 2, 64), zeros(1, 32, 2, 64).to(torch.int8)
    with pytest.raises(
        ValueError, match="^flash_attn_with_kvcache: k_scale must be positive and finite in float32, got 1000"
    ):
        xeflash.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=3, k_scale=10**400, v_scale=1.0)


def test_numbers_of_numpy_are_numbers():
    q, cache = torch.randn(1, 1, 2, 64), torch.randint(-9, 9, (1, 32, 2, 64)).to(torch.int8)
    want = xeflash.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=3, k_scale=0.5, v_scale=0.25)
    numbers = {"cache_seqlens": np.int32(3), "k_scale": np.float32(0.5), "v_scale": np.float16(0.25)}
    assert torch.equal(xeflash.flash_attn_with_kvcache(q, cache, cache, **numbers), want)
