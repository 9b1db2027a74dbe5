"""Keys that are split over work-groups, for any number of queries: as without splits, and the same bits from run to run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import plain
import pytest
import torch
import xeflash
from axes import DOCUMENTS, LENGTHS
from specs import cached, documents, run
from tolerance import check_attention
from xeflash.selftest.attention.spec import Spec
from xeflash.selftest.reference import Features

SPLITS = [0, 2, 3, 7, 16]

# Two kernels each, which all numbers of splits share.
DENSE = [
    Spec("bf16", rows=64, keys=1000, heads=(8, 2), window="causal"),
    Spec("bf16", rows=7, keys=700, heads=(10, 2), window="31,5", sinks=True),
    Spec("fp32", rows=23, keys=600, window="31,5", variant="softcap+alibi+bias32+snippet", scale=-0.2, sinks=True,
         layout="bhsd", entry="attention"),
]  # fmt: skip
WIDE = [
    Spec("fp16", rows=63, keys=600, variant="dropout", window="causal", entry="attention", layout="odd"),
    Spec("fp16", 128, 128, rows=127, keys=1000, heads=(3, 1), variant="mask", entry="attention", layout="odd"),
    Spec("bf16", 192, 128, rows=130, keys=1, window="causal", entry="varlen-used"),
    Spec("bf16", 576, 512, rows=9, keys=600, heads=(8, 1), window="causal"),
    Spec("fp16", 256, 256, rows=300, keys=1000, heads=(1, 1), variant="alibi", slopes="bh"),
    Spec("fp32", 80, 80, rows=1, keys=1000, heads=(8, 1), sinks=True, variant="dropout", entry="attention"),
    Spec("bf16", 96, 96, rows=33, keys=1000, variant="bias", window="50,-1", entry="attention", broadcast="1hq1"),
]
CACHED = [
    cached("fp32", rows=5, heads=(32, 8), keys=(129, 0, 700), place="paged16", format="e4m3.array", window="causal"),
    cached("fp32", rows=17, keys=(70, 9), place="pad", rotary="halves", new=5),
]
WIDE_CACHED = [
    cached("fp16", rows=3, keys=LENGTHS[-1], place="beams8", sinks=True),
    cached("fp16", 128, 128, rows=16, heads=(40, 10), keys=(5000,), place="paged64", format="int8", window="31,5"),
    cached("bf16", rows=2, heads=(8, 1), keys=LENGTHS[-1], place="index", variant="alibi", window="causal"),
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
        run(replace(case, splits=splits, scale=-0.2 if splits == 3 else None))


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
    [replace(DENSE[2], variant=variant, kind="gpu") for variant in ("softcap+alibi+bias32", "snippet")]
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
    ids = documents(kind, 700)
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
