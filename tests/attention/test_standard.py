"""Standard attention in three kernels, with S and P in memory: on the CPU, and on a GPU (`--sim bmg` simulates one)."""

import numpy as np
import pytest
import torch
from arrays import DTYPES, from_array, is_on_gpu, to_array
from cover import few
from memory import lay_out
from tolerance import check_attention
from xeflash.bench.standard import standard_attention
from xeflash.selftest.reference import Features

MASKS = ("full", "top-left", "bottom-right")
# dtype, (heads of Q, of K), (dims of Q, of V), layout; a kernel each
CPU = [
    ("fp32", (2, 2), (64, 64), "bshd"),
    ("fp16", (3, 1), (59, 40), "odd"),
    ("bf16", (4, 2), (64, 64), "bhsd"),
    ("bf16", (2, 1), (59, 111), "sliced"),
    ("bf16", (1, 1), (576, 512), "bshd"),
    ("fp16", (6, 2), (80, 80), "bshd"),
]
GPU = [
    ("bf16", (4, 2), (64, 64), "bhsd"),
    ("fp16", (2, 1), (72, 40), "odd"),
    ("fp32", (1, 1), (24, 264), "bshd"),  # columns of O shared out over threads
]
SIZES = [(127, 127), (127, 300), (300, 63), (1, 1000), (33, 1), (7, 0)]
GPU_SIZES = [(127, 127), (130, 300), (150, 7)]  # all served by one kernel


def check(kind, dtype, heads, dims, layout, rows, keys, mask, scale=None):
    shapes = [(rows, heads[0], dims[0]), (keys, heads[1], dims[0]), (keys, heads[1], dims[1])]
    q, k, v = (lay_out(torch.randn(2, *shape).to(DTYPES[dtype]), layout).transpose(1, 2) for shape in shapes)
    arrays = (to_array(x, kind) for x in (q, k, v))
    out = standard_attention(*arrays, mask != "full", scale, bottom_right=mask == "bottom-right")
    window = (-1, -1) if mask == "full" else (-1, 0)
    features = Features(scale=scale, window=window, top_left=mask == "top-left")
    check_attention("standard", q, k, v, features, from_array(out, kind), gpu=is_on_gpu(kind))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kernel", few(CPU, CPU[0]), ids=lambda k: f"{k[0]}-d{k[2][0]}x{k[2][1]}")
def test_matches_reference(kernel, mask):
    for number, (rows, keys) in enumerate(SIZES):
        check(("torch", "numpy")[number % 2], *kernel, rows, keys, mask)


@pytest.mark.gpu
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kernel", few(GPU, GPU[0]), ids=lambda kernel: f"{kernel[0]}-d{kernel[2][0]}x{kernel[2][1]}")
def test_matches_reference_on_gpu(gpu, kernel, mask):
    for rows, keys in GPU_SIZES:
        check("gpu", *kernel, rows, keys, mask)


@pytest.mark.parametrize("scale", [0.3, -0.2, 0.0])
def test_any_scale(scale):
    check("torch", "fp32", (2, 2), (64, 64), "bshd", 127, 300, "bottom-right", scale)


def test_nothing_to_do():
    q, k = torch.empty(2, 3, 0, 64), torch.empty(2, 3, 9, 64)
    assert standard_attention(q, k, k).shape == (2, 3, 0, 64)


def test_scores_that_no_memory_holds_are_refused():
    row = np.zeros((1, 1, 1, 64), np.float32)
    q, k = (np.broadcast_to(row, (1, 1, length, 64)) for length in (10_000, 2_000_000_000))
    with pytest.raises(
        MemoryError, match=r"standard_attention: the scores must fit in .* got 80000000000000\.0* bytes"
    ):
        standard_attention(q, k, k)


def test_refuses_what_it_does_not_have():
    q = torch.randn(1, 2, 5, 64)
    with pytest.raises(ValueError, match="standard_attention: query must have 4 dimensions, got 3"):
        standard_attention(q[0], q, q)
    with pytest.raises(ValueError, match=r"standard_attention: key.heads must divide query.heads \(2\), got 3"):
        standard_attention(q, torch.randn(1, 3, 5, 64), torch.randn(1, 3, 5, 64))
    with pytest.raises(TypeError, match="standard_attention: scale must be a number, got '"):
        standard_attention(q, q, q, scale="0.1")
    with pytest.raises(TypeError):
        standard_attention(q, q, q, softcap=1.0)
