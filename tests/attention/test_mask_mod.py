"""Users' conditions of a row and a key: `mask_mod`, alone and in partial blocks, with what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import plain
import pytest
import torch
import xeflash
from arrays import from_array, is_on_gpu, to_array
from cover import few
from launches import launches_of_attention
from specs import attention, gradient, run
from tolerance import check_attention, torch_formula
from xeflash.selftest.attention.snippets import MASK_MOD, PERIOD
from xeflash.selftest.reference import Blocks, Features

ROWS, KEYS, HEADS = 300, 400, 4
MANY = 2000


@dataclass(frozen=True)
class Kind:
    """C++, what it captures, the same in numpy."""

    text: str
    form: Callable[..., Any]
    captures: dict[str, Any] = field(default_factory=dict)


IDS = torch.randint(0, 4, (MANY,), generator=torch.Generator().manual_seed(3)).sort().values.int()
PREFIX = torch.tensor([200, 30]).int()
REACH = torch.tensor([0, 3, 64, 300]).int()
SOME = torch.rand(MANY, generator=torch.Generator().manual_seed(4)) < 0.5
BIAS = torch.randn(HEADS, generator=torch.Generator().manual_seed(5))
GROUPS = torch.tensor([1, 0, 0, 2, 1, 0, 3]).int()  # of 32 keys each, in a period
WIDTH, SIDE = 25, 3  # of an image, and how far a pixel sees

KINDS = {
    "groups": Kind(
        MASK_MOD,
        lambda b, h, i, j: (j <= i + REACH.numpy()[h]) & (GROUPS.numpy()[(j // 32 + b) % PERIOD] != 0),
        {"reach": REACH, "kind": GROUPS, "period": PERIOD},
    ),
    "causal": Kind("q_idx >= k_idx", lambda b, h, i, j: i >= j),
    "sliding": Kind(
        "(q_idx >= k_idx) & (q_idx - k_idx <= width)", lambda b, h, i, j: (i >= j) & (i - j <= 70), {"width": 70}
    ),
    "prefix": Kind(
        "(k_idx <= q_idx) | (k_idx < prefix[b])",
        lambda b, h, i, j: (j <= i) | (j < PREFIX.numpy()[b]),
        {"prefix": PREFIX},
    ),
    "documents": Kind("ids[q_idx] == ids[k_idx]", lambda b, h, i, j: IDS.numpy()[i] == IDS.numpy()[j], {"ids": IDS}),
    "dilated": Kind("(q_idx >= k_idx) & ((q_idx - k_idx) % 4 == 0)", lambda b, h, i, j: (i >= j) & ((i - j) % 4 == 0)),
    "natten": Kind(
        "auto y = abs(q_idx / width - k_idx / width);\nauto x = abs(q_idx % width - k_idx % width);\n"
        "return (y <= side) & (x <= side);",
        lambda b, h, i, j: (abs(i // WIDTH - j // WIDTH) <= SIDE) & (abs(i % WIDTH - j % WIDTH) <= SIDE),
        {"width": WIDTH, "side": SIDE},
    ),
    "reach": Kind(
        "abs(q_idx - k_idx) <= reach[h]", lambda b, h, i, j: abs(i - j) <= REACH.numpy()[h], {"reach": REACH}
    ),
    "of-both": Kind(
        "(((h + b) % 2 == 0) & (q_idx >= k_idx)) | (((h + b) % 2 == 1) & (q_idx <= k_idx))",
        lambda b, h, i, j: np.where((h + b) % 2 == 0, i >= j, i <= j),
    ),
    "bools": Kind("some[k_idx] && !(q_idx == k_idx)", lambda b, h, i, j: SOME.numpy()[j] & (i != j), {"some": SOME}),
    "rows": Kind("some[q_idx]", lambda b, h, i, j: SOME.numpy()[i] | (j < 0), {"some": SOME}),
    "score": Kind("bias[h] > 0.f || k_idx < 100", lambda b, h, i, j: (BIAS.numpy()[h] > 0) | (j < 100), {"bias": BIAS}),
    "nothing": Kind("k_idx < 0", lambda b, h, i, j: j < np.minimum(i, 0)),
    "all": Kind("k_idx >= 0", lambda b, h, i, j: j >= np.minimum(i, 0)),
}
DEFAULT = ("groups",)  # others have kernels of their own


def said(name: str, kind: str = "torch") -> dict[str, Any]:
    captures = {name: to_array(x, kind) for name, x in KINDS[name].captures.items()}
    return {"mask_mod": KINDS[name].text, "captures": captures}


def check(
    name: str, rows: int, keys: int, dtype: torch.dtype = torch.float32, kind: str = "torch", **more: Any
) -> None:
    q, k, v = plain.make(rows, keys, heads=HEADS, dtype=dtype)
    arrays = [to_array(x, kind) for x in (q, k, v)]
    blocks = more.get("block_mask")
    given = more | ({} if blocks is None else {"block_mask": tuple(to_array(x, kind) for x in blocks)})
    out, lse = plain.call(*arrays, **said(name, kind), **given)
    f = Features(mask_mod=KINDS[name].form, empty_lse=-np.inf, top_left=True)
    f = f if blocks is None else f.with_(blocks=blocks_of(blocks, more["block_size"]))
    check_attention(name, q, k, v, f, from_array(out, kind), from_array(lse, kind), is_on_gpu(kind))


def lists(rows: int, keys: int, block: int, batch: int = 1, heads: int = 1) -> tuple[torch.Tensor, ...]:
    """FA4's arrays: a third of the blocks is left out, a third is partial, a third full."""
    random = torch.Generator().manual_seed(rows + keys)
    kind = torch.randint(0, 3, (batch, heads, -(-rows // block), -(-keys // block)), generator=random)
    found = []
    for marked in (kind == 1, kind == 2):
        found += [marked.sum(-1), (~marked).int().argsort(dim=-1, stable=True)]
    return tuple(x.int() for x in found)


def blocks_of(lists: tuple[torch.Tensor, ...], block: int) -> Blocks:
    some, full = (
        np.stack(
            [
                np.isin(np.arange(index.shape[-1]), row[:count])
                for count, row in zip(counts.flatten(), index.flatten(0, -2).numpy(), strict=True)
            ]
        ).reshape(index.shape)
        for counts, index in (lists[:2], lists[2:])
    )
    return Blocks(some | full, full, block, block)


SIZES = [(ROWS, KEYS), (1, 1000), (127, 127), (1000, 300)]


@pytest.mark.parametrize("name", few(KINDS, *DEFAULT))
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_conditions_match_reference(sizes, name):
    """Blocks are found before."""
    check(name, *sizes)


@pytest.mark.parametrize("name", few(KINDS, *DEFAULT))
@pytest.mark.parametrize("block", [16, 64, 128])
@pytest.mark.parametrize("sizes", SIZES[:3], ids=str)
def test_full_blocks_are_not_masked(sizes, block, name):
    batch, heads = (2, HEADS) if block == 64 else (1, 1)
    check(name, *sizes, block_mask=lists(*sizes, block, batch, heads), block_size=block)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_conditions_in_16_bits(name, dtype):
    for sizes in SIZES:
        check(name, *sizes, dtype=dtype)


@pytest.mark.parametrize("window", ["full", "causal", "31,5", "-1,10", "causal-tl"])
@pytest.mark.parametrize("sizes", [(1, 300), (127, 127), (200, 700), (700, 200)], ids=str)
def test_positions_hide_keys_too(sizes, window):
    rows, keys = sizes
    run(attention("fp32", heads=(4, 2), rows=rows, keys=keys, window=window, sinks=True, variant="mask_mod"))


OF_FEATURES = ("softcap", "alibi", "mask", "bias", "dropout", "snippet", "slope", "softcap+alibi+bias32")


@pytest.mark.wide
@pytest.mark.parametrize("feature", OF_FEATURES)
def test_conditions_join_other_features(feature):
    for rows in (1, 200):
        run(attention("fp32", heads=(4, 2), rows=rows, keys=300, window="causal", variant=f"{feature}+mask_mod"))


# ---- gradients ------------------------------------------------------------------------------------

OF_GRADIENTS = [
    gradient(rows=200, keys=300, heads=(4, 2), variant="mask_mod"),
    gradient(rows=1, keys=300, dlse=True, variant="mask_mod"),
    gradient(rows=300, keys=127, window="causal", sinks=True, variant="mask_mod"),
    gradient("bf16", rows=127, keys=300, heads=(8, 2), variant="mask_mod"),
    *(
        pytest.param(
            gradient(rows=127, keys=300, window="40,causal", variant=f"{more}+mask_mod"), marks=pytest.mark.wide
        )
        for more in ("softcap+alibi+bias", "dropout", "mask", "curve", "slope")
    ),
    pytest.param(gradient("fp16", 128, rows=127, keys=300, variant="mask_mod"), marks=pytest.mark.wide),
]


@pytest.mark.parametrize("case", OF_GRADIENTS, ids=lambda case: case.id)
def test_gradients_match_reference(case):
    run(case)


@pytest.mark.wide
@pytest.mark.parametrize("blocks", [False, True])
def test_gradients_of_captures_that_score_mod_alone_reads(blocks):
    q, k, v = plain.make(70, 130)
    table = torch.randn(HEADS, 50).requires_grad_()
    more: dict[str, Any] = {"block_mask": lists(70, 130, 32), "block_size": 32} if blocks else {}
    captures = {"table": table, "half": 0.5, "width": 40, "reach": REACH}
    text = {"score_mod": "s + table(h, k_idx % 50) * half", "mask_mod": "abs(q_idx - k_idx) <= width + reach[h]"}
    out = xeflash.attention(q, k, v, enable_gqa=True, captures=captures, **text, **more)
    dout = torch.randn(out.shape)
    found = torch.autograd.grad(out, table, dout)[0]
    leaf = table.detach().double().requires_grad_()
    f = Features(
        score_mod=lambda s, b, h, i, j: s + leaf[h, j % 50] / 2,
        mask_mod=lambda b, h, i, j: abs(i - j) <= 40 + REACH.numpy()[h],
        blocks=blocks_of(more["block_mask"], 32) if blocks else None,
    )
    want = torch_formula(q.double(), k.double(), v.double(), f).out
    check_attention("captures", q, k, v, f.with_(score_mod=of_numpy(f.score_mod)), out)
    wanted = torch.autograd.grad(want, leaf, dout.double())[0]
    assert (found - wanted).abs().max() <= 2e-5 * wanted.abs().max()


def of_numpy(change: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """The same change of arrays of numpy."""
    return lambda *given: change(*map(torch.from_numpy, given)).detach().numpy()


# ---- what the condition hides is left out -------------------------------------------------------


@pytest.mark.parametrize("hidden", ["rows", "keys"])
def test_partial_blocks_alone_are_masked(hidden):
    """mask_mod hides nothing of a block that is full."""
    q, k, v = plain.make(128, 128)
    text = said("groups")
    text["captures"] |= {"reach": REACH - 1000} if hidden == "rows" else {"kind": GROUPS * 0}
    one, none = torch.ones(1, 1, 1, dtype=torch.int32), torch.zeros(1, 1, 1, dtype=torch.int32)
    index = torch.zeros(1, 1, 1, 1, dtype=torch.int32)
    full = xeflash.attention(q, k, v, enable_gqa=True, block_mask=(none, index, one, index), block_size=128, **text)
    torch.testing.assert_close(full, xeflash.attention(q, k, v, enable_gqa=True), rtol=1e-5, atol=1e-6)
    partial = xeflash.attention(q, k, v, enable_gqa=True, block_mask=(one, index, none, index), block_size=128, **text)
    assert not partial.any()


def test_rows_of_heads_that_share_a_tile_are_masked():
    """A condition that does not read h."""
    q, k, v = plain.make(1, 300)
    listed = torch.ones(1, 1, 1, 5, dtype=torch.bool)
    out = xeflash.attention(q, k, v, enable_gqa=True, block_mask=listed, block_size=64, mask_mod="(k_idx <= q_idx)")
    torch.testing.assert_close(out, v[:, :, :1].repeat_interleave(2, 1), rtol=1e-5, atol=1e-6)


def test_bools_are_partial_blocks():
    q, k, v = plain.make(128, 128)
    text = said("groups")
    text["captures"]["kind"] = GROUPS * 0
    listed = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    out = xeflash.attention(q, k, v, enable_gqa=True, block_mask=listed, block_size=128, **text)
    assert not out.any()


@pytest.mark.wide
def test_a_condition_is_asked_for_rows_and_keys_of_the_call_only():
    """It may read arrays that have an element for each of them."""
    q, k, v = plain.make(70, 90)
    captures = {"of_q": torch.ones(70), "of_k": torch.ones(90)}
    text = "of_q[q_idx] * of_k[k_idx] > 0"
    got = xeflash.attention(q, k, v, enable_gqa=True, mask_mod=text, captures=captures)
    torch.testing.assert_close(got, xeflash.attention(q, k, v, enable_gqa=True), rtol=1e-5, atol=1e-6)


# ---- on GPUs ------------------------------------------------------------------------------------

GPU_TESTS = ("conditions_on_gpu[groups", "not_multiplied_on_gpu")


@pytest.mark.gpu
@pytest.mark.parametrize("name", KINDS)
def test_conditions_on_gpu(gpu, name):
    for sizes in ((200, 300), (1, 300)):
        check(name, *sizes, dtype=torch.bfloat16, kind="gpu")


@pytest.mark.gpu
@pytest.mark.xpu
@pytest.mark.parametrize("name", KINDS)
def test_partial_blocks_on_gpu(xpu, name):
    check(name, 200, 300, dtype=torch.bfloat16, kind="xpu", block_mask=lists(200, 300, 32), block_size=32)


@pytest.mark.gpu
@pytest.mark.xpu
@pytest.mark.parametrize("variant", ["mask_mod", "slope+mask_mod", "snippet+blocks=64.lists+mask_mod"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_gradients_on_gpu(xpu, dtype, variant):
    run(gradient(dtype, rows=127, keys=200, heads=(4, 2), window="causal", variant=variant, kind="xpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1024, 256])
@pytest.mark.parametrize("name", ["groups"])  # on the device of the conditions
def test_hidden_blocks_are_not_multiplied_on_gpu(gpu, name, rows):
    """A condition that hides every other block, and the same one of another array, where it hides nothing."""
    hidden = torch.arange(32) // 4 % 2  # of 32 keys each
    reach = to_array(torch.full((2,), 1024).int(), "gpu")
    products = []
    for shown in (hidden * 0 + 1, 1 - hidden):
        captures = {"reach": reach, "kind": to_array(shown.int(), "gpu"), "period": 32}
        records = launches_of_attention(rows, mask_mod=KINDS[name].text, captures=captures)
        products.append(sum(record.dpas for record in records))
    assert products[1] == products[0] / 2 > 0


# ---- what is refused ----------------------------------------------------------------------------


def call(**more: Any) -> Any:
    q, k, v = plain.make(128, 128)
    return xeflash.attention(q, k, v, enable_gqa=True, **more)


@pytest.mark.parametrize(
    ("text", "captures", "error", "message"),
    [
        ("s > 0", {}, ValueError, "mask_mod .*s"),
        ("", {}, ValueError, "mask_mod must not be empty"),
        ("q_idx >= k_idx; } int more() {", {}, ValueError, "mask_mod must close the brackets"),
        ("q_idx >= k_idx", {"width": 3}, ValueError, "captures.*'width'"),
        ("q_idx >= width", {"width": "text"}, TypeError, r'captures\["width"\]'),
        (
            "ids[k_idx] > 0",
            {"ids": torch.ones(3, dtype=torch.float64)},
            TypeError,
            r'captures\["ids"\] must be float32',
        ),
        (lambda b, h, q, k: q >= k, {}, TypeError, "mask_mod must be a string.*got function"),
        (3, {}, TypeError, "mask_mod must be a string.*got int"),
    ],
    ids=lambda x: "function" if callable(x) and not isinstance(x, type) else str(x),
)
def test_what_makes_no_sense_is_refused(text, captures, error, message):
    with pytest.raises(error, match=f"^attention: .*{message}"):
        call(mask_mod=text, captures=captures)


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"document_ids": torch.zeros(128, dtype=torch.int32), "bottom_right": True}, "document_ids"),
        ({"gather_kv_indices": torch.zeros(2, 128, 4, dtype=torch.int32)}, "gather_kv_indices"),
        ({"attention_chunk": 64}, "attention_chunk"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("of", ["block_mask", "mask_mod"])
def test_other_kinds_of_masks_are_refused_beside_it(of, more, name):
    blocks = {"block_mask": torch.ones(1, 1, 2, 2, dtype=torch.bool), "block_size": 64}
    with pytest.raises(NotImplementedError, match=f"^attention: .*({of}.*{name}|{name}.*{of})"):
        call(**more, **(blocks if of == "block_mask" else {"mask_mod": "q_idx >= k_idx"}))


def test_gradients_of_what_a_condition_reads_are_refused():
    q, k, v = plain.make(128, 128)
    bias = torch.ones(4, requires_grad=True)
    more = {"mask_mod": "bias[h] > 0.f", "captures": {"bias": bias}}
    with pytest.raises(NotImplementedError, match=r"^attention: captures\['bias'\].*mask_mod"):
        out = xeflash.attention(q.requires_grad_(), k, v, enable_gqa=True, **more)
        out.sum().backward()
