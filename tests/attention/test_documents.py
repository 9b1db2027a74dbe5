"""Sequences that are several documents: `document_ids`, the Mask that is not a Window."""

from __future__ import annotations

from typing import Any

import plain
import pytest
import torch
import xeflash
from arrays import to_array, to_xpu
from axes import DOCUMENTS
from cover import few
from launches import launches_of_attention, products_of_gradients
from specs import attention, documents, gradient, run
from xeflash.selftest.reference import Features

CAUSAL, WINDOW, FULL = "-1,0", "40,9", "full"
SIZES = [(1, 1), (1, 300), (23, 127), (127, 127), (127, 1000), (1000, 1000)]


def check(
    dtype: str, sizes: tuple[int, int], documents: str, window: str, kind: str = "torch", dim: int = 64, more: str = ""
) -> None:
    rows, keys = sizes
    variant = f"documents={documents}{more}"
    run(attention(dtype, dim, heads=(4, 2), rows=rows, keys=keys, window=window, variant=variant, kind=kind))


@pytest.mark.parametrize("kind", DOCUMENTS)
@pytest.mark.parametrize("window", [FULL, CAUSAL, WINDOW], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_forward_matches_reference(sizes, window, kind):
    check("fp32", sizes, kind, window)


@pytest.mark.parametrize("kind", DOCUMENTS)
@pytest.mark.parametrize("dtype", few(["bf16", "fp16"], "bf16"))
@pytest.mark.parametrize("sizes", [(1, 300), (127, 1000)], ids=str)
def test_forward_in_16_bits(sizes, dtype, kind):
    check(dtype, sizes, kind, CAUSAL)


@pytest.mark.parametrize("splits", [1, 3, 7])
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_keys_of_a_query_may_be_split(kind, splits):
    q, k, v = plain.make_rows_first(1, 300)
    ids = documents(kind, 300)
    out = xeflash.flash_attn_func(q, k, v, document_ids=ids, num_splits=splits)
    plain.check_rows_first(f"{kind} {splits}", (q, k, v), out, f=Features(documents=ids))


OF_GRADIENTS = [
    gradient(heads=(8, 2), variant="documents=sorted"),
    gradient(variant="documents=random"),
    gradient(window="causal", variant="documents=one"),
    gradient(rows=23, keys=127, sinks=True, variant="documents=different"),
    gradient(rows=1, keys=127, dlse=True, variant="documents=sorted"),
    # the keys' gradients are written all the same
    pytest.param(gradient(rows=0, keys=127, window="31,5", variant="documents=random"), marks=pytest.mark.wide),
    pytest.param(
        gradient(rows=127, keys=300, window="31,5", variant="softcap+alibi+bias+documents=sorted", broadcast="1hqk"),
        marks=pytest.mark.wide,
    ),
    pytest.param(gradient(window="causal", variant="dropout+documents=random"), marks=pytest.mark.wide),
    pytest.param(
        gradient(rows=127, keys=300, window="causal", variant="curve+documents=sorted", entry="func"),
        marks=pytest.mark.wide,
    ),
    gradient("bf16", rows=127, keys=300, heads=(8, 2), window="causal", variant="documents=sorted"),
    pytest.param(gradient("fp16", rows=127, keys=127, variant="mask+documents=random"), marks=pytest.mark.wide),
]


@pytest.mark.parametrize("case", OF_GRADIENTS, ids=lambda case: case.id)
def test_gradients_match_reference(case):
    run(case)


ON_GPU = [
    gradient("bf16", rows=127, keys=300, heads=(8, 2), window="causal", kind="xpu", variant="documents=sorted"),
    gradient("bf16", rows=127, keys=127, kind="xpu", variant="documents=random"),
]


# ---- on GPUs ------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "sizes", "kind", "window"),
    [
        ("bf16", (300, 300), "sorted", CAUSAL),
        ("bf16", (300, 1000), "random", FULL),
        ("bf16", (1, 300), "sorted", FULL),
        ("bf16", (1, 300), "random", WINDOW),
        pytest.param("bf16", (7, 1000), "sorted", FULL, marks=pytest.mark.wide),  # threads take turns at the keys
    ],
    ids=str,
)
def test_forward_on_gpu(gpu, dtype, sizes, kind, window):
    check(dtype, sizes, kind, window, "gpu")


@pytest.mark.gpu
@pytest.mark.xpu
def test_ids_of_sequences_may_be_one_row_on_gpu(xpu):
    """Of which each sequence has the same; its spans are written once."""
    arrays = [to_xpu(x) for x in plain.make(1, 300, dtype=torch.bfloat16)]
    ids = to_xpu(documents("sorted", 300))
    found = [plain.call(*arrays, document_ids=x, bottom_right=True)[0].cpu() for x in (ids, ids.expand(2, -1))]
    assert torch.equal(*found)


@pytest.mark.gpu
@pytest.mark.xpu
@pytest.mark.parametrize("case", ON_GPU, ids=lambda case: case.id)
def test_gradients_on_gpu(xpu, case):
    run(case)


# ---- blocks that are passed over ----------------------------------------------------------------


def counted(rows: int, ids: torch.Tensor) -> list[Any]:
    return launches_of_attention(rows, document_ids=to_array(ids.int(), "gpu"))


ONE, EIGHT = torch.zeros(1024), torch.arange(1024) // 128
APART = torch.cat([EIGHT[64:], EIGHT[:64]])  # the first one lies at both ends


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1024, 128])
@pytest.mark.parametrize("ids", [EIGHT, APART], ids=["together", "apart"])
def test_blocks_of_other_documents_are_not_multiplied_on_gpu(gpu, ids, rows):
    """Of eight documents a query sees an eighth of the blocks, wherever they lie; groups of DG2 have 64 rows."""
    products = [sum(record.dpas for record in counted(rows, of)) for of in (ONE, ids)]
    assert products[1] == products[0] / 8


@pytest.mark.gpu
@pytest.mark.parametrize("ids", [EIGHT, APART], ids=["together", "apart"])
def test_keys_of_other_documents_are_not_read_on_gpu(gpu, ids):
    (_, *all_read), (_, *read) = counted(1, ONE), counted(1, ids)
    assert read[0].global_read < all_read[0].global_read / 4


@pytest.mark.gpu
@pytest.mark.xpu
@pytest.mark.parametrize("dtype", ["bf16"])  # on the device of the forward pass (dealing.py), which has these kernels
def test_gradients_pass_over_blocks_on_gpu(xpu, dtype):
    one_document, eight_documents = (
        products_of_gradients(dtype, document_ids=to_xpu(ids[:512].int())) for ids in (ONE, EIGHT)
    )
    assert eight_documents[1] == one_document[1] / 4
    assert eight_documents[0] < one_document[0] * 0.3


# ---- what is refused ----------------------------------------------------------------------------

IDS = torch.zeros(127, dtype=torch.int32)


@pytest.mark.parametrize(
    ("more", "error", "text"),
    [
        ({"document_ids": IDS.long()}, TypeError, "document_ids must be int32, got int64"),
        ({"document_ids": IDS[:126]}, ValueError, r"document_ids must have shape \[127\] or \[2, 127\].*got \[126\]"),
        ({"document_ids": IDS.expand(3, -1)}, ValueError, r"document_ids must have shape.*got \[3, 127\]"),
        ({"document_ids": IDS[None, None]}, ValueError, r"document_ids must have shape.*got \[1, 1, 127\]"),
        ({"document_ids": IDS, "bottom_right": False}, ValueError, "bottom_right must be True with document_ids.*got False"),
        ({"document_ids": [0] * 127}, TypeError, "document_ids"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(more, error, text):
    q, k, v = plain.make()
    with pytest.raises(error, match=f"attention: {text}"):
        xeflash.attention(q, k, v, enable_gqa=True, **{"bottom_right": True, **more})


def test_more_queries_than_keys_are_refused():
    q, k, v = plain.make(128)
    with pytest.raises(ValueError, match=r"query.length must be at most key.length \(127\) with document_ids.*got 128"):
        xeflash.attention(q, k, v, enable_gqa=True, document_ids=IDS, bottom_right=True)


def test_ids_have_the_leading_dimensions_of_queries():
    x = torch.randn(2, 3, 1, 50, 64)
    ids = torch.randint(0, 4, (2, 3, 50), dtype=torch.int32)
    got = xeflash.attention(x, x, x, document_ids=ids)
    want = xeflash.attention(*[x.flatten(0, 1)] * 3, document_ids=ids.flatten(0, 1))
    assert torch.equal(got.flatten(0, 1), want)
    with pytest.raises(ValueError, match=r"document_ids must have the leading dimensions \[2, 3\].*got \[3, 2\]"):
        xeflash.attention(x, x, x, document_ids=ids.view(3, 2, 50))
