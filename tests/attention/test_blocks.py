"""Blocks of rows and keys that are left out: `block_mask`, with and without a mask_mod, against float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import plain
import pytest
import torch
import xeflash
from arrays import to_array, to_xpu
from cover import few_rows
from launches import launches_of_attention, products_of_gradients
from specs import attention, gradient, run
from xeflash.selftest.attention.snippets import MASK_MOD, PERIOD
from xeflash.selftest.reference import Blocks, Features

SIZES = [(1, 1), (1, 1000), (23, 127), (127, 127), (127, 1000), (1000, 1000), (1000, 23)]
BLOCKS = ("16", "32", "64", "96", "128", "256", "16x256", "256x32", "64x128", "1024")
BOTH = "blocks={}.lists+mask_mod"  # some blocks are full, and mask_mod hides keys of the others


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_listed_blocks_match_reference(sizes, block):
    rows, keys = sizes
    run(attention("fp32", heads=(4, 2), rows=rows, keys=keys, variant=f"blocks={block}"))


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_partial_blocks_match_reference(sizes, block):
    rows, keys = sizes
    run(attention("fp32", heads=(4, 2), rows=rows, keys=keys, variant=BOTH.format(block)))


WORDS = ("1h", "b1", "11", "all", "all.11", "none", "none.1h", "lists", "1h.lists", "11.lists")


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("more", ["", "+mask_mod"])
def test_masks_may_be_shared_all_or_empty(words, more):
    run(attention("fp32", heads=(6, 2), rows=200, keys=300, batch=3, variant=f"blocks=32x64.{words}{more}"))


WINDOWS = ("causal", "31,5", "50,-1", "-1,10", "20,causal", "0,0", "causal-tl", "31,5-tl", "-1,300")


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("sizes", [(300, 300), (127, 400), (400, 127), (1, 300)], ids=str)
@pytest.mark.parametrize("variant", ["blocks=16x64", BOTH.format("64")])
def test_positions_hide_keys_too(variant, sizes, window):
    rows, keys = sizes
    run(attention("fp32", heads=(2, 1), rows=rows, keys=keys, window=window, sinks=True, variant=variant))


OF_FEATURES = ("softcap", "alibi", "mask", "bias", "bias32", "dropout", "snippet", "curve", "slope")
OF_FEATURES += ("softcap+alibi+bias32", "alibi+dropout+slope")


@pytest.mark.wide
@pytest.mark.parametrize("window", ["full", "40,causal"])
@pytest.mark.parametrize("blocks", ["blocks=64x32", BOTH.format("32")])
@pytest.mark.parametrize("feature", OF_FEATURES)
def test_blocks_join_other_features(feature, blocks, window):
    for rows, keys in ((70, 300), (1, 300)):
        run(attention("fp32", heads=(4, 2), rows=rows, keys=keys, window=window, variant=f"{feature}+{blocks}"))


def test_captures_are_shared_by_both_snippets():
    run(attention("fp32", heads=(4, 2), rows=70, keys=300, variant="snippet+" + BOTH.format("32")))


PARTIAL = BOTH.format("16x32")


@pytest.mark.parametrize(
    ("dtype", "blocks"), few_rows(product(("bf16", "fp16"), ("blocks=64", PARTIAL)), ("bf16", PARTIAL))
)
@pytest.mark.parametrize("sizes", [(1, 300), (127, 1000)], ids=str)
def test_blocks_in_16_bits(sizes, dtype, blocks):
    rows, keys = sizes
    run(attention(dtype, heads=(4, 2), rows=rows, keys=keys, window="causal", variant=blocks))


@pytest.mark.wide
@pytest.mark.parametrize("dims", [(128,), (80,), (256,), (111,), (192, 128), (16,)], ids=str)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_every_head_dim(dtype, dims):
    for variant, rows in product(("blocks=128", BOTH.format("32")), (1, 200)):
        run(attention(dtype, *dims, heads=(4, 2), rows=rows, keys=500, window="causal", variant=variant))


def drawn_blocks(rows: int, keys: int, block: int, heads: int = 4) -> torch.Tensor:
    random = torch.Generator().manual_seed(rows + keys + block)
    return torch.rand(2, heads, -(-rows // block), -(-keys // block), generator=random) < 0.4


@pytest.mark.parametrize("splits", [0, 1, 3, 7])
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("block", [16, 64])
def test_keys_may_be_split(block, rows, splits):
    q, k, v = plain.make_rows_first(rows, 1000)
    listed = drawn_blocks(rows, 1000, block)
    out = xeflash.flash_attn_func(q, k, v, block_mask=listed, block_size=block, num_splits=splits)
    f = Features(blocks=Blocks(listed.numpy(), listed.numpy(), block, block))
    plain.check_rows_first(f"{splits} splits", (q, k, v), out, f=f)


def test_a_row_without_blocks_gets_zeros():
    q, k, v = plain.make(200, 300)
    listed = torch.ones(1, 1, 4, 5, dtype=torch.bool)
    listed[:, :, 1] = False
    more = {"block_mask": listed, "block_size": 64}
    out, lse = plain.call(q, k, v, **more)
    assert not out[:, :, 64:128].any() and (lse[:, :, 64:128] == -torch.inf).all()
    assert out[:, :, :64].all() and lse[:, :, 128:].isfinite().all()
    out, lse, _ = xeflash.flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), **more, return_attn_probs=True)
    assert not out[:, 64:128].any() and (lse[:, :, 64:128] == torch.inf).all()
    sinks = torch.tensor([0.5, 1.0, -2.0, 3.0])
    out, lse = plain.call(q, k, v, **more, sinks=sinks)
    assert not out[:, :, 64:128].any() and torch.equal(lse[0, :, 100], sinks)


# ---- what is left out is not read ---------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 512])
@pytest.mark.parametrize("of", ["bools", "mask_mod"])
def test_nobody_reads_keys_of_blocks_that_no_row_sees(of, rows):
    """They are NaN, and a product with NaN is NaN."""
    q, k, v = plain.make(rows, 2048)
    for x in (k, v):
        x[:, :, 256:1024] = torch.nan
    listed = torch.ones(1, 1, -(-rows // 256), 8, dtype=torch.bool)
    listed[..., 1:4] = False
    said: dict[str, Any] = {"block_mask": listed, "block_size": 256}
    if of == "mask_mod":
        kind = torch.ones(64).int()  # of 32 keys each
        kind[8:32] = 0
        reach = torch.full((4,), 2048).int()
        said = {"mask_mod": MASK_MOD, "captures": {"reach": reach, "kind": kind, "period": 64}}
        q, k, v = (x[:1] for x in (q, k, v))
    out = plain.call(q, k, v, **said)[0]
    seen = torch.cat([torch.arange(256), torch.arange(1024, 2048)])
    plain_out = plain.call(q, *(x[:, :, seen].contiguous() for x in (k, v)))[0]
    torch.testing.assert_close(out, plain_out, rtol=1e-5, atol=1e-6)


def test_gradients_read_no_rows_that_see_nothing_of_a_block():
    q, k, v = plain.make(1024, 512)
    dout = torch.randn(q.shape)
    dout[:, :, 256:512] = torch.nan
    listed = torch.ones(1, 1, 4, 2, dtype=torch.bool)
    listed[..., 1, :] = False
    arrays = [x.requires_grad_() for x in (q, k, v)]
    out = xeflash.attention(*arrays, enable_gqa=True, block_mask=listed, block_size=256)
    _, dk, dv = torch.autograd.grad(out, arrays, dout)
    assert dk.isfinite().all() and dv.isfinite().all()


# ---- gradients ------------------------------------------------------------------------------------

OF_GRADIENTS = [
    *(gradient(rows=200, keys=300, heads=(4, 2), variant=f"blocks={block}") for block in BLOCKS),
    *(gradient(rows=300, keys=200, heads=(4, 2), variant=BOTH.format(block)) for block in BLOCKS),
    gradient(rows=1, keys=300, dlse=True, variant="blocks=64"),
    gradient(rows=1, keys=300, variant=BOTH.format("16")),
    gradient(rows=23, keys=127, sinks=True, dlse=True, variant=BOTH.format("32x16")),
    gradient(rows=127, keys=1000, heads=(8, 2), window="causal", variant="blocks=64.1h"),
    gradient(rows=1000, keys=127, window="31,5", variant=BOTH.format("128x16")),
    gradient(rows=300, keys=300, window="causal-tl", variant="blocks=32.b1"),
    gradient(rows=127, keys=300, entry="func", variant="blocks=128.none"),
    gradient(rows=127, keys=300, variant="blocks=128.all.11"),
    gradient("bf16", rows=200, keys=300, heads=(4, 2), variant=BOTH.format("32")),
    pytest.param(
        gradient("bf16", rows=300, keys=300, heads=(8, 2), window="causal", variant="blocks=64"), marks=pytest.mark.wide
    ),
    # the keys' gradients are written all the same
    pytest.param(gradient(rows=0, keys=127, variant="blocks=64"), marks=pytest.mark.wide),
    *(
        pytest.param(gradient(rows=127, keys=300, window=window, variant=f"{more}+{blocks}"), marks=pytest.mark.wide)
        for more in ("softcap+alibi+bias", "dropout", "mask", "curve", "slope", "bias32+dropout", "softcap+slope")
        for blocks, window in (("blocks=32x64", "causal"), (BOTH.format("64"), "full"))
    ),
    *(
        pytest.param(gradient(dtype, *dims, rows=127, keys=300, variant=variant), marks=pytest.mark.wide)
        for dtype in ("fp16", "bf16", "fp32")
        for dims in ((128,), (80,), (256,), (192, 128))
        for variant in ("blocks=64", BOTH.format("16x128"))
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", OF_GRADIENTS, ids=lambda case: case.id)
def test_gradients_match_reference(case):
    run(case)


# ---- the same in other words ----------------------------------------------------------------------


def results(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **more: Any) -> list[torch.Tensor]:
    """Out, LSE and all gradients."""
    arrays = [x.detach().requires_grad_() for x in (q, k, v)]
    out, lse = plain.call(*arrays, **more)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    found = torch.autograd.grad([out, lse], arrays, [dout, torch.ones_like(lse)])
    return [x.detach().cpu() for x in (out, lse, *found)]


def causal_blocks(rows: int, keys: int, block: int) -> tuple[torch.Tensor, ...]:
    """FA4's four arrays of a causal mask whose diagonal begins at the top left."""
    first, last = torch.arange(0, rows, block)[:, None], torch.arange(0, keys, block)
    listed = last <= (first + block).clamp(max=rows) - 1
    full = (last + block).clamp(max=keys) - 1 <= first
    lists = []
    for marked in (listed & ~full, full):
        lists += [marked.sum(-1), (~marked).int().argsort(dim=-1, stable=True)]
    return tuple(x.int()[None, None] for x in lists)


def as_blocks(rows: int, keys: int, block: int) -> dict[str, Any]:
    """In the words of a text that other tests have, too."""
    captures = {"reach": torch.zeros(4).int(), "kind": torch.ones(PERIOD).int(), "period": PERIOD}
    lists = causal_blocks(rows, keys, block)
    return {"block_mask": lists, "block_size": block, "mask_mod": MASK_MOD, "captures": captures}


CAUSAL_SIZES = [(300, 300, 64), (256, 256, 128), (127, 300, 16), (300, 127, 32), (1000, 1000, 256), (1, 300, 64)]


@pytest.mark.parametrize("sizes", CAUSAL_SIZES, ids=str)
def test_a_causal_mask_may_be_said_as_blocks(sizes):
    rows, keys, block = sizes
    q, k, v = plain.make(rows, keys)
    want = results(q, k, v, is_causal=True)
    for got, one in zip(results(q, k, v, **as_blocks(*sizes)), want, strict=True):
        torch.testing.assert_close(got, one, rtol=1e-5, atol=2e-6)
    listed = torch.ones(1, 1, -(-rows // block), -(-keys // block), dtype=torch.bool)
    full = results(q, k, v, is_causal=True, block_mask=listed, block_size=block)
    for got, one in zip(full, want, strict=True):
        torch.testing.assert_close(got, one, rtol=1e-5, atol=2e-6)


# ---- on GPUs ------------------------------------------------------------------------------------

GPU_TESTS = ("forward_on_gpu", "gradients_on_gpu", "not_multiplied_on_gpu")
ON_GPU = [
    attention("bf16", rows=300, keys=300, heads=(4, 2), window="causal", variant="blocks=64"),
    attention("bf16", rows=127, keys=1000, heads=(4, 2), variant="blocks=16x32"),
    attention("bf16", rows=1, keys=1000, heads=(4, 2), variant="blocks=64"),
    attention("bf16", rows=200, keys=300, heads=(4, 2), variant=BOTH.format("32")),
    attention("bf16", rows=1, keys=300, heads=(4, 2), variant=BOTH.format("16")),
]
WIDE_ON_GPU = [
    attention("bf16", rows=7, keys=1000, heads=(4, 2), variant="blocks=128.11"),  # threads take turns at the keys
    *(
        attention(dtype, dim, rows=rows, keys=500, heads=(4, 2), window=window, variant=variant)
        for dtype, dim in (("bf16", 128), ("fp16", 64), ("fp32", 64), ("fp16", 80), ("bf16", 256))
        for rows in (1, 200)
        for window, variant in (("causal", "blocks=64"), ("full", BOTH.format("16x128")))
    ),
    *(
        attention("bf16", rows=200, keys=300, window="causal", variant=f"{more}+{BOTH.format('64')}")
        for more in ("softcap+alibi", "bias", "dropout", "snippet", "mask")
    ),
]


def with_kind(cases: list[Any], kind: str, *marks: Any) -> list[Any]:
    return [pytest.param(replace(case, kind=kind), marks=marks) for case in cases]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case", with_kind(ON_GPU, "gpu") + with_kind(WIDE_ON_GPU, "gpu", pytest.mark.wide), ids=lambda case: case.id
)
def test_forward_on_gpu(gpu, case):
    run(case)


GRADIENTS_ON_GPU = [
    gradient("bf16", rows=127, keys=300, heads=(8, 2), window="causal", variant="blocks=64"),
    gradient("bf16", rows=300, keys=127, variant="blocks=16x64"),
    gradient("bf16", rows=200, keys=200, heads=(4, 2), variant=BOTH.format("32")),
]
WIDE_GRADIENTS_ON_GPU = [
    gradient(dtype, dim, rows=127, keys=300, heads=(4, 2), variant=variant)
    for dtype, dim in (("bf16", 128), ("fp16", 64), ("fp32", 64))
    for variant in ("blocks=128", BOTH.format("16x32"))
] + [gradient("bf16", rows=127, keys=300, variant=f"{more}+{BOTH.format('64')}") for more in ("bias", "dropout")]


@pytest.mark.gpu
@pytest.mark.xpu
@pytest.mark.parametrize(
    "case",
    with_kind(GRADIENTS_ON_GPU, "xpu") + with_kind(WIDE_GRADIENTS_ON_GPU, "xpu", pytest.mark.wide),
    ids=lambda case: case.id,
)
def test_gradients_on_gpu(xpu, case):
    run(case)


@pytest.mark.gpu
@pytest.mark.xpu
@pytest.mark.parametrize("sizes", CAUSAL_SIZES[:4], ids=str)
def test_causal_blocks_are_causal_bit_for_bit_on_gpu(xpu, sizes):
    """Where the tiles are those of a causal call."""
    if xpu == "dg2":
        pytest.skip("DG2 has other tiles where not all masks are positions")
    q, k, v = (to_xpu(x) for x in plain.make(*sizes[:2], dtype=torch.bfloat16))
    said = as_blocks(*sizes)
    said["block_mask"] = tuple(to_xpu(x) for x in said["block_mask"])
    said |= {"mask_mod": "q_idx >= k_idx", "captures": None}  # heads that share tiles share them here, too
    for got, want in zip(results(q, k, v, **said), results(q, k, v, is_causal=True), strict=True):
        assert torch.equal(got, want)


HALF = (torch.arange(8)[:, None] + torch.arange(8)) % 2 == 0


@pytest.mark.gpu
@pytest.mark.xpu
@pytest.mark.parametrize("rows", [1024, 128])
def test_blocks_left_out_are_not_multiplied_on_gpu(xpu, rows):
    listed = HALF[: rows // 128].numpy()[None, None]
    full = np.ones_like(listed)
    products = [
        sum(
            record.dpas
            for record in launches_of_attention(rows, block_mask=to_array(torch.from_numpy(x), "gpu"), block_size=128)
        )
        for x in (full, listed)
    ]
    assert products[1] == products[0] / 2 > 0


@pytest.mark.gpu
@pytest.mark.xpu
@pytest.mark.parametrize("dtype", ["bf16"])
def test_gradients_pass_over_blocks_on_gpu(xpu, dtype):
    listed = HALF[:4, :4][None, None]
    full, half = (
        products_of_gradients(dtype, block_mask=to_xpu(x), block_size=128) for x in (torch.ones_like(listed), listed)
    )
    assert half[1] == full[1] / 2
    assert half[0] < full[0] * 0.55
