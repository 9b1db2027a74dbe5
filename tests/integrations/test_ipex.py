"""The calls of Intel Extension for PyTorch, against their definition written with torch."""

import doctest

import pytest
import torch
from xeflash.integrations import ipex

pytestmark = pytest.mark.usefixtures("device")


def reference(q, k, v, alpha, added=None, causal=False):
    """softmax(alpha Q K^T + added) V in float64, (B, H, S, D)."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = alpha * q @ k.transpose(-1, -2)
    if added is not None:
        s = s.masked_fill(~added, -torch.inf) if added.dtype is torch.bool else s + added.double()
    if causal:
        rows, keys = s.shape[-2:]
        s = s.masked_fill(~torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows), -torch.inf)
    return s.softmax(-1) @ v


def assert_near(got, want, limit=2e-5):
    assert got.shape == want.shape
    assert (got.double() - want).abs().max() < limit


def randn(*shape):
    return torch.randn(*shape)


@pytest.mark.parametrize("seq_last", [False, True])
@pytest.mark.parametrize("features", ["plain", "causal", "alibi", "alibi-3d", "bias", "bool", "both", "both-bool"])
def test_ipex_sdp(features, seq_last):
    q, k, v = randn(2, 8, 5, 64), randn(2, 4, 9, 64), randn(2, 4, 9, 40)
    alibi, bias, added = None, None, torch.zeros(())
    if "alibi" in features or "both" in features:
        alibi = randn(2, 8, 1, 16)  # padded
        added = alibi[..., :9]
        alibi = alibi.view(16, 1, 16) if features == "alibi-3d" else alibi
    if features in ("bias", "both"):
        bias = randn(2, 1, 5, 16).half() if features == "bias" else randn(2, 1, 5, 16)
        added = added + bias[..., :9]
    if "bool" in features:
        bias = torch.rand(2, 1, 5, 16) > 0.4
        bias[..., 0] = True
        added = added.masked_fill(~bias[..., :9], -torch.inf)
    causal = features == "causal"
    out = ipex.IpexSDP(q, k, v, alibi, bias, alpha=0.2, is_causal=causal, seq_last=seq_last)
    assert_near(out, reference(q, k, v, 0.2, added, causal))
    in_memory = out.permute(2, 0, 1, 3) if seq_last else out.transpose(1, 2)
    assert in_memory.is_contiguous()


@pytest.mark.parametrize("with_mask", [None, "float", "bool"])
@pytest.mark.parametrize("with_alibi", [False, True])
@pytest.mark.parametrize("prompt_steps", [(7, 4), (1, 1), (33, 20)])
def test_ipex_sdp_index(prompt_steps, with_alibi, with_mask):
    prompt, steps = prompt_steps
    batch, beams, heads, heads_k, dim = 2, 3, 8, 4, 64
    rows, total = batch * beams, prompt + steps
    q = randn(1, rows, heads, dim).permute(1, 2, 0, 3)
    k_prompt, v_prompt = (randn(prompt, batch, heads_k, dim).permute(1, 2, 0, 3) for _ in range(2))
    k_cache, v_cache = (randn(steps + 3, rows, heads_k, dim)[:steps].permute(1, 2, 0, 3) for _ in range(2))
    index = torch.randint(0, beams, (steps, batch, beams), dtype=torch.int32)
    alibi = randn(rows, heads, 1, total + 5) if with_alibi else None
    mask = {None: None, "float": randn(rows, 1, 1, total + 5), "bool": torch.rand(rows, 1, 1, total + 5) > 0.3}[
        with_mask
    ]
    if with_mask == "bool":
        mask[..., 0] = True
    got = ipex.IpexSDP_Index(q, k_prompt, v_prompt, k_cache, v_cache, index, alibi, mask, None, steps, 0.2, 1.0)
    k, v = torch.empty(2, rows, heads_k, total, dim)
    for row in range(rows):
        b = row // beams
        for whole, of_prompt, cache in ((k, k_prompt, k_cache), (v, v_prompt, v_cache)):
            whole[row, :, :prompt] = of_prompt[b]
            for t in range(steps):
                whole[row, :, prompt + t] = cache[b * beams + index[t, b, row % beams], :, t]
    added = torch.zeros(rows, heads, 1, total) if alibi is None else alibi[..., :total]
    if mask is not None:
        cut = mask[..., :total]
        added = added.masked_fill(~cut, -torch.inf) if with_mask == "bool" else added + cut
    assert_near(got, reference(q, k, v, 0.2, added))


def test_varlen_attention():
    q, k, v = randn(9, 8, 64), randn(20, 4, 64), randn(20, 4, 64)
    starts_q, starts_k = torch.tensor([0, 4, 9]), torch.tensor([0, 8, 20])
    out = torch.full_like(q, torch.nan)
    for call in (ipex.VarlenAttention.apply_function, ipex.VarlenAttention()):
        got = call(q, k, v, out.fill_(torch.nan), starts_q, starts_k, None, 5, 12, 0.0, 0.2, True, True, False, None)
        assert got is out
        for a, b, c, d in ((0, 4, 0, 8), (4, 9, 8, 20)):
            parts = (x.transpose(0, 1)[None] for x in (q[a:b], k[c:d], v[c:d]))
            assert_near(out[a:b].transpose(0, 1)[None], reference(*parts, 0.2, causal=True))


def test_varlen_attention_draws_dropout_from_the_generator():
    q, starts = randn(9, 8, 64), torch.tensor([0, 4, 9])

    def call(seed):
        generator = torch.Generator().manual_seed(seed)
        tail = (None, 5, 5, 0.5, 0.2, False, False, False, generator)
        return ipex.VarlenAttention.apply_function(q, q, q, torch.empty_like(q), starts, starts, *tail)

    assert torch.equal(call(3), call(3)) and not torch.equal(call(3), call(4))


PAGES, PAGE, HEADS, HEADS_K, DIM = 7, 16, 8, 4, 64


@pytest.mark.parametrize("form", ["reshape_and_cache", "reshape_and_cache_flash"])
def test_reshape_and_cache_leaves_out_negative_slots(form):
    k, v = randn(6, HEADS_K, DIM), randn(6, HEADS_K, DIM)
    caches = [torch.full((PAGES, PAGE, HEADS_K, DIM), 7.0) for _ in range(2)]
    given = caches if form.endswith("flash") else [x.transpose(1, 2).contiguous() for x in caches]
    for slots in ([3, -1, 40, 0, 111, -1], [-1, 5, 6, 7, 8, 9], [-1] * 6):
        slots = torch.tensor(slots)
        getattr(ipex.PagedAttention, form)(k, v, *given, slots)
        for x, cache in zip((k, v), caches, strict=True):
            for row, slot in zip(x, slots.tolist(), strict=True):
                if slot >= 0:
                    cache[slot // PAGE, slot % PAGE] = row
        for got, want in zip(given, caches, strict=True):
            assert torch.equal(got if form.endswith("flash") else got.transpose(1, 2), want)


def pages_of(lengths):
    table = torch.randperm(PAGES)[: 2 * len(lengths)].view(len(lengths), 2)
    caches = [randn(PAGES, HEADS_K, PAGE, DIM) for _ in range(2)]
    keys = [[x[table[b]].transpose(1, 2).flatten(0, 1)[:n] for x in caches] for b, n in enumerate(lengths)]
    return table, caches, keys


@pytest.mark.parametrize("with_alibi", [False, True])
def test_single_query_cached_kv_attention(with_alibi):
    lengths = [17, 30, 1]
    table, caches, keys = pages_of(lengths)
    q, slopes = randn(3, HEADS, DIM), torch.rand(HEADS) if with_alibi else None
    out = torch.empty_like(q)
    mapping = torch.arange(HEADS_K).repeat_interleave(HEADS // HEADS_K)
    tail = (mapping, 0.2, table, torch.tensor(lengths), PAGE, 30, slopes)
    ipex.PagedAttention.single_query_cached_kv_attention(out, q, *caches, *tail)
    for b, (k, v) in enumerate(keys):
        added = None if slopes is None else slopes[:, None, None] * (torch.arange(lengths[b]) - (lengths[b] - 1))
        want = reference(q[b][None, :, None], *(x.transpose(0, 1)[None] for x in (k, v)), 0.2, added)
        assert_near(out[b][None, :, None], want)


def test_paged_varlen():
    lengths, rows = [17, 30], [5, 1]
    table, caches, keys = pages_of(lengths)
    q = randn(6, HEADS, DIM)
    out = torch.empty_like(q)
    starts = (torch.tensor([0, 5, 6]), torch.tensor([0, 17, 47]))
    ipex.PagedAttention.flash_atten_varlen(out, q, *caches, *starts, 5, 30, 0.2, True, table)
    for b, (k, v) in enumerate(keys):
        mine = slice(sum(rows[:b]), sum(rows[: b + 1]))
        parts = (x.transpose(0, 1)[None] for x in (q[mine], k, v))
        assert_near(out[mine].transpose(0, 1)[None], reference(*parts, 0.2, causal=True))


def test_pages_in_eight_bits():
    table = torch.tensor([[2, 5]])
    caches = [torch.zeros(PAGES, HEADS_K, PAGE, DIM, dtype=torch.float8_e4m3fn) for _ in range(2)]
    k, v = randn(20, HEADS_K, DIM), randn(20, HEADS_K, DIM)
    slots = torch.tensor([(2, 5)[i // 16] * PAGE + i % 16 for i in range(20)])
    ipex.PagedAttention.reshape_and_cache(k, v, *caches, slots, 0.5, 0.25)
    q, mapping = randn(1, HEADS, DIM), torch.arange(HEADS) // 2
    out = torch.empty_like(q)
    tail = (mapping, 0.2, table, torch.tensor([20]), PAGE, 20, None, 0.5, 0.25)
    ipex.PagedAttention.single_query_cached_kv_attention(out, q, *caches, *tail)
    stored = ((x / scale).to(torch.float8_e4m3fn).double() * scale for x, scale in ((k, 0.5), (v, 0.25)))
    want = reference(q[0][None, :, None], *(x.transpose(0, 1)[None] for x in stored), 0.2)
    assert_near(out[0][None, :, None], want)


@pytest.mark.parametrize("with_mask", [False, True])
def test_indirect_access_follows_the_beams(with_mask):
    """Beam search as it is used: the history of each row is kept by copying, beside it."""
    rows, prompt, heads, heads_k = 4, 6, 8, 4
    module = ipex.IndirectAccessKVCacheAttention(text_max_length=32)
    history, past = None, None
    for step, tokens in enumerate((prompt, 1, 1, 1, 1, 1)):
        q, (k, v) = randn(rows, tokens, heads, DIM), randn(2, rows, tokens, heads_k, DIM)
        history = (k, v) if history is None else [torch.cat(x, 1) for x in zip(history, (k, v), strict=True)]
        total = history[0].shape[1]
        mask = randn(rows, 1, tokens, total) if with_mask else None
        out, weights, past = module(q, k, v, 8.0, past, None, mask)
        assert weights is None and past[0].size(-2) == total
        parts = (x.transpose(1, 2) for x in (q, *history))
        assert_near(out.transpose(1, 2), reference(*parts, 1 / 8.0, mask, causal=True))
        if step != 2:  # the third step keeps its order
            parents = torch.randint(0, rows, (rows,))
            past[3][total - 1] = parents
            history = [x[parents] for x in history]


def test_what_was_ignored_is_refused():
    q = randn(1, 2, 5, 64)
    with pytest.raises(NotImplementedError, match="head_mask must be None"):
        ipex.IpexSDP(q, q, q, head_mask=q)
    with pytest.raises(NotImplementedError, match="beta must be 1, got 2"):
        ipex.IpexSDP(q, q, q, beta=2)
    with pytest.raises(ValueError, match="timestep must be 5"):
        index = torch.zeros(5, 1, 1, dtype=torch.int32)
        ipex.IpexSDP_Index(q[:, :, :1], q, q, q, q, index, None, None, None, 3, 0.2)
    with pytest.raises(NotImplementedError, match="return_softmax"):
        starts = torch.tensor([0, 5])
        tail = (None, 5, 5, 0.0, 0.2, False, False, True, None)
        ipex.VarlenAttention.apply_function(q[0], q[0], q[0], q[0], starts, starts, *tail)
    with pytest.raises(ValueError, match="room for 5 tokens, got 4"):
        x = randn(1, 5, 2, 64)
        ipex.IndirectAccessKVCacheAttention(4)(x, x, x, 8.0)
    with pytest.raises(NotImplementedError, match="head_mapping must be"):
        x, cache, ints = randn(1, 2, 64), randn(3, 2, 16, 64), torch.zeros(1, 1)
        ipex.PagedAttention.single_query_cached_kv_attention(
            x, x, cache, cache, torch.tensor([1, 0]), 0.2, ints, ints[0], 16, 3
        )


def test_examples_run():
    assert doctest.testmod(ipex).failed == 0
