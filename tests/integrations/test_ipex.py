"""The calls of Intel Extension for PyTorch, against their definition written with torch."""

import doctest

import pytest
import torch
from cover import few
from xeflash.integrations import ipex
from xeflash.selftest.reference import Features, formula

pytestmark = pytest.mark.usefixtures("device")
# The others run on xpu in the wide set: a simulated GPU takes seconds for a call.
GPU_TESTS = ("negative_slots", "pages_cannot", "refused")


def reference(q, k, v, alpha, added=None, causal=False):
    """softmax(alpha Q K^T + added) V in float64, (B, H, S, D)."""
    q, k, v, added = (x if x is None else x.cpu() for x in (q, k, v, added))
    features = Features(scale=alpha, mask=added, window=(-1, 0) if causal else (-1, -1))
    return torch.as_tensor(formula(q, k, v, features).out)


def assert_near(got, want, limit=2e-5):
    assert got.shape == want.shape
    assert (got.double() - want).abs().max() < limit


def randn(*shape):
    return torch.randn(*shape)


@pytest.mark.parametrize("seq_last", [False, True])
@pytest.mark.parametrize("features", ["plain", "causal", "alibi", "alibi-3d", "bias", "bool", "both", "both-bool"])
def test_ipex_sdp(features, seq_last):
    q, k, v = randn(2, 8, 5, 64), randn(2, 4, 9, 64), randn(2, 4, 9, 64)
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
        for whole, from_prompt, cache in ((k, k_prompt, k_cache), (v, v_prompt, v_cache)):
            whole[row, :, :prompt] = from_prompt[b]
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
    apply = ipex.VarlenAttention.apply_function
    tail = (5, 12, 0.0, 0.2, True, True, False, None)
    for call, alibi in ((apply, (None,)), (apply, ()), (ipex.VarlenAttention(), (None,)), (ipex.VarlenAttention(), ())):
        got = call(q, k, v, out.fill_(torch.nan), starts_q, starts_k, *alibi, *tail)
        assert got is out
        for a, b, c, d in ((0, 4, 0, 8), (4, 9, 8, 20)):
            parts = (x.transpose(0, 1)[None] for x in (q[a:b], k[c:d], v[c:d]))
            assert_near(out[a:b].transpose(0, 1)[None], reference(*parts, 0.2, causal=True))


def test_varlen_attention_in_other_places():
    q, k = randn(9, 8, 64), randn(20, 4, 64)
    starts_q, starts_k, used = torch.tensor([0, 4, 9]), torch.tensor([0, 8, 20]), torch.tensor([5, 12])
    tail = (None, 5, 12, 0.0, 0.2, False, True, 3, -1, False, None)
    out = ipex.VarlenAttention.apply_function_flash_varlen(
        q, k, k, torch.empty_like(q), starts_q, starts_k, used, None, *tail
    )
    for a, b, c, d in ((0, 4, 0, 5), (4, 9, 8, 20)):
        parts = (x.transpose(0, 1)[None] for x in (q[a:b], k[c:d], k[c:d]))
        distance = torch.arange(d - c) - torch.arange(b - a)[:, None] - (d - c - b + a)
        assert_near(out[a:b].transpose(0, 1)[None], reference(*parts, 0.2, distance >= -3, causal=True))
    with pytest.raises(NotImplementedError, match="block_tables_ must be None, got Tensor"):
        ipex.VarlenAttention.apply_function_flash_varlen(q, k, k, out, starts_q, starts_k, None, used, *tail)


def test_varlen_attention_draws_dropout_from_the_generator():
    q, starts = randn(9, 8, 64), torch.tensor([0, 4, 9])

    def call(seed):
        generator = torch.Generator().manual_seed(seed)
        tail = (None, 5, 5, 0.5, 0.2, False, False, False, generator)
        return ipex.VarlenAttention.apply_function(q, q, q, torch.empty_like(q), starts, starts, *tail)

    assert torch.equal(call(3), call(3)) and not torch.equal(call(3), call(4))


PAGES, PAGE, HEADS, HEADS_K, DIM = 7, 16, 8, 4, 64
FORMS = {"reshape_and_cache": False, "reshape_and_cache_flash": True}  # whether XPU has its rows before its heads


def in_pages(caches, device, flash):
    """Caches (pages, Hk, page, D) as the calls of IPEX have them on a device."""
    return [x.transpose(1, 2).contiguous() if flash and device == "xpu" else x for x in caches]


@pytest.mark.parametrize("form", FORMS)
def test_reshape_and_cache_leaves_out_negative_slots(form, device):
    k, v = randn(6, HEADS_K, DIM), randn(6, HEADS_K, DIM)
    caches = [torch.full((PAGES, HEADS_K, PAGE, DIM), 7.0) for _ in range(2)]
    given = [x.clone() for x in in_pages(caches, device, FORMS[form])]
    for slots in ([3, -1, 40, 0, 111, -1], [-1, 5, 6, 7, 8, 9], [-1] * 6):
        slots = torch.tensor(slots)
        getattr(ipex.PagedAttention, form)(k, v, *given, slots, "auto", 1.0, 1.0)
        for x, cache in zip((k, v), caches, strict=True):
            for row, slot in zip(x, slots.tolist(), strict=True):
                if slot >= 0:
                    cache[slot // PAGE, :, slot % PAGE] = row
        for got, want in zip(given, in_pages(caches, device, FORMS[form]), strict=True):
            assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e5m2])
def test_pages_are_copied_and_swapped(dtype):
    caches = [randn(PAGES, HEADS_K, PAGE, DIM).to(dtype) for _ in range(4)]
    want = [x.float() for x in caches]
    ipex.PagedAttention.copy_blocks(caches[:2], caches[2:3], {0: [1, 2], 3: 4})
    ipex.PagedAttention.swap_blocks(caches[0], caches[3], torch.tensor([[1, 5], [6, 0]]))
    for x in want[:3]:
        x[1], x[2], x[4] = x[0], x[0], x[3]
    want[3][5], want[3][0] = want[0][1], want[0][6]
    assert all(torch.equal(x.float(), y) for x, y in zip(caches, want, strict=True))


def pages_of(lengths):
    table = torch.randperm(PAGES)[: 2 * len(lengths)].view(len(lengths), 2)
    caches = [randn(PAGES, HEADS_K, PAGE, DIM) for _ in range(2)]
    keys = [[x[table[b]].transpose(1, 2).flatten(0, 1)[:n] for x in caches] for b, n in enumerate(lengths)]
    return table, caches, keys


# What follows alibi_slopes: arguments of IPEX for CPU and XPU, by place and by name.
DECODES = {
    "nothing": ((), {}),
    "cpu": ((2, 1.0, 1.0, 5.0), {}),
    "xpu": (("auto", 2, 1.0, 1.0, 5.0), {}),
    "names": ((), {"softcap": 5.0, "window_size": 2, "kv_cache_dtype": "auto", "k_scale": 1.0}),
    "no window": ((-1, 1.0, 1.0, 5.0), {}),
}


@pytest.mark.parametrize("with_alibi", few([False, True], False))
@pytest.mark.parametrize("order", DECODES)
def test_single_query_cached_kv_attention(order, with_alibi):
    lengths = [17, 30, 1]
    table, caches, keys = pages_of(lengths)
    q, slopes = randn(3, HEADS, DIM), torch.rand(HEADS) if with_alibi else None
    mapping = torch.arange(HEADS_K).repeat_interleave(HEADS // HEADS_K)
    places, names = DECODES[order]
    tail = (0.2, table, torch.tensor(lengths), PAGE, 30, slopes)
    softcap, window = (5.0, 2) if order in ("cpu", "xpu", "names") else (0.0, 99)
    if order == "no window":
        softcap = 5.0
        out = torch.empty_like(q)
        ipex.PagedAttention.single_query_kv_attention(out, q, *caches, HEADS // HEADS_K, *tail, softcap)
    else:
        out = torch.empty_like(q)
    again = torch.empty_like(q)
    for _ in range(2):  # the mapping is known
        got = ipex.PagedAttention.single_query_cached_kv_attention(again, q, *caches, mapping, *tail, *places, **names)
        assert got is again
    assert order != "no window" or torch.equal(out, again)
    for b, (k, v) in enumerate(keys):
        parts = [x.transpose(0, 1)[None].double() for x in (k, v)]
        scores = 0.2 * q[b][None, :, None].double() @ parts[0].repeat_interleave(2, 1).transpose(-1, -2)
        scores = softcap * (scores / softcap).tanh() if softcap else scores
        distance = torch.arange(lengths[b]) - (lengths[b] - 1)
        if slopes is not None:
            scores = scores + slopes[:, None, None] * distance
        weights = scores.masked_fill(distance <= -window, -torch.inf).softmax(-1)
        assert_near(again[b][None, :, None], weights @ parts[1].repeat_interleave(2, 1))


VARLENS = {
    "nothing": ((), {}, (99, 0.0, False)),
    "cpu": ((None, 3, 0, "auto", 1.0, 1.0, 5.0), {}, (3, 5.0, False)),
    "xpu 2.9": ((None, "sink", 3, 0, "auto", 1.0, 1.0, 5.0), {}, (3, 5.0, True)),
    "names": ((), {"softcap": 5.0, "window_size_left": 3}, (3, 5.0, False)),
}


@pytest.mark.parametrize("order", VARLENS)
def test_paged_varlen(order, device):
    lengths, rows = [17, 30], [5, 1]
    table, caches, keys = pages_of(lengths)
    q, sink = randn(6, HEADS, DIM), randn(HEADS)
    out = torch.empty_like(q)
    starts = (torch.tensor([0, 5, 6]), torch.tensor([0, 17, 47]))
    places, names, (window, softcap, with_sink) = VARLENS[order]
    places = [sink if x == "sink" else x for x in places]
    given = in_pages(caches, device, flash=True)
    ipex.PagedAttention.flash_atten_varlen(out, q, *given, *starts, 5, 30, 0.2, True, table, *places, **names)
    for b, (k, v) in enumerate(keys):
        mine = slice(sum(rows[:b]), sum(rows[: b + 1]))
        heads = [x.transpose(0, 1).double() for x in (q[mine], k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))]
        scores = 0.2 * heads[0] @ heads[1].transpose(-1, -2)
        scores = softcap * (scores / softcap).tanh() if softcap else scores
        distance = torch.arange(lengths[b]) - torch.arange(rows[b])[:, None] - (lengths[b] - rows[b])
        scores = scores.masked_fill((distance > 0) | (distance < -window), -torch.inf)
        if with_sink:
            scores = torch.cat([scores, sink[:, None, None].double().expand(-1, rows[b], 1)], -1)
        assert_near(out[mine].transpose(0, 1), scores.softmax(-1)[..., : lengths[b]] @ heads[2])


def test_pages_in_eight_bits():
    table = torch.tensor([[2, 5]])
    caches = [torch.zeros(PAGES, HEADS_K, PAGE, DIM, dtype=torch.float8_e4m3fn) for _ in range(2)]
    k, v = randn(20, HEADS_K, DIM), randn(20, HEADS_K, DIM)
    slots = torch.tensor([(2, 5)[i // 16] * PAGE + i % 16 for i in range(20)])
    ipex.PagedAttention.reshape_and_cache(k, v, *caches, slots, "fp8_e4m3", 0.5, 0.25)
    q, mapping = randn(1, HEADS, DIM), torch.arange(HEADS) // 2
    out = torch.empty_like(q)
    tail = (mapping, 0.2, table, torch.tensor([20]), PAGE, 20, None)
    stored = ((x / scale).to(torch.float8_e4m3fn).double() * scale for x, scale in ((k, 0.5), (v, 0.25)))
    want = reference(q[0][None, :, None], *(x.transpose(0, 1)[None] for x in stored), 0.2)
    for options in ((-1, 0.5, 0.25), ("fp8", -1, 0.5, 0.25)):
        ipex.PagedAttention.single_query_cached_kv_attention(out.fill_(torch.nan), q, *caches, *tail, *options)
        assert_near(out[0][None, :, None], want)


def test_pages_under_autocast():
    """What torch sees of a call writes the output, too."""
    table, caches, _ = pages_of([17])
    caches = [x.bfloat16() for x in caches]
    q, mapping = randn(1, HEADS, DIM).bfloat16(), torch.arange(HEADS) // 2
    out, again = torch.full_like(q, torch.nan), torch.empty_like(q)
    call = ipex.PagedAttention.single_query_cached_kv_attention
    tail = (*caches, mapping, 0.2, table, torch.tensor([17]), PAGE, 17, None, 9, 1.0, 1.0, 5.0)
    with torch.autocast(q.device.type, torch.bfloat16):
        assert call(out, q, *tail) is out
    call(again, q, *tail)
    assert torch.equal(out, again)


def test_pages_under_inference_mode():
    table, caches, _ = pages_of([17])
    with torch.inference_mode():
        q, mapping = randn(1, HEADS, DIM), torch.arange(HEADS) // 2
        out = torch.full_like(q, torch.nan)
        ipex.PagedAttention.single_query_cached_kv_attention(
            out, q, *caches, mapping, 0.2, table, torch.tensor([17]), PAGE, 17
        )
    assert out.isfinite().all()


def test_what_pages_cannot_be_is_refused(device):
    table, caches, _ = pages_of([17])
    q, mapping, lengths = randn(1, HEADS, DIM), torch.arange(HEADS) // 2, torch.tensor([17])

    def call(*options, caches=caches, page=PAGE):
        ipex.PagedAttention.single_query_cached_kv_attention(
            q, q, *caches, mapping, 0.2, table, lengths, page, 17, None, *options
        )

    with pytest.raises(TypeError, match=r"window_size must be an integer, got 1\.0"):
        call(1.0, 1.0)
    with pytest.raises(ValueError, match=r"kv_cache_dtype must be 'auto', .*\(torch.float32\), got 'fp8'"):
        call("fp8")
    with pytest.raises(ValueError, match="kv_cache_dtype must be .*, got 1.0"):
        ipex.PagedAttention.reshape_and_cache(q, q, *caches, lengths, 1.0, 1.0)
    with pytest.raises(ValueError, match=r"key_cache must be \(pages, Hk, page, D\).*block_size = 32"):
        call(page=32)
    if device == "xpu":
        square = [randn(PAGES, HEADS_K, DIM, DIM)] * 2
        with pytest.raises(ValueError, match="must have a page size other than D on XPU"):
            call(caches=square, page=DIM)
    with pytest.raises(NotImplementedError, match="caches must have 4 dimensions"):
        packed = randn(PAGES, HEADS_K, DIM // 4, PAGE, 4)
        ipex.PagedAttention.reshape_and_cache(randn(1, HEADS_K, DIM), randn(1, HEADS_K, DIM), packed, packed, lengths)
    with pytest.raises(ValueError, match="num_queries_per_tokens must be 8 heads divided by 4, got 4"):
        ipex.PagedAttention.single_query_kv_attention(q, q, *caches, 4, 0.2, table, lengths, PAGE, 17)
    with pytest.raises(ValueError, match=r"block_mapping must be .*, got \[1\]"):
        ipex.PagedAttention.swap_blocks(*caches, lengths)


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
        assert_near(out, reference(*parts, 1 / 8.0, mask, causal=True))
        if step != 2:  # the third step keeps its order
            parents = torch.randint(0, rows, (rows,))
            past[3][total - 1] = parents
            history = [x[parents] for x in history]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("room", [0, 7, 64])
def test_indirect_access_as_generation_uses_it(beams, room):
    """Dummies before the first token, of which one row is a prompt's, and a cache that grows."""
    batch, prompt, heads, heads_k = 2, 6, 8, 4
    rows = batch * beams
    past = (torch.zeros(1, 0, 0, 1), torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1), torch.zeros(1, rows).long())
    call = ipex.IndirectAccessKVCacheAttention.apply_function
    history = None
    for tokens in (prompt, 1, 1, 3, 1, 1):
        n = rows if history else batch
        q, (k, v) = randn(n, tokens, heads, DIM), randn(2, n, tokens, heads_k, DIM)
        seen = [torch.cat(x, 1) for x in zip(history, (k, v), strict=True)] if history else [k, v]
        total = seen[0].shape[1]
        mask = randn(n, 1, tokens, total)
        out, _, past = call(q, k, v, 8.0, past, None, mask, text_max_length=room)
        assert past[1].shape[1] == rows and past[0].size(-2) == total
        assert_near(out, reference(q.transpose(1, 2), *(x.transpose(1, 2) for x in seen), 1 / 8.0, mask, causal=True))
        history = seen if history else [x.repeat_interleave(beams, 0) for x in seen]
        parents = torch.arange(rows) // beams * beams + torch.randint(0, beams, (rows,))
        past[3][past[0].size(-2) - 1] = parents
        history = [x[parents] for x in history]


def test_indirect_access_in_eight_bits():
    dummy = torch.zeros(1, 1, 1, 1, dtype=torch.float8_e5m2)
    past = (torch.zeros(1, 0, 0, 1), dummy, dummy, torch.zeros(1, 2).long())
    call = ipex.IndirectAccessKVCacheAttention.apply_function
    k = randn(2, 5, 4, DIM)
    _, _, past = call(k, k, k, 8.0, past)
    assert past[1].dtype is torch.float8_e5m2
    q = randn(2, 1, 4, DIM)
    out, _, _ = call(q, k[:, :1], k[:, :1], 8.0, past)
    stored = torch.cat([k, k[:, :1]], 1).to(torch.float8_e5m2).float().transpose(1, 2)
    assert_near(out, reference(q.transpose(1, 2), stored, stored, 1 / 8.0))


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
    x, past = randn(2, 5, 2, 64), (torch.zeros(1, 0, 0, 1), torch.zeros(1), torch.zeros(1), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="beam_idx must have a multiple of the prompt's 2 rows, got 3"):
        ipex.IndirectAccessKVCacheAttention(4)(x, x, x, 8.0, past)
    with pytest.raises(ValueError, match="layer_past must be given after 5 tokens, got None"):
        ipex.IndirectAccessKVCacheAttention(4)(x, x, x, 8.0, seq_info=torch.tensor(5))
    _, _, past = ipex.IndirectAccessKVCacheAttention(4)(x, x, x, 8.0)
    with pytest.raises(ValueError, match="key must have the 2 rows of the cache, got 1"):
        ipex.IndirectAccessKVCacheAttention(4)(x[:1], x[:1], x[:1], 8.0, past)
    with pytest.raises(NotImplementedError, match="head_mapping must be"):
        x, cache, ints = randn(1, 2, 64), randn(3, 2, 16, 64), torch.zeros(1, 1)
        ipex.PagedAttention.single_query_cached_kv_attention(
            x, x, cache, cache, torch.tensor([1, 0]), 0.2, ints, ints[0], 16, 3
        )


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_arrays_have_four_dimensions(name):
    q, index = randn(1, 2, 5, 64), torch.zeros(5, 1, 1, dtype=torch.int32)
    one = {"query": q[:, :, :1], "key": q, "value": q}
    calls = {
        "IpexSDP": ipex.IpexSDP,
        "IpexSDP_Index": lambda **given: ipex.IpexSDP_Index(**given, key_cache=q, value_cache=q, index=index,
                                                            alibi=None, attn_mask=None, head_mask=None, timestep=5,
                                                            alpha=0.2),
        "IndirectAccessKVCacheAttention": lambda **given: ipex.IndirectAccessKVCacheAttention()(**given, scale_attn=8.0),
    }  # fmt: skip
    for function, call in calls.items():
        with pytest.raises(ValueError, match=rf"^{function}: {name} must have 4 dimensions, got shape \[2, "):
            call(**{**one, name: one[name][0]})
        with pytest.raises(TypeError, match=rf"^{function}: {name} must be a torch tensor, got ndarray"):
            call(**{**one, name: one[name].cpu().numpy()})


def test_examples_run():
    assert doctest.testmod(ipex).failed == 0
