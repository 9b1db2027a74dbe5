"""Keywords of flash-attn 3 and 4: those with a meaning here, those that change no result, those that are refused."""

import numpy as np
import pytest
import torch
import xeflash

GPU_TESTS = ()  # what they change is the same for each device; those with GPUs are in the wide set
FUNCTIONS = [
    "flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_kvpacked_func", "flash_attn_varlen_func",
    "flash_attn_varlen_qkvpacked_func", "flash_attn_varlen_kvpacked_func", "flash_attn_with_kvcache",
]  # fmt: skip
STARTS = torch.tensor([0, 20, 50], dtype=torch.int32)


def arguments(name, dtype=torch.float32):
    """By position."""
    tokens, packing = ((50,), (STARTS, STARTS, 30, 30)) if "varlen" in name else ((2, 25), ())
    if "qkvpacked" in name:
        return torch.randn(*tokens, 3, 4, 64, dtype=dtype), *packing[::2]
    q = torch.randn(*tokens, 4, 64, dtype=dtype)
    if "kvpacked" in name:
        return q, torch.randn(*tokens, 2, 2, 64, dtype=dtype), *packing
    return q, *torch.randn(2, *tokens, 2, 64, dtype=dtype), *packing


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_changes_no_result(name):
    function, given = getattr(xeflash, name), arguments(name)
    want = function(*given)
    for keywords in (
        {"pack_gqa": None, "sm_margin": 0, "attention_chunk": 0, "qv": None, "q_descale": None, "learnable_sink": None},
        {"pack_gqa": True, "window_size": (None, None), "softcap": None, "min_seqlen_k": 3},
        {"mask_mod": None, "aux_tensors": None, "page_table": None, "k_descale": None, "v_descale": None},
    ):
        assert torch.equal(function(*given, **keywords), want)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_names(name):
    function, given = getattr(xeflash, name), arguments(name)
    sink = torch.tensor([0.5, -1.0, 2.0, 3.0])
    want = function(*given, s_aux=sink, causal=True, window_size=(5, -1), softcap=0.0)
    assert torch.equal(function(*given, learnable_sink=sink, causal=True, window_size=(5, None), softcap=None), want)
    if name != "flash_attn_with_kvcache":
        _, lse, _ = function(*given, s_aux=sink, return_attn_probs=True)
        got = function(*given, learnable_sink=sink, return_lse=True)
        assert len(got) == 2 and torch.equal(got[1], lse)
        assert torch.equal(function(*given, return_lse=False), function(*given))
        with pytest.raises(ValueError, match=f"{name}: return_lse must be False with return_attn_probs, got True"):
            function(*given, return_lse=True, return_attn_probs=True)
    with pytest.raises(ValueError, match=f"{name}: learnable_sink must be None if s_aux, which it is, is given"):
        function(*given, learnable_sink=sink, s_aux=sink)


REFUSED = {
    "attention_chunk": 64,
    "sm_margin": 8,
    "qv": torch.zeros(1),
    "q_descale": torch.ones(2, 2),
    "mask_mod": len,
    "block_sparse_tensors": (1,),
    "scheduler_metadata": torch.zeros(1),
    "seqused_q": STARTS,
    "rotary_seqlens": STARTS,
    "gather_kv_indices": STARTS,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_refused_by_name(name):
    function, given = getattr(xeflash, name), arguments(name)
    for keyword, value in REFUSED.items():
        got = value if isinstance(value, int) else type(value).__name__
        with pytest.raises(NotImplementedError, match=f"{name}: {keyword} must be None, got {got}: "):
            function(*given, **{keyword: value})
    with pytest.raises(TypeError, match=f"{name}: pack_gqa must be a number, or None, got str"):
        function(*given, pack_gqa="yes")
    with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected keyword argument 'dropout'"):
        function(*given, dropout=0.1)


def test_what_needs_a_cache_is_refused_without_one():
    q, k, v = arguments("flash_attn_func")
    for keyword in ("page_table", "k_descale", "v_descale"):
        with pytest.raises(NotImplementedError, match=f"{keyword} must be None, got Tensor: there is no cache"):
            xeflash.flash_attn_func(q, k, v, **{keyword: STARTS})
    with pytest.raises(NotImplementedError, match="k_scale must be None without block_table, got 0.5"):
        xeflash.flash_attn_varlen_func(*arguments("flash_attn_varlen_func"), k_descale=0.5)
    with pytest.raises(NotImplementedError, match="cu_seqlens_q must be None, got Tensor: flash_attn_varlen_func with"):
        xeflash.flash_attn_with_kvcache(q, k, v, cu_seqlens_q=STARTS)


def test_splits_change_nothing_but_rounding():
    q, k, v = torch.randn(2, 1, 4, 64), torch.randn(2, 300, 2, 64), torch.randn(2, 300, 2, 64)
    want = xeflash.flash_attn_func(q, k, v)
    for splits in (1, 3):
        torch.testing.assert_close(xeflash.flash_attn_func(q, k, v, num_splits=splits), want)
    starts, starts_k = torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([0, 300, 600], dtype=torch.int32)
    packed = (q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), starts, starts_k, 1, 300)
    torch.testing.assert_close(xeflash.flash_attn_varlen_func(*packed, num_splits=3), want[:, 0])
    torch.testing.assert_close(xeflash.flash_attn_func(k, k, v, num_splits=2), xeflash.flash_attn_func(k, k, v))


def quantised():
    """Queries, K and V in 8 bits with a scale for each sequence and head, and what they mean."""
    caches = [torch.randn(2, 48, 2, 64).to(torch.float8_e4m3fn) for _ in range(2)]
    scales = [torch.rand(2, 2) + 0.1 for _ in range(2)]
    meant = [x.float() * scale[:, None, :, None] for x, scale in zip(caches, scales, strict=True)]
    return torch.randn(2, 5, 4, 64), caches, scales, meant


def test_scales_of_sequences_and_heads(device):
    q, caches, scales, meant = quantised()
    lengths = torch.tensor([48, 17], dtype=torch.int32)
    want = xeflash.flash_attn_with_kvcache(q, *meant, cache_seqlens=lengths, causal=True)
    for k_scale, v_scale in (scales, [x.numpy() for x in scales]) if device == "cpu" else (scales,):
        got = xeflash.flash_attn_with_kvcache(
            q, *caches, cache_seqlens=lengths, causal=True, k_descale=k_scale, v_descale=v_scale
        )
        torch.testing.assert_close(got, want)


def test_one_scale_for_all_pages(device):
    q, caches, _, _ = quantised()
    table = torch.tensor([[0, 2, 4], [1, 3, 5]], dtype=torch.int32)
    pools = [x.reshape(6, 16, 2, 64) for x in caches]
    lengths = torch.tensor([40, 17], dtype=torch.int32)
    meant = [x.float() * scale for x, scale in zip(pools, (0.5, 0.25), strict=True)]
    want = xeflash.flash_attn_with_kvcache(q, *meant, cache_seqlens=lengths, block_table=table, causal=True)
    scales = {"k_descale": torch.tensor(0.5).expand(2, 2), "v_descale": torch.tensor(0.25).expand(2, 2)}
    got = xeflash.flash_attn_with_kvcache(q, *pools, cache_seqlens=lengths, page_table=table, causal=True, **scales)
    torch.testing.assert_close(got, want)
    starts = torch.tensor([0, 5, 10], dtype=torch.int32)
    for given in (scales, {"k_scale": 0.5, "v_scale": 0.25}):
        packed = xeflash.flash_attn_varlen_func(
            q.flatten(0, 1), *pools, starts, None, 5, 48, causal=True, page_table=table, seqused_k=lengths, **given
        )
        torch.testing.assert_close(packed.view_as(want), want)


def test_scales_that_do_not_fit():
    q, caches, (k_scale, v_scale), _ = quantised()
    table = torch.tensor([[0], [1]], dtype=torch.int32)
    call = xeflash.flash_attn_with_kvcache
    with pytest.raises(
        NotImplementedError, match=r"k_scale of \(B, Hk\) must be one number, expanded.*got shape \[2, 2\]"
    ):
        call(q, *caches, block_table=table, k_descale=k_scale, v_descale=v_scale)
    with pytest.raises(
        NotImplementedError, match=r"k_scale of \(B, Hk\) must come without new keys, got shape \[2, 2\]"
    ):
        new = torch.randn(2, 1, 2, 64)
        call(q, *caches, new, new, cache_seqlens=3, k_descale=k_scale, v_descale=v_scale)
    with pytest.raises(ValueError, match="k_scale must have the shape of k_cache without its last dimension"):
        call(q, *caches, k_descale=torch.rand(2, 3), v_descale=v_scale)


def test_they_compile():
    q, k, v = arguments("flash_attn_func")
    want = xeflash.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)[:2]
    call = torch.compile(xeflash.flash_attn_func, fullgraph=True, backend="aot_eager")
    got = call(q, k, v, causal=True, window_size=(None, None), pack_gqa=False, return_lse=True)
    assert all(map(torch.equal, got, want))


def test_compiled_calls_split_and_scale():
    q, caches, _, _ = quantised()
    table, lengths = torch.tensor([[0, 2, 4], [1, 3, 5]]).int(), torch.tensor([40, 17]).int()
    starts = torch.tensor([0, 1, 2]).int()
    pools = [x.reshape(6, 16, 2, 64) for x in caches]

    def call(scale, splits):
        scales = {"k_descale": scale.expand(2, 2), "v_descale": scale.expand(2, 2), "num_splits": splits}
        return xeflash.flash_attn_varlen_func(
            q[:, 0], *pools, starts, None, 1, 48, page_table=table, seqused_k=lengths, **scales
        )

    scale = torch.tensor(0.5)
    got = torch.compile(call, fullgraph=True, backend="aot_eager")(scale, 2)
    torch.testing.assert_close(got, call(scale, 0))
    assert not torch.equal(got, call(2 * scale, 0))


def test_numpy_takes_them():
    q, k, v = (x.numpy() for x in arguments("flash_attn_func"))
    out, lse = xeflash.flash_attn_func(q, k, v, window_size=(None, None), return_lse=True, pack_gqa=True)
    assert isinstance(out, np.ndarray) and isinstance(lse, np.ndarray)
