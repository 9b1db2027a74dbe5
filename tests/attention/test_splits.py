"""Keys that are split over work-groups, for any number of queries: as without splits, and the same bits from run to run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import plain
import pytest
import torch
import xeflash
from caches import CacheCase
from caches import run as run_cached
from cases import Case, run
from gradients import DOCUMENTS
from tolerance import check_attention
from xeflash.selftest.reference import Features

SPLITS = [0, 2, 3, 7, 16]

# Two kernels each, which all numbers of splits share.
DENSE = [
    Case("bf16", rows=64, keys=1000, heads="gqa4", window="causal"),
    Case("bf16", rows=7, keys=700, heads="gqa5", window="window", sinks=True),
    Case("fp32", rows=23, keys=600, window="window", variant="softcap-alibi-bias32-snippet", scale="scale-0.2", sinks=True,
         layout="bhsd", entry="attention"),
]  # fmt: skip
WIDE = [
    Case("fp16", rows=63, keys=600, variant="dropout", window="causal", entry="attention", layout="odd"),
    Case("fp16", 128, 128, rows=127, keys=1000, heads="mqa", variant="mask", entry="attention", layout="odd"),
    Case("bf16", 192, 128, rows=130, keys=1, window="causal", entry="varlen-used"),
    Case("bf16", 576, 512, rows=9, keys=600, heads="mqa8", window="causal"),
    Case("fp16", 256, 256, rows=300, keys=1000, heads="one", variant="alibi", alibi_batch=True),
    Case("fp32", 80, 80, rows=1, keys=1000, heads="mqa8", sinks=True, variant="dropout", entry="attention"),
    Case("bf16", 96, 96, rows=33, keys=1000, variant="bias", window="left", entry="attention", broadcast="1hq1"),
]
CACHED = [
    CacheCase("fp32", rows=5, heads="32/8", lengths="129,0,700", place="paged16", format="e4m3.array", window="causal"),
    CacheCase("fp32", rows=17, lengths="70,9", place="pad", rotary="halves", new=5),
]
WIDE_CACHED = [
    CacheCase("fp16", rows=3, lengths="eight", place="beams8", sinks=True),
    CacheCase(
        "fp16", 128, 128, rows=16, heads="40/10", lengths="5000", place="paged64", format="int8", window="window"
    ),
    CacheCase("bf16", rows=2, heads="8/1", lengths="eight", place="index", variant="alibi", window="causal"),
]


def with_cases(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.id)


@with_cases([*DENSE[::2], *(pytest.param(case, marks=pytest.mark.wide) for case in [DENSE[1], *WIDE])])
def test_results_match_the_reference(split, case):
    for splits in SPLITS:
        split(splits)
        run(case)


@with_cases([*CACHED, *(pytest.param(case, marks=pytest.mark.wide) for case in WIDE_CACHED)])
def test_caches_match_the_reference(case):
    for splits in SPLITS[:2] + SPLITS[3:]:  # cases of three have a negative scale, which is compiled in
        run_cached(replace(case, splits=splits))


@pytest.mark.gpu
@with_cases([replace(case, kind="gpu") for case in DENSE[:2]])
def test_results_match_the_reference_on_gpu(gpu, split, case):
    test_results_match_the_reference(split, case)


@pytest.mark.gpu
@with_cases([replace(CACHED[0], dtype="bf16", kind="gpu")])
def test_caches_match_the_reference_on_gpu(gpu, case):
    test_caches_match_the_reference(case)


@pytest.mark.gpu
@pytest.mark.wide
@with_cases(
    [replace(DENSE[2], variant=variant, kind="gpu") for variant in ("softcap-alibi-bias32", "snippet")]
    + [replace(case, kind="gpu") for case in WIDE]
)
def test_results_match_the_reference_on_gpu_wide(gpu, split, case):
    test_results_match_the_reference(split, case)


@pytest.mark.gpu
@pytest.mark.wide
@with_cases([replace(case, kind="gpu") for case in [*CACHED[1:], *WIDE_CACHED]])
def test_caches_match_the_reference_on_gpu_wide(gpu, case):
    test_caches_match_the_reference(case)


@pytest.mark.parametrize("rows", [1, 23, 127])
def test_the_same_call_gives_the_same_bits(rows):
    arrays = [x.bfloat16() for x in plain.make_rows_first(rows, 1000)]
    for splits in (0, 7):
        first, again = (
            xeflash.flash_attn_with_kvcache(*arrays, num_splits=splits, return_softmax_lse=True) for _ in range(2)
        )
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_documents_may_be_split(kind):
    q, k, v = plain.make_rows_first(33, 700)
    ids = DOCUMENTS[kind](700, torch.Generator().manual_seed(1)).int()
    out = xeflash.flash_attn_func(q, k, v, causal=True, document_ids=ids, num_splits=5)
    plain.check_rows_first(kind, (q, k, v), out, f=Features(window=(-1, 0), documents=ids))


def test_packed_sequences_without_queries_or_keys():
    """Rows of the partial results are those of the packed tokens."""
    rows, keys = [0, 3, 20, 0, 1], [5, 600, 0, 0, 30]
    q, k, v = torch.randn(sum(rows), 4, 64), torch.randn(sum(keys), 2, 64), torch.randn(sum(keys), 2, 64)
    starts = [torch.tensor([0, *torch.tensor(n).cumsum(0).tolist()], dtype=torch.int32) for n in (rows, keys)]
    out = xeflash.flash_attn_varlen_func(q, k, v, *starts, max(rows), max(keys), num_splits=4)
    for b in range(len(rows)):
        (q0, q1), (k0, k1) = (s[b : b + 2].tolist() for s in starts)
        if q1 > q0:
            part = [x[i:j].transpose(0, 1)[None] for x, i, j in ((q, q0, q1), (k, k0, k1), (v, k0, k1))]
            check_attention(f"sequence {b}", *part, Features(), out[q0:q1].transpose(0, 1)[None])


def test_gradients_do_not_depend_on_splits(split):
    """The backward pass reads out and the LSE, whose rounding alone differs."""
    want: list[Any] = []
    for splits in (1, 5):
        split(splits)
        torch.manual_seed(3)
        arrays = [x.requires_grad_() for x in plain.make_rows_first(33, 600)]
        xeflash.flash_attn_func(*arrays, causal=True).square().sum().backward()
        got = [x.grad for x in arrays]
        for a, b in zip(want or got, got, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        want = got


def test_a_bad_value_spoils_the_same_rows(split):
    q, k, v = plain.make_rows_first(40, 600)
    v[1, 599, 0, 5] = torch.nan
    k[0, 570, 1, 0] = torch.nan
    bad = []
    for splits in (1, 7):
        split(splits)
        bad.append(
            xeflash.attention(
                *(x.transpose(1, 2) for x in (q, k, v)), is_causal=True, bottom_right=True, enable_gqa=True
            ).isnan()
        )
    assert bad[0].any() and torch.equal(*bad)
