"""Positions in chunks of equal length: `attention_chunk`, a Mask within a Window."""

from __future__ import annotations

import plain
import pytest
import torch
import xeflash
from cover import few
from launches import launches_of_attention, products_of_gradients
from specs import attention, gradient, run
from xeflash.selftest.reference import Features

CAUSAL, WINDOW, FULL = "-1,0", "40,9", "full"
SIZES = [(1, 1), (1, 300), (23, 127), (127, 127), (127, 1000), (300, 100), (1000, 1000)]


def check(dtype: str, sizes: tuple[int, int], chunk: int, window: str, kind: str = "torch", dim: int = 64) -> None:
    rows, keys = sizes
    run(attention(dtype, dim, heads=(4, 2), rows=rows, keys=keys, window=window, variant=f"chunk={chunk}", kind=kind))


@pytest.mark.parametrize("chunk", [1, 7, 64, 100, 1 << 30])
@pytest.mark.parametrize("window", [FULL, CAUSAL, WINDOW], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_forward_matches_reference(sizes, window, chunk):
    check("fp32", sizes, chunk, window)


@pytest.mark.parametrize("dtype", few(["bf16", "fp16"], "bf16"))
@pytest.mark.parametrize("sizes", few([(1, 300), (127, 1000)], (127, 1000)), ids=str)
def test_forward_in_16_bits(sizes, dtype):
    check(dtype, sizes, 50, CAUSAL)


@pytest.mark.parametrize("sizes", [(1, 300), (127, 300), (300, 127)], ids=str)
def test_positions_from_the_first_key(sizes):
    check("fp32", sizes, 50, CAUSAL + "-tl")


@pytest.mark.parametrize("splits", [1, 3, 7])
@pytest.mark.parametrize("rows", [1, 5])
def test_keys_of_a_query_may_be_split(rows, splits):
    q, k, v = plain.make_rows_first(rows, 300)
    q = q[:, :, : k.shape[2]]
    out = xeflash.flash_attn_func(q, k, v, attention_chunk=90, num_splits=splits)
    plain.check_rows_first(f"{rows} {splits}", (q, k, v), out, f=Features(chunk=90))


@pytest.mark.parametrize("rows", few([1, 5], 1))
def test_positions_of_a_cache_begin_behind_its_padding(rows):
    q, k, v = plain.make_rows_first(rows, 320)
    lengths, pad = torch.tensor([300, 320]).int(), torch.tensor([10, 37]).int()
    out = xeflash.flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths, cache_leftpad=pad, attention_chunk=64)
    for b in range(2):
        of = [x[b : b + 1, int(pad[b]) : int(lengths[b])] for x in (k, v)]
        plain.check_rows_first(f"{b}", (q[b : b + 1], *of), out[b : b + 1], f=Features(chunk=64))


@pytest.mark.wide
@pytest.mark.parametrize("rows", [1, 5])
def test_pages_have_chunks(rows):
    q, k, v = plain.make_rows_first(rows, 320)
    lengths = torch.tensor([300, 320]).int()
    pages = torch.randperm(40, generator=torch.Generator().manual_seed(0)).int().view(2, 20)
    pools = [torch.empty(40, 16, *x.shape[2:]) for x in (k, v)]
    for pool, x in zip(pools, (k, v), strict=True):
        pool[pages.flatten()] = x.reshape(40, 16, *x.shape[2:])
    paged = xeflash.flash_attn_with_kvcache(q, *pools, cache_seqlens=lengths, block_table=pages, attention_chunk=64)
    for b in range(2):
        of = [x[b : b + 1, : int(lengths[b])] for x in (k, v)]
        plain.check_rows_first(f"{b}", (q[b : b + 1], *of), paged[b : b + 1], f=Features(chunk=64))


OF_GRADIENTS = [
    gradient(heads=(8, 2), variant="chunk=20"),
    gradient(window="causal", rows=127, keys=300, variant="chunk=50"),
    gradient(rows=23, keys=127, sinks=True, variant="chunk=3"),
    pytest.param(
        gradient(rows=300, keys=127, window="31,5", variant="softcap+alibi+bias+chunk=64", broadcast="1hqk"),
        marks=pytest.mark.wide,
    ),
    pytest.param(gradient(window="causal", variant="dropout+chunk=40"), marks=pytest.mark.wide),
    gradient(window="causal-tl", rows=127, keys=300, variant="chunk=40"),
    gradient("bf16", rows=127, keys=300, heads=(8, 2), window="causal", variant="chunk=64"),
    gradient(window="causal", entry="varlen", variant="chunk=30"),
]


@pytest.mark.parametrize("case", OF_GRADIENTS, ids=lambda case: case.id)
def test_gradients_match_reference(case):
    run(case)


ON_GPU = [gradient("bf16", rows=127, keys=300, heads=(8, 2), window="causal", kind="xpu", variant="chunk=50")]


# ---- on GPUs ------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "sizes", "chunk", "window"),
    [
        ("bf16", (300, 300), 100, CAUSAL),
        ("bf16", (300, 1000), 7, FULL),
        ("bf16", (1, 300), 64, FULL),
        pytest.param("fp16", (7, 1000), 300, FULL, marks=pytest.mark.wide),  # threads take turns at the keys
    ],
    ids=str,
)
def test_forward_on_gpu(gpu, dtype, sizes, chunk, window):
    check(dtype, sizes, chunk, window, "gpu")


@pytest.mark.gpu
@pytest.mark.xpu
@pytest.mark.parametrize("case", ON_GPU, ids=lambda case: case.id)
def test_gradients_on_gpu(xpu, case):
    run(case)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1024, 128])
def test_blocks_of_other_chunks_are_not_multiplied_on_gpu(gpu, rows):
    products = [sum(record.dpas for record in launches_of_attention(rows, attention_chunk=of)) for of in (1023, 128)]
    assert products[1] <= products[0] / 8 + products[0] / 64  # of the last position, which has a chunk of 1023's own


@pytest.mark.gpu
def test_keys_of_other_chunks_are_not_read_on_gpu(gpu):
    (*_, all_read), (*_, read) = (launches_of_attention(1, attention_chunk=chunk) for chunk in (0, 128))
    assert read.global_read < all_read.global_read / 4


@pytest.mark.gpu
@pytest.mark.xpu
def test_gradients_pass_over_blocks_on_gpu(xpu):
    full, chunked = (products_of_gradients(attention_chunk=chunk) for chunk in (0, 128))
    assert chunked[1] <= full[1] / 4
    assert chunked[0] < full[0] * 0.3


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "error", "text"),
    [
        ({"attention_chunk": -1}, ValueError, r"attention_chunk must be 0 \(off\) to 2\^30, got -1"),
        ({"attention_chunk": 2**30 + 1}, ValueError, r"attention_chunk must be 0 \(off\) to 2\^30, got 1073741825"),
        ({"attention_chunk": 2.5}, TypeError, "attention_chunk"),
        (
            {"attention_chunk": 9, "document_ids": torch.zeros(127).int()},
            NotImplementedError,
            "document_ids must be None with attention_chunk, got an array",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(more, error, text):
    q, k, v = plain.make()
    with pytest.raises(error, match=f"attention: {text}"):
        xeflash.attention(q, k, v, enable_gqa=True, bottom_right=True, **more)
