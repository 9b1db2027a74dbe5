"""Which memory a call may write: its own, all of it once, and no other."""

import numpy as np
import pytest
import torch
import xeflash
from arrays import to_array

B, S, H, D = 2, 5, 2, 64


def qkv(kind="torch"):
    return [to_array(torch.randn(B, S, H, D), kind) for _ in range(3)]


def packed():
    """q, k, v and room for out, between each other in one array."""
    return torch.randn(B, S, 4, H, D).unbind(2)


def test_out_may_lie_between_the_inputs():
    q, k, v, out = packed()
    want = xeflash.flash_attn_func(q, k, v)
    k_before = k.clone()
    got = xeflash.attention(*(x.transpose(1, 2) for x in (q, k, v)), out=out.transpose(1, 2))
    torch.testing.assert_close(got.transpose(1, 2), want, rtol=0, atol=0)
    assert (k == k_before).all()


@pytest.mark.parametrize("name", ["query", "key", "value", "attn_mask", "captures"])
def test_out_must_not_share_memory(name):
    q, k, v = (x.transpose(1, 2) for x in qkv())
    whole = torch.zeros(B * S * H * D + 64)
    shared = whole[64:].view(B, S, H, D).transpose(1, 2)
    arrays = {"query": q, "key": k, "value": v}
    more = {}
    if name == "attn_mask":
        more["attn_mask"] = whole[40:65].view(S, S)
    elif name == "captures":
        more |= {"score_mod": "s + near[k_idx]", "captures": {"near": whole[60:65]}}
    else:
        arrays[name] = shared
    with pytest.raises(ValueError, match=f"^attention: out must not share memory with {name}, got arrays that overlap"):
        xeflash.attention(**arrays, **more, out=shared)
    assert not whole.any()


def test_out_of_five_axes_must_not_share_memory():
    """Also if the leading axes of the other array do not merge, so that a copy of it is read."""
    whole = torch.zeros(B, 3, H, S, D)
    key, out = whole[:, :2], whole.view(-1)[: B * 2 * H * S * D].view(B, 2, H, S, D)
    other = torch.randn(key.shape)
    for q, k, v, o in ((other, key, other, out), (other.numpy(), key.numpy(), other.numpy(), out.numpy())):
        with pytest.raises(ValueError, match="^attention: out must not share memory with key, got arrays that overlap"):
            xeflash.attention(q, k, v, out=o)
    assert not whole.any()


@pytest.mark.parametrize(
    "out",
    [
        torch.zeros(1, 1, 1, D).expand(B, H, S, D),
        torch.zeros(B * S * H * D).as_strided((B, H, S, D), (S * D, D // 2, D, 1)),
    ],
    ids=["expanded", "rows that meet"],
)
def test_elements_of_out_must_lie_apart(out):
    q, k, v = (x.transpose(1, 2) for x in qkv())
    with pytest.raises(ValueError, match=r"^attention: out must not have elements in one place, got strides that meet"):
        xeflash.attention(q, k, v, out=out)
    assert not out.any()


def append(k_cache, v_cache, **more):
    q, k, v = (x[:, :1] for x in qkv())
    return xeflash.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=3, **more)


def test_new_keys_need_a_cache_of_their_own():
    cache, other = torch.zeros(2, B, 32, H, D)
    rule = "^flash_attn_with_kvcache: {} must not "
    with pytest.raises(ValueError, match=rule.format("k_cache") + "share memory with v_cache"):
        append(cache, cache)
    with pytest.raises(ValueError, match=rule.format("k_cache") + "have elements in one place"):
        append(cache[:1].expand(B, 32, H, D), other)
    with pytest.raises(ValueError, match=rule.format("v_cache") + "have elements in one place"):
        append(cache, other[:, :, :1].expand(B, 32, H, D))
    assert not cache.any() and not other.any()
    append(cache, other)
    assert cache[:, 3].all() and other[:, 3].all()


def test_keys_and_values_may_be_neighbours():
    both = torch.zeros(B, 32, H, 2, D)  # as serving engines keep them: the two rows of a head follow each other
    append(both[..., 0, :], both[..., 1, :])
    assert both[:, 3].all() and not both[:, 4:].any() and not both[:, :3].any()


def test_pools_may_be_views_of_one_whose_pages_keep_apart():
    page, pages = 16, 8
    pool = torch.zeros(
        (pages + 1) * page, H, D
    )  # page 0 of K, page 0 of V, and so on, as far as tables have even numbers
    k_pool, v_pool = (pool[at : at + pages * page].view(pages, page, H, D) for at in (0, page))
    table = torch.tensor([[2, 6], [4, 0]], dtype=torch.int32)
    append(k_pool, v_pool, block_table=table)
    written = pool.view(pages + 1, page, H, D)[:, 3].flatten(1).any(1)
    assert written.nonzero().flatten().tolist() == [2, 3, 4, 5] and not pool.view(pages + 1, page, -1)[:, 4:].any()
    rule = "^flash_attn_with_kvcache: k_cache must not share memory with v_cache"
    for near in (0, 1, page - 1):
        with pytest.raises(ValueError, match=rule):
            append(k_pool, pool[near : near + pages * page].view(pages, page, H, D), block_table=table)
    with pytest.raises(ValueError, match=rule):  # pages of other strides: some meet
        append(k_pool[::2], pool[page:].view(pages, page, H, D)[:4], block_table=table // 2)
    with pytest.raises(ValueError, match=rule):  # rows of a plain cache may be anywhere in it
        append(k_pool[:B], v_pool[:B])


@pytest.mark.parametrize("kind", ["torch", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("length", [29, 1000, 2**40, -1])
def test_an_int_length_must_fit_the_cache(request, kind, length):
    if kind == "gpu":
        request.getfixturevalue("gpu")
    q, k, v = (to_array(torch.randn(B, 4, H, D), kind) for _ in range(3))
    cache = [to_array(torch.zeros(B, 32, H, D), kind) for _ in range(2)]
    with pytest.raises(ValueError, match=rf"^flash_attn_with_kvcache: cache_seqlens must .*, got {length}"):
        xeflash.flash_attn_with_kvcache(q, *cache, k, v, cache_seqlens=length)


@pytest.mark.xpu
@pytest.mark.parametrize("length", [29, 32, 2**31 - 1, -1, -(2**31)])
@pytest.mark.usefixtures("xpu")
def test_lengths_on_a_device_that_do_not_fit_write_nothing(length):
    q, k, v = (torch.randn(B, 4, H, D).to("xpu") for _ in range(3))
    caches = [torch.zeros(B, 32, H, D).to("xpu") for _ in range(2)]
    lengths = torch.tensor([length, 5], dtype=torch.int32).to("xpu")
    out = xeflash.flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=lengths)
    assert out.isfinite().all()
    for cache in caches:
        assert not cache[0].any() and cache[1, 5:9].all() and not cache[1, 9:].any()


def test_writes_raise_the_versions_of_tensors():
    q, k, v = (x.transpose(1, 2) for x in qkv())
    out = torch.empty_like(q)
    xeflash.attention(q, k, v, out=out)
    caches = torch.zeros(B, 32, H, D), torch.zeros(B, 32, H, D)
    append(*caches)
    assert [x._version for x in (out, *caches, q)] == [1, 1, 1, 0]
    x = torch.randn(B, H, S, D, requires_grad=True)
    saved = x * out
    with torch.no_grad():
        xeflash.attention(q, k, v, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.sum().backward()


def test_inference_tensors_are_written():
    with torch.inference_mode():
        q, k, v = qkv()
        caches = torch.zeros(B, 32, H, D), torch.zeros(B, 32, H, D)
        xeflash.flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=0)
        assert caches[0][:, :S].equal(k)


def test_a_longest_length_is_bounded_by_the_tokens():
    tokens, starts = np.ones((18, 2, 64), np.float32), np.array([0, 7, 18], np.int32)
    most = 2**31 - 1
    got = xeflash.flash_attn_varlen_func(tokens, tokens, tokens, starts, starts, most, most, causal=True)
    np.testing.assert_array_equal(got, xeflash.flash_attn_varlen_func(tokens, tokens, tokens, starts, starts, 11, 11))


def test_an_input_that_has_to_be_copied_shares_memory_all_the_same():
    q, k, v = (x.transpose(1, 2) for x in qkv())
    apart = torch.zeros(B, H, S, 2 * D)  # key has every second column of it, out the first half
    with pytest.raises(ValueError, match="^attention: out must not share memory with key"):
        xeflash.attention(q, apart[..., ::2], v, out=apart[..., :D])
    assert not apart.any()


@pytest.mark.parametrize("rank", [2, 3, 5])
def test_out_of_other_ranks_is_checked(rank):
    shape = {2: (S, D), 3: (H, S, D), 5: (B, 1, H, S, D)}[rank]
    q = torch.randn(shape)
    with pytest.raises(ValueError, match=r"^attention: out must have the shape \["):
        xeflash.attention(q, q, q, out=torch.zeros(*shape[:-1], D + 1))
    with pytest.raises(TypeError, match="^attention: out must be a torch tensor, .* got object"):
        xeflash.attention(q, q, q, out=object())
    with pytest.raises(TypeError, match="^attention: attn_mask must be a torch tensor, .* got str"):
        xeflash.attention(q, q, q, attn_mask="causal")
