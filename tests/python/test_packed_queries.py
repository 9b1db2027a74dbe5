"""Packed queries on caches: of `flash_attn_with_kvcache`, and of `flash_attn_varlen_func` with pages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xeflash

STARTS = torch.tensor([0, 3], dtype=torch.int32)


def packed_call(case, device="cpu"):
    """A call of packed queries on a cache, and what varlen queries on the same keys give."""
    random = torch.Generator().manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.float16
    draw = lambda *shape: torch.randn(shape, generator=random).to(device, dtype)  # noqa: E731
    q, starts, lengths = draw(9, 4, 64), torch.tensor([0, 4, 9]).int(), torch.tensor([39, 48]).int()
    k, v = draw(5, 48, 2, 64), draw(5, 48, 2, 64)
    given = {"cu_seqlens_q": starts.to(device), "max_seqlen_q": 5, "cache_seqlens": lengths.to(device)}
    rows = torch.tensor([3, 1])
    if case == "pages":
        table = torch.randperm(15, generator=random)[:6].view(2, 3)
        pools = k.reshape(15, 16, 2, 64), v.reshape(15, 16, 2, 64)
        of = [[pool[table[b]].flatten(0, 1)[: lengths[b]] for b in range(2)] for pool in pools]
        k, v = pools
        given["page_table"] = table.int().to(device)
    else:
        if case == "all":
            k, v, rows = k[:2], v[:2], torch.tensor([0, 1])
            lengths = torch.tensor([48, 48])
            del given["cache_seqlens"]
        if case == "length":
            lengths, given["cache_seqlens"] = torch.tensor([33, 33]), 33
        if case != "all":
            given["cache_batch_idx"] = rows.int().to(device)
        of = [[x[rows[b], : lengths[b]] for b in range(2)] for x in (k, v)]
    starts_k = torch.tensor([0, int(lengths[0]), int(lengths.sum())]).int().to(device)
    keys = [torch.cat(each) for each in of]
    want = xeflash.flash_attn_varlen_func(
        q, *keys, given["cu_seqlens_q"], starts_k, 5, 48, causal=True, window_size=(20, 0), return_lse=True
    )
    return (q, k, v), given | {"causal": True, "window_size": (20, 0), "return_softmax_lse": True}, want


@pytest.mark.parametrize("case", ["pages", "rows", "all", "length"])
def test_packed_queries_on_a_cache(case):
    arrays, given, want = packed_call(case)
    got = xeflash.flash_attn_with_kvcache(*arrays, **given)
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, rtol=2e-3, atol=2e-3)
    same = xeflash.flash_attn_with_kvcache(*arrays, **given, cu_seqlens_k_new=STARTS)  # of no new keys
    assert all(map(torch.equal, same, got))


@pytest.mark.gpu
@pytest.mark.xpu
def test_packed_queries_on_a_cache_of_a_gpu(xpu):
    arrays, given, want = packed_call("rows", "xpu")
    for x, y in zip(xeflash.flash_attn_with_kvcache(*arrays, **given), want, strict=True):
        torch.testing.assert_close(x.cpu(), y.cpu(), rtol=2e-3, atol=2e-3)


def test_what_packed_queries_cannot_have():
    (q, k, v), given, _ = packed_call("rows")
    call, new = xeflash.flash_attn_with_kvcache, torch.zeros(2, 1, 2, 64)
    with pytest.raises(
        NotImplementedError, match="^flash_attn_with_kvcache: k must be None with cu_seqlens_q, got Tensor"
    ):
        call(q, k, v, new, new, **given)
    with pytest.raises(NotImplementedError, match="cu_seqlens_k_new must be None, got Tensor"):
        call(q, k, v, k=new, v=new, **given, cu_seqlens_k_new=STARTS)
    with pytest.raises(NotImplementedError, match="cu_seqlens_k_new must be None, got Tensor"):
        call(q[None], k[:1], v[:1], new[:1], new[:1], cache_seqlens=3, cu_seqlens_k_new=STARTS)
    with pytest.raises(NotImplementedError, match="k_cache must have a multiple of 16 rows with cu_seqlens_q.*got 47"):
        call(q, k[:, :47], v[:, :47], **given)
    with pytest.raises(ValueError, match="max_seqlen_q must be given with cu_seqlens_q, got None"):
        call(q, k, v, cu_seqlens_q=given["cu_seqlens_q"])
    with pytest.raises(ValueError, match=rf"max_seqlen_q must be at least q.rows \({len(q)}\), got 1"):
        call(q[None], k[:1], v[:1], max_seqlen_q=1)
    with pytest.raises(TypeError, match="max_seqlen_q must be an integer, got float"):
        call(q[None], k[:1], v[:1], max_seqlen_q=9.5)
    assert torch.equal(call(q[None], k[:1], v[:1], max_seqlen_q=len(q)), call(q[None], k[:1], v[:1]))
    with pytest.raises(
        ValueError, match="^flash_attn_with_kvcache: cache_seqlens must be 0 to the sequence.s length .48., got 49"
    ):
        call(q, k, v, **given | {"cache_seqlens": 49})
    with pytest.raises(ValueError, match="^flash_attn_with_kvcache: k_cache.heads"):
        call(q, k[:, :, :1].expand(-1, -1, 3, -1), v[:, :, :1].expand(-1, -1, 3, -1), **given)


WRONG = [
    ("cache_seqlens", 2**31, ValueError, "must be 0 to the rows of the cache, got 2147483648"),
    ("cache_seqlens", np.int64(2**40), ValueError, "must be 0 to the rows of the cache, got 1099511627776"),
    ("cache_seqlens", 10**30, ValueError, "must be 0 to the rows of the cache, got 1000"),
    ("cache_seqlens", True, TypeError, r"must be an integer or an array of int32, got True \(bool\)"),
    ("cache_seqlens", 1.5, TypeError, "must be a torch tensor, .*, got float"),
    ("cache_batch_idx", 1, TypeError, "must be a torch tensor, .*, got int"),
    ("cache_batch_idx", [1, 0], TypeError, "must be a torch tensor, .*, got list"),
    ("cache_batch_idx", torch.tensor(1).int(), ValueError, r"must have shape \[sequences\], got \[\]"),
    ("cache_batch_idx", torch.zeros(3).int(), ValueError, r"must have shape \[2\], got \[3\]"),
    ("cache_batch_idx", torch.zeros(2).long(), TypeError, "must be int32, got int64"),
    ("cache_batch_idx", torch.tensor([0, 5]).int(), ValueError, "must be 0 to 4, got 5"),
    ("cu_seqlens_q", STARTS[0], ValueError, r"must have shape \[sequences \+ 1\], got \[\]"),
    ("cu_seqlens_q", STARTS[:0], ValueError, r"must have shape \[sequences \+ 1\], got \[0\]"),
    ("block_table", STARTS, ValueError, r"must have shape \[sequences, pages of a sequence\], got \[2\]"),
    ("k_cache", torch.zeros(5, 48, 64), ValueError, r"must have shape \[.*rows.*\], got \[5, 48, 64\]"),
    ("q", [1], TypeError, "must be a torch tensor, .*, got list"),
    ("return_softmax_lse", "yes", TypeError, r"must be True or False, got 'yes' \(str\)"),
    ("rotary_interleaved", 2, TypeError, r"must be True or False, got 2 \(int\)"),
]


@pytest.mark.parametrize(("name", "value", "error", "text"), WRONG, ids=[f"{x[0]}-{i}" for i, x in enumerate(WRONG)])
def test_what_is_wrong_is_refused_by_its_name(name, value, error, text):
    (q, k, v), given, _ = packed_call("rows")
    given |= {"q": q, "k_cache": k, "v_cache": v}
    if name == "block_table":
        del given["cache_batch_idx"]
    with pytest.raises(error, match=f"^flash_attn_with_kvcache: {name} {text}"):
        xeflash.flash_attn_with_kvcache(**given | {name: value})


def test_a_cache_has_a_sequence_for_all_queries():
    (q, k, v), given, _ = packed_call("all")
    with pytest.raises(ValueError, match="k_cache.batch must be at least that of cu_seqlens_q, 2, got 1"):
        xeflash.flash_attn_with_kvcache(q, k[:1], v[:1], **given)


def test_pages_run_with_tensors_that_require_grad():
    (q, k, v), given, (want, _) = packed_call("pages")
    tensors = [x.requires_grad_() for x in (q, k, v)]
    names = {"block_table": given["page_table"], "seqused_k": given["cache_seqlens"], "max_seqlen_k": 48}
    keep = {name: given[name] for name in ("cu_seqlens_q", "max_seqlen_q", "causal", "window_size")}
    out = xeflash.flash_attn_varlen_func(*tensors, **keep, **names)
    torch.testing.assert_close(out, want, rtol=2e-3, atol=2e-3)
    with pytest.raises(
        NotImplementedError, match="flash_attn_varlen_func: there must be no gradients with block_table"
    ):
        out.sum().backward()
    with pytest.raises(TypeError, match="cu_seqlens_k"):
        xeflash.flash_attn_varlen_func(*tensors, **keep, max_seqlen_k=48)


def test_a_cache_that_is_full_is_an_error_of_both_kinds():
    (q, k, v), given, _ = packed_call("pages")
    for kind in (ValueError, RuntimeError):
        with pytest.raises(kind, match="block_table must have pages of 16 rows for all of cache_seqlens"):
            xeflash.flash_attn_with_kvcache(
                q[None, :1].expand(2, -1, -1, -1), k, v, cache_seqlens=49, block_table=given["page_table"]
            )
