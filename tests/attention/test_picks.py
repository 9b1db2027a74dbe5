"""Sparse attention: `gather_kv_indices`, by rows that are gathered and by a Mask of bits."""

from __future__ import annotations

from typing import Any

import plain
import pytest
import torch
import xeflash
from arrays import DTYPES, to_xpu
from cover import few, few_rows
from launches import launched_by
from tolerance import check_attention, torch_formula
from xeflash.selftest.reference import Features

FULL, CAUSAL, WINDOW = (-1, -1), (-1, 0), (40, 9)


def picked(rows: int, keys: int, listed: int, kind: str = "any", batch: int = 2) -> torch.Tensor:
    """Lists (B, Sq, n): any keys, some of them none; or those of the same blocks for neighbours."""
    random = torch.Generator().manual_seed(rows + keys)
    if kind == "blocks":
        first = torch.arange(rows) // 64 * 97 % max(1, keys - listed)
        return (first[None, :, None] + torch.arange(listed)).expand(batch, -1, -1).int().contiguous()
    lists = torch.rand(batch, rows, keys, generator=random).argsort(-1)[..., :listed].int()
    return torch.where(torch.rand(lists.shape, generator=random) < 0.2, -1, lists)


def seen(lists: torch.Tensor, keys: int) -> torch.Tensor:
    """The same as a mask (B, 1, Sq, Sk)."""
    mask = torch.zeros(*lists.shape[:2], keys + 1, dtype=torch.bool)
    return mask.scatter_(-1, torch.where(lists < 0, keys, lists).long(), True)[:, None, :, :keys]


def check(
    dtype: str, sizes: tuple[int, int], listed: int, window: tuple[int, int], device: str = "cpu", kind: str = "any",
    heads: tuple[int, int] = (4, 2), **more: Any,
) -> None:  # fmt: skip
    q, k, v = plain.make(*sizes, heads=heads[0], heads_k=heads[1], dtype=DTYPES[dtype])
    lists = picked(*sizes, listed, kind)
    arrays = [x.to(device) if device == "cpu" else to_xpu(x) for x in (q, k, v, lists)]
    out, lse = plain.call(
        *arrays[:3], gather_kv_indices=arrays[3], window_size=window, bottom_right=True,
        **{name: x if device == "cpu" or not isinstance(x, torch.Tensor) else to_xpu(x) for name, x in more.items()},
    )  # fmt: skip
    f = Features(
        window=window, mask=seen(lists, sizes[1]), softcap=more.get("softcap", 0.0), empty_lse=-torch.inf,
        sinks=more.get("sinks"), alibi=more.get("alibi_slopes"),
    )  # fmt: skip
    check_attention(f"{dtype} {sizes} {listed} {window}", q, k, v, f, out.cpu(), lse.cpu(), device != "cpu")


SIZES = [(1, 1), (1, 300), (5, 300), (23, 127), (127, 127), (127, 1000), (300, 100)]


@pytest.mark.parametrize("kind", ["any", "blocks"])
@pytest.mark.parametrize("window", [FULL, CAUSAL, WINDOW], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_forward_matches_reference(sizes, window, kind):
    check("fp32", sizes, min(sizes[1], 30), window, kind=kind)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("sizes", [(1, 300), (127, 1000)], ids=str)
def test_forward_in_16_bits(sizes, dtype):
    check(dtype, sizes, 60, CAUSAL)


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"sinks": torch.tensor([0.5, -1.0, 2.0, 3.0])}, id="sinks"),
        pytest.param(  # counts on positions
            {"softcap": 2.0, "alibi_slopes": torch.tensor([0.5, 0.1, 0.2, 0.0])}, id="scores", marks=pytest.mark.wide
        ),
    ],
)
@pytest.mark.parametrize("rows", few([1, 3, 70], 70))
def test_other_features(rows, more):
    check("fp32", (rows, 300), 50, CAUSAL, **more)


@pytest.mark.parametrize("call", ["flash", "transposed", "three"])
def test_layouts(call):
    q, k, v = plain.make(3, 200)
    lists = picked(3, 200, 40)
    want, lse = plain.call(q, k, v, attn_mask=seen(lists, 200))
    if call == "flash":
        arrays = [x.transpose(1, 2) for x in (q, k, v)]
        out, got, _ = xeflash.flash_attn_func(*arrays, gather_kv_indices=lists, return_attn_probs=True)
        out = out.transpose(1, 2)
    elif call == "transposed":  # rows of a sequence that lie beside those of another
        arrays = [x.transpose(0, 2).contiguous().transpose(0, 2) for x in (q, k, v)]
        out, got = plain.call(*arrays, gather_kv_indices=lists)
    else:
        out, got = (
            torch.stack([plain.call(*(x[b] for x in (q, k, v)), gather_kv_indices=lists[b])[i] for b in range(2)])
            for i in range(2)
        )
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(got, lse)


@pytest.mark.parametrize("side", [2**31 - 2, 2**31 - 1, 2**31, 2**32, 2**40, 2**62])
@pytest.mark.parametrize("grad", [False, True])
def test_windows_may_be_wider_than_int32(grad, side):
    q, k, v = plain.make(2, 50)
    lists = picked(2, 50, 20)
    want, _ = plain.call(q, k, v, gather_kv_indices=lists)
    q.requires_grad_(grad)
    for window in ((-1, side), (side, -1), (side, side)):
        torch.testing.assert_close(plain.call(q, k, v, gather_kv_indices=lists, window_size=window)[0], want)
        flash = [x.transpose(1, 2) for x in (q, k, v)]
        out = xeflash.flash_attn_func(*flash, gather_kv_indices=lists, window_size=window)
        torch.testing.assert_close(out.transpose(1, 2), want)


def test_captures_need_a_snippet():
    q, k, v = (x.transpose(1, 2) for x in plain.make(2, 50))
    with pytest.raises((TypeError, ValueError), match="^flash_attn_func: captures "):
        xeflash.flash_attn_func(q, k, v, gather_kv_indices=picked(2, 50, 20), captures={"near": 1.0})


def test_rows_that_pick_nothing_give_0():
    q, k, v = plain.make(2, 50)
    lists = torch.full((2, 2, 7), -1).int()
    for arrays in ((q, k, v), (q.clone().requires_grad_(), k, v)):
        out, lse = plain.call(*arrays, gather_kv_indices=lists)
        assert (out == 0).all() and (lse == -torch.inf).all()


@pytest.mark.parametrize("dtype", few(["fp32", "bf16"], "fp32"))
@pytest.mark.parametrize(("rows", "keys"), few_rows([(1, 127), (23, 127), (127, 300)], (23, 127), (127, 300)))
def test_gradients_are_those_of_a_mask(rows, keys, dtype):
    lists = picked(rows, keys, 40)
    dout = torch.randn(2, 4, rows, 64).to(DTYPES[dtype])
    results = []
    for more in ({"gather_kv_indices": lists}, {"attn_mask": seen(lists, keys)}):
        torch.manual_seed(0)
        tensors = [x.requires_grad_() for x in plain.make(rows, keys, dtype=DTYPES[dtype])]
        out = xeflash.attention(*tensors, enable_gqa=True, is_causal=True, bottom_right=True, **more)
        results.append((out, *torch.autograd.grad(out, tensors, dout)))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


# ---- on GPUs ------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.xpu
@pytest.mark.parametrize(
    ("sizes", "kind", "heads"),
    [((300, 1000), "blocks", (4, 2)), ((127, 300), "any", (4, 2)), ((2, 300), "any", (16, 1))],
    ids=str,
)
def test_forward_on_gpu(xpu, sizes, kind, heads):
    check("bf16", sizes, 60, CAUSAL, "xpu", kind, heads)


@pytest.mark.gpu
@pytest.mark.xpu
def test_gradients_on_gpu(xpu):
    """They are as near to those in fp32 as torch's in bf16 are, whose scores and softmax are in fp32."""
    lists = picked(127, 300, 60, "blocks")
    arrays, dout = plain.make(127, 300, dtype=torch.bfloat16), torch.randn(2, 4, 127, 64).bfloat16()

    def by_lists(q: Any, k: Any, v: Any) -> torch.Tensor:
        return xeflash.attention(q, k, v, enable_gqa=True, gather_kv_indices=lists.to(q.device))

    def torch_masked(q: Any, k: Any, v: Any) -> torch.Tensor:
        k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        scores = (q.float() @ k.float().mT / 8).masked_fill(~seen(lists, 300), -torch.inf)
        return scores.softmax(-1).to(q.dtype) @ v

    def results(attend: Any, change: Any) -> list[torch.Tensor]:
        tensors = [change(x).requires_grad_() for x in arrays]
        out = attend(*tensors)
        return [x.float().cpu() for x in (out, *torch.autograd.grad(out, tensors, change(dout)))]

    exact, by_torch = results(torch_masked, torch.Tensor.float), results(torch_masked, torch.clone)
    for got, other, want in zip(results(by_lists, to_xpu), by_torch, exact, strict=True):
        assert (got - want).abs().max() <= 1.5 * (other - want).abs().max()


@pytest.mark.gpu
@pytest.mark.xpu
def test_blocks_that_nobody_picks_are_not_multiplied_on_gpu(xpu):
    def products(lists: torch.Tensor) -> int:
        q, k, v, lists = (to_xpu(x) for x in (*plain.make(512, 1024, 1, 2, 2, dtype=torch.bfloat16), lists))
        records = launched_by(lambda: plain.call(q, k, v, gather_kv_indices=lists)[0].cpu())
        return sum(record.dpas for record in records)

    all_keys = torch.arange(1024).expand(1, 512, -1).int().contiguous()
    some = (torch.arange(512) // 128 * 256)[None, :, None] + torch.arange(64)  # of one, or two, of 64 spans of keys
    assert products(some.int()) <= products(all_keys) / 8


@pytest.mark.gpu
@pytest.mark.xpu
@pytest.mark.parametrize("heads", [(16, 1)], ids=str)  # on the device that gathers for them above (dealing.py)
def test_few_queries_read_their_lists_alone_on_gpu(xpu, heads):
    def read(listed: int) -> int:
        lists = picked(1, 500, listed, batch=1).clamp(min=0)[..., :listed]
        q, k, v = (to_xpu(x) for x in plain.make(1, 500, 1, *heads, dtype=torch.bfloat16))
        records = launched_by(
            lambda: plain.call(q, k, v, gather_kv_indices=to_xpu(lists.unique()[None, None].int()))[0].cpu()
        )
        return sum(record.global_read for record in records if "flash_decode" in record.kernel)

    assert 0 < read(25) < read(500) / 8


@pytest.mark.parametrize("rows", [3, 40])
def test_without_keys_nothing_is_seen(rows):
    q, k, v = plain.make(rows, 0)
    lists = torch.full((2, rows, 5), -1, dtype=torch.int32)
    out, lse = plain.call(q, k, v, gather_kv_indices=lists)
    assert (out == 0).all() and (lse == -torch.inf).all()


def test_rows_need_not_be_contiguous():
    q, k, v = plain.make(2, 50)
    lists = picked(2, 50, 9)
    strided = (x.transpose(2, 3).contiguous().transpose(2, 3) for x in (k, v))
    for got, want in zip(
        plain.call(q, *strided, gather_kv_indices=lists), plain.call(q, k, v, gather_kv_indices=lists), strict=True
    ):
        torch.testing.assert_close(got, want)


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lists", "error", "text"),
    [
        (torch.zeros(2, 3, 4), TypeError, "gather_kv_indices must be int32, got torch.float32"),
        (torch.zeros(2, 4, 4).int(), ValueError, r"must have shape \[2, 3, keys of a query\], got \[2, 4, 4\]"),
        (torch.full((2, 3, 1), 50).int(), ValueError, "must be below the 50 keys, got 50"),
        (torch.full((2, 3, 2), 7).int(), ValueError, "must name each key of a query once, got 7 twice"),
        ([[1]], TypeError, "gather_kv_indices must be a torch tensor, got list"),
    ],
)
def test_what_makes_no_sense_is_refused(lists, error, text):
    with pytest.raises(error, match=f"attention: .*{text}"):
        xeflash.attention(*plain.make(3, 50), enable_gqa=True, gather_kv_indices=lists)


@pytest.mark.parametrize("rows", [3, 40], ids=["gathered", "by-bits"])
@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"k": lambda k: k[:1]}, ValueError, r"k.batch must equal q.batch \(2\), got 1"),
        (
            {"k": lambda k: torch.cat([k, k]), "v": lambda v: torch.cat([v, v])},
            ValueError,
            "k.batch must equal q.batch",
        ),
        ({"k": lambda k: k.half()}, TypeError, "k must have the dtype of q"),
        ({"k": lambda k: k[..., :8]}, ValueError, "k.head_dim must equal q.head_dim"),
        ({"v": lambda v: v[:, 1:]}, ValueError, "v.length must equal k.length"),
        ({"v": lambda v: v[0]}, ValueError, "v must have the 4 dimensions of q, got 3"),
        ({"k": lambda k: k.tolist()}, TypeError, "k must be a torch tensor with gather_kv_indices, got list"),
        ({"s_aux": lambda _: torch.zeros(3)}, ValueError, r"s_aux must have shape \[4\], got \[3\]"),
        ({"causal": lambda _: "yes"}, TypeError, "causal must be True or False, got 'yes'"),
    ],
)
def test_other_arguments_are_as_strict_with_lists(rows, wrong, error, text):
    q, k, v = (x.transpose(1, 2) for x in plain.make(rows, 50))
    given = {"q": q, "k": k, "v": v, "causal": True, "s_aux": torch.zeros(4)}
    given |= {name: change(given[name]) for name, change in wrong.items()}
    with pytest.raises(error, match=f"flash_attn_func: {text}"):
        xeflash.flash_attn_func(**given, gather_kv_indices=picked(rows, 50, 5))


@pytest.mark.parametrize("rows", [3, 40], ids=["gathered", "by-bits"])
@pytest.mark.parametrize(
    "wrong",
    [
        {"enable_gqa": 1}, {"bottom_right": None}, {"return_lse": "yes"}, {"dropout_p": False}, {"attention_chunk": 0.0},
        {"document_ids": 0}, {"alibi_slopes": 0}, {"attn_mask": False}, {"out": 0}, {"score_mod": 0},
    ],
    ids=str,
)  # fmt: skip
def test_zero_is_not_off_where_an_array_is_wanted(rows, wrong):
    given = {"enable_gqa": True, "gather_kv_indices": picked(rows, 50, 5)} | wrong
    with pytest.raises(TypeError, match=f"attention: {next(iter(wrong))} must be "):
        xeflash.attention(*plain.make(rows, 50), **given)


@pytest.mark.parametrize("shape", [(3, 2, 4, 5), (6, 4, 5), (1, 2, 3, 4, 5), (4, 5), (2, 3, 5, 5), (5,)], ids=str)
def test_lists_have_the_leading_dimensions_of_queries(shape):
    q, k, v = torch.randn(2, 3, 2, 4, 64), *torch.randn(2, 2, 3, 2, 50, 64)
    with pytest.raises(ValueError, match=r"gather_kv_indices must have shape \[2, 3, 4, keys of a query\], got \["):
        xeflash.attention(q, k, v, gather_kv_indices=torch.zeros(shape, dtype=torch.int32))
    lists = torch.zeros(2, 3, 4, 0, dtype=torch.int32)
    assert (xeflash.attention(q, k, v, gather_kv_indices=lists) == 0).all()
    assert xeflash.attention(q[..., :0, :], k, v, gather_kv_indices=lists[:, :, :0]).shape == (2, 3, 2, 0, 64)


def test_lists_are_dense():
    nested = torch.nested.nested_tensor([torch.zeros(3, 4)] * 2, dtype=torch.int32, layout=torch.jagged)
    for lists in (torch.zeros(2, 3, 4).int().to_sparse(), nested):
        with pytest.raises(TypeError, match="attention: gather_kv_indices must be a dense tensor, got "):
            xeflash.attention(*plain.make(3, 50), enable_gqa=True, gather_kv_indices=lists)


@pytest.mark.wide
@pytest.mark.parametrize("rows", [3, 40])
def test_autocast_is_as_without_lists(rows):
    q, k, v = plain.make(rows, 50)
    lists = picked(rows, 50, 5)
    with torch.autocast("cpu", torch.bfloat16):
        by_lists = xeflash.attention(q, k, v, enable_gqa=True, gather_kv_indices=lists)
        by_mask = xeflash.attention(q, k, v, seen(lists, 50), enable_gqa=True)
    assert by_lists.dtype is torch.bfloat16
    torch.testing.assert_close(by_lists, by_mask)


def test_heads_are_grouped_if_that_is_allowed():
    with pytest.raises(ValueError, match="attention: key.heads"):
        xeflash.attention(*plain.make(3, 50), gather_kv_indices=picked(3, 50, 5))


def test_sinks_alone_are_learned():
    q, k, v = plain.make(2, 50)
    sinks, lists = torch.zeros(4, requires_grad=True), picked(2, 50, 5)
    by_lists = xeflash.attention(q, k, v, enable_gqa=True, gather_kv_indices=lists, sinks=sinks)
    by_mask = torch_formula(q, k, v, Features(mask=seen(lists, 50), sinks=sinks)).out
    got, want = (torch.autograd.grad(out.sum(), sinks)[0] for out in (by_lists, by_mask))
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("more", [{"attention_chunk": 9}, {"document_ids": torch.zeros(50).int()}], ids=str)
def test_other_masks_are_refused(more):
    with pytest.raises(NotImplementedError, match="gather_kv_indices must be None with "):
        xeflash.attention(
            *plain.make(3, 50), enable_gqa=True, bottom_right=True, gather_kv_indices=picked(3, 50, 5), **more
        )
