"""Keywords of flash-attn 3 and 4: those with a meaning here, those that change no result, those that are refused."""

import inspect
from itertools import product

import numpy as np
import pytest
import torch
import xeflash
from cover import few_rows

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
        {"gather_kv_indices": None},
        {"window_size": None, "fa_version": 3, "zero_tensors": True, "sinks": None},
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
        assert all(map(torch.equal, function(*given, sinks=sink, return_softmax_lse=True), got))
        for wrong in ("yes", 1, torch.tensor([True, False])):
            with pytest.raises(TypeError, match=f"{name}: return_lse must be True or False, got "):
                function(*given, return_lse=wrong)
        for keyword in ("return_lse", "return_softmax_lse"):
            with pytest.raises(ValueError, match=f"{name}: {keyword} must be False with return_attn_probs, got True"):
                function(*given, return_attn_probs=True, **{keyword: True})
    with pytest.raises(
        ValueError, match=f"{name}: learnable_sink must be None if s_aux is given, which means the same"
    ):
        function(*given, learnable_sink=sink, s_aux=sink)


REFUSED = {
    "sm_margin": 8,
    "qv": torch.zeros(1),
    "mask_mod": len,
    "block_sparse_tensors": (1,),
    "scheduler_metadata": torch.zeros(1),
    "seqused_q": STARTS,
    "rotary_seqlens": STARTS,
}
HIDING = ("mask_mod", "block_sparse_tensors")  # which some functions take
SERVED = {("flash_attn_varlen_func", "seqused_q"), ("flash_attn_with_kvcache", "rotary_seqlens")}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_refused_by_name(name):
    function, given = getattr(xeflash, name), arguments(name)
    own = inspect.signature(function).parameters
    for keyword, value in REFUSED.items():
        if (name, keyword) in SERVED:
            continue
        if keyword in HIDING and "mask_mod" in own:
            with pytest.raises((TypeError, ValueError), match=f"^{name}: {keyword} must "):
                function(*given, **{keyword: value})
            continue
        got = value if isinstance(value, int) else type(value).__name__
        with pytest.raises(NotImplementedError, match=f"{name}: {keyword} must be None, got {got}: "):
            function(*given, **{keyword: value})
    with pytest.raises(TypeError, match=f"{name}: pack_gqa must be a number, or None, got str"):
        function(*given, pack_gqa="yes")
    with pytest.raises(TypeError, match=f"^{name}: unexpected keyword argument dropout"):
        function(*given, dropout=0.1)


def test_positions_are_those_of_the_cache():
    q, cache, new = torch.randn(2, 1, 4, 64), torch.randn(2, 32, 2, 64), torch.randn(2, 1, 2, 64)
    lengths, turns = torch.tensor([5, 9], dtype=torch.int32), torch.randn(2, 40, 8)
    call = lambda **more: xeflash.flash_attn_with_kvcache(q, cache.clone(), cache, cache_seqlens=lengths, **more)  # noqa: E731
    turned = {"k": new, "v": new, "rotary_cos": turns[0], "rotary_sin": turns[1]}
    assert torch.equal(call(**turned, rotary_seqlens=lengths), call(**turned))
    assert torch.equal(call(rotary_seqlens=lengths.clone()), call())  # nothing is rotated
    with pytest.raises(NotImplementedError, match="rotary_seqlens must be None, got Tensor: positions are those from"):
        call(**turned, rotary_seqlens=lengths - 1)


def test_what_needs_a_cache_is_refused_without_one():
    q, k, v = arguments("flash_attn_func")
    with pytest.raises(NotImplementedError, match="page_table must be None, got Tensor: there is no cache"):
        xeflash.flash_attn_func(q, k, v, page_table=STARTS)
    for name in ("flash_attn_qkvpacked_func", "flash_attn_varlen_kvpacked_func"):
        with pytest.raises(NotImplementedError, match=f"{name}: k_descale must be None, got 0.5: there is no cache"):
            getattr(xeflash, name)(*arguments(name), k_descale=0.5)


# ---- what is in 8 bits --------------------------------------------------------------------------


def in_8_bits(rows=5):
    """Arrays in float8, their scales, and what they mean."""
    arrays = [torch.randn(2, rows, 4, 64), *torch.randn(2, 2, 48, 2, 64)]
    arrays = [x.to(torch.float8_e4m3fn) for x in arrays]
    scales = {f"{name}_descale": torch.rand(2, 2) + 0.5 for name in "qkv"}
    meant = [
        x.float() * scale.repeat_interleave(x.shape[2] // 2, 1)[:, None, :, None]
        for x, scale in zip(arrays, scales.values(), strict=True)
    ]
    return arrays, scales, meant


@pytest.mark.parametrize("call", ["func", "varlen_func", "with_kvcache"])
def test_queries_in_float8(device, call):
    for rows in (5, 1):
        arrays, scales, meant = in_8_bits(rows)
        if rows == 1:
            scales = {"q_descale": 0.5, "k_descale": torch.tensor([2.0]), "v_descale": torch.tensor(0.25)}
            meant = [x.float() * scale for x, scale in zip(arrays, scales.values(), strict=True)]
        want = xeflash.flash_attn_func(*meant, causal=True)
        more = ()
        if call == "varlen_func":
            arrays = [x.flatten(0, 1) for x in arrays]
            more = (torch.tensor([0, rows, 2 * rows]).int(), torch.tensor([0, 48, 96]).int(), rows, 48)
        got = getattr(xeflash, f"flash_attn_{call}")(*arrays, *more, causal=True, **scales)
        assert got.dtype is torch.bfloat16
        torch.testing.assert_close(got.float().view_as(want), want, rtol=2e-2, atol=2e-2)


def test_starts_that_do_not_fit_are_refused_with_scales():
    (q, k, v), scales, _ = in_8_bits()
    arrays = [x.flatten(0, 1) for x in (q, k, v)]
    starts, key_starts = torch.tensor([0, 5, 10]).int(), torch.tensor([0, 48, 96]).int()
    call = lambda starts, key_starts: xeflash.flash_attn_varlen_func(*arrays, starts, key_starts, 5, 48, **scales)  # noqa: E731
    assert torch.equal(call(starts.numpy(), key_starts.numpy()), call(starts, key_starts))
    for wrong in (starts[0], starts[:, None], starts[:0], starts.long(), starts.tolist(), None, starts.to("meta")):
        with pytest.raises((TypeError, ValueError), match="flash_attn_varlen_func: cu_seqlens_q must "):
            call(wrong, key_starts)
        with pytest.raises((TypeError, ValueError), match="flash_attn_varlen_func: cu_seqlens_k must "):
            call(starts, wrong)


def test_what_cannot_be_in_8_bits():
    (q, k, v), _, _ = in_8_bits()
    call = xeflash.flash_attn_func
    half = [x.half() for x in (q, k, v)]
    for name in "qkv":
        with pytest.raises(
            ValueError, match=f"flash_attn_func: {name}_scale must be None unless {name} is in 8 bits, got 2.0"
        ):
            call(*half, **{f"{name}_scale": 2.0})
    with pytest.raises(TypeError, match=r"q must be of a floating type, got torch.int8; q.shape = \[2, 5, 4, 64\]"):
        call(q.to(torch.int8), k, v)
    with pytest.raises(ValueError, match=r"q_scale must broadcast to \[2, 2\].*got \[2, 4\]"):
        call(q, k, v, q_scale=torch.ones(2, 4))
    with pytest.raises(ValueError, match="q_scale must be positive and finite in float32, got -1.0"):
        call(q, k, v, q_scale=-1.0)
    with pytest.raises(TypeError, match="q_scale must be a number or a dense float32 tensor, got torch.float16"):
        call(q, k, v, q_scale=torch.ones(2, 2).half())
    for scale in (1e300, 1e-320, 10**400, float("nan")):
        with pytest.raises(ValueError, match="q_scale must be positive and finite in float32, got "):
            call(q, k, v, q_scale=scale)
    with pytest.raises(ValueError, match=r"q_scale must be on the device of q \(cpu\), got meta"):
        call(q, k, v, q_scale=torch.ones(2, 2, device="meta"))
    with pytest.raises(TypeError, match="q_scale must be a number or a dense float32 tensor, got .*sparse_coo"):
        call(q, k, v, q_scale=torch.ones(2, 2).to_sparse())
    with pytest.raises(TypeError, match="k_scale must be a dense tensor"):
        call(q, k, v, k_scale=torch.ones(2, 2).to_sparse(), v_scale=torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"k.heads must divide q.heads \(3\), got 2"):
        call(q[:, :, :3], k, v, q_scale=torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"q must have 4 dimensions, got 1"):
        call(q[0, 0, 0], k, v, q_scale=torch.ones(2, 2))
    with pytest.raises(NotImplementedError, match="dropout_p must be 0 with k and v in 8 bits, got False"):
        call(q, k, v, dropout_p=False)
    with pytest.raises(NotImplementedError, match="dropout_p must be 0 with k and v in 8 bits, got 0.5"):
        call(q, k, v, dropout_p=0.5)
    with pytest.raises(NotImplementedError, match="gather_kv_indices must be None with k and v in 8 bits, got Tensor"):
        call(q, k, v, gather_kv_indices=torch.zeros(2, 5, 1).int())
    with pytest.raises(TypeError, match="flash_attn_func: v must"):
        call(q, k, half[2])


# ---- splits and scales of caches ----------------------------------------------------------------


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
    """Queries, K and V in 8 bits, and scales for each sequence and head."""
    caches = [torch.randn(2, 48, 2, 64).to(torch.float8_e4m3fn) for _ in range(2)]
    return torch.randn(2, 5, 4, 64), caches, [torch.rand(2, 2) + 0.1 for _ in range(2)]


def meant(x, scale):
    """The values of a cache (B, S, Hk, D), whose scale is a number, or of one element, (Hk,), or (B, Hk)."""
    return x.float() * torch.as_tensor(scale, dtype=torch.float32).to(x.device).expand(2, 2)[:, None, :, None]


ONE = {
    "numbers": (0.5, 0.25),
    "one": (torch.tensor(0.5, device="cpu"), torch.tensor(0.25, device="cpu")),  # as vLLM's layers have them
    "one in a vector": (torch.tensor([0.5], device="cpu"), torch.tensor([0.25], device="cpu")),
}
SCALES = {
    "one in a matrix": (torch.tensor([[0.5]]), torch.tensor([[0.25]])),
    "heads": (torch.tensor([0.5, 4.0]), torch.tensor([8.0, 0.25])),
    "sequences and heads": (torch.tensor([[0.5, 4.0], [1.0, 0.125]]), torch.tensor([[0.125, 0.25], [0.5, 8.0]])),
    "strided": (torch.tensor([[0.5, 9.0, 4.0], [1.0, 9.0, 0.125]])[:, ::2], torch.tensor([[0.125, 8.0]]).expand(2, 2)),
}
WAYS = ["dense", "index", "numpy", "pages", "packed"]
TABLE = torch.tensor([[0, 2, 4], [1, 3, 5]], dtype=torch.int32)


def cached(pages):
    """Caches of two sequences of 48 keys; in pages: pools whose pages TABLE names, of other numbers."""
    if not pages:
        return [torch.randint(-99, 99, (2, 48, 2, 64)).to(torch.int8) for _ in range(2)]
    return [torch.randn(6, 16, 2, 64).to(torch.float8_e4m3fn) for _ in range(2)]


def of_sequences(cache):
    """(2, 48, Hk, D), whether it is in pages or not."""
    return cache.float()[TABLE.long()].flatten(1, 2) if len(cache) == 6 else cache.float()


@pytest.mark.parametrize(
    ("way", "form"), few_rows(product(WAYS, ONE | SCALES), *product(WAYS, SCALES), *product(WAYS[3:], ONE))
)
def test_scales(device, way, form):
    if device != "cpu" and way == "numpy":
        pytest.skip("numpy's arrays lie in host memory")
    q, caches, lengths = torch.randn(2, 5, 4, 64), cached(way in WAYS[3:]), torch.tensor([48, 17], dtype=torch.int32)
    scales = [x.to(device) if isinstance(x, torch.Tensor) else x for x in (ONE | SCALES)[form]]
    wanted = [meant(of_sequences(x), scale) for x, scale in zip(caches, scales, strict=True)]
    want = xeflash.flash_attn_with_kvcache(q, *wanted, cache_seqlens=lengths, causal=True)
    named = dict(zip(("k_descale", "v_descale"), scales, strict=True)) | {"causal": True}
    if way == "packed":
        starts = torch.tensor([0, 5, 10], dtype=torch.int32)
        table = TABLE.to(device)
        got = xeflash.flash_attn_varlen_func(
            q.flatten(0, 1), *caches, starts, None, 5, 48, page_table=table, seqused_k=lengths, **named
        ).view_as(want)
    elif way == "numpy":
        named |= {name: x.numpy() for name, x in named.items() if isinstance(x, torch.Tensor)}
        arrays = [x.numpy() for x in (q, *caches)]
        got = torch.from_numpy(xeflash.flash_attn_with_kvcache(*arrays, cache_seqlens=lengths.numpy(), **named))
    else:
        named |= {"pages": {"page_table": TABLE.to(device)}}.get(way, {})
        if way == "index":
            named, caches = named | {"cache_batch_idx": torch.tensor([1, 0]).int()}, [x.flip(0) for x in caches]
        got = xeflash.flash_attn_with_kvcache(q, *caches, cache_seqlens=lengths, **named)
    torch.testing.assert_close(got, want)


def test_scales_of_sequences_of_which_queries_are_used():
    q, pools = torch.randn(10, 4, 64), cached(pages=True)
    scales = dict(zip(("k_scale", "v_scale"), SCALES["sequences and heads"], strict=True))
    starts, lengths = torch.tensor([0, 5, 10], dtype=torch.int32), torch.tensor([48, 17], dtype=torch.int32)
    arguments = (q, *pools, starts, None, 5, 48)
    want = xeflash.flash_attn_varlen_func(*arguments, block_table=TABLE, seqused_k=lengths, **scales)
    used = torch.tensor([5, 2], dtype=torch.int32)
    got = xeflash.flash_attn_varlen_func(*arguments, block_table=TABLE, seqused_k=lengths, seqused_q=used, **scales)
    torch.testing.assert_close(got[:7], want[:7])
    assert not got[7:].any()


@pytest.mark.parametrize(("pages", "form"), few_rows(product((False, True), ONE | SCALES), *product((False,), SCALES)))
def test_new_keys_are_divided_by_scales_that_are_given(device, pages, form):
    """They are written as numbers of the scale of their sequence and head; scales stay as they are."""
    q, caches, lengths = torch.randn(2, 5, 4, 64), cached(pages), torch.tensor([45, 17], dtype=torch.int32)
    scales = [x.to(device) if isinstance(x, torch.Tensor) else x for x in (ONE | SCALES)[form]]
    new, want = torch.randn(2, 2, 3, 2, 64), [of_sequences(x) for x in caches]
    for cache, x, scale in zip(want, new, scales, strict=True):
        numbers = x / meant(torch.ones_like(x), scale)
        for b, n in enumerate(lengths.tolist()):
            cache[b, n : n + 3] = numbers[b].to(torch.float8_e4m3fn).float() if pages else numbers[b].round()
    before = [torch.as_tensor(x).clone() for x in scales]
    more = {"block_table": TABLE.to(device)} if pages else {}
    xeflash.flash_attn_with_kvcache(
        q, *caches, *new, cache_seqlens=lengths, causal=True, k_scale=scales[0], v_scale=scales[1], **more
    )
    assert all(map(torch.equal, map(of_sequences, caches), want))
    assert all(map(torch.equal, map(torch.as_tensor, scales), before))


@pytest.mark.parametrize("form", ["heads", "strided"])
def test_compiled_calls_leave_scales_that_are_given(form):
    """The schema says that scales are written, as those of rows are."""
    q, caches, new = torch.randn(2, 5, 4, 64), cached(False), torch.randn(2, 2, 3, 2, 64)
    others = [x.clone() for x in caches]
    scales = dict(zip(("k_scale", "v_scale"), SCALES[form], strict=True))
    call = lambda *caches: xeflash.flash_attn_with_kvcache(q, *caches, *new, cache_seqlens=9, **scales)  # noqa: E731
    got = torch.compile(call, fullgraph=True, backend="aot_eager")(*caches)
    assert torch.equal(got, call(*others)) and all(map(torch.equal, caches, others))


@pytest.mark.parametrize(
    "one",
    [
        np.float32, np.array, lambda x: np.array([x], np.float16), torch.tensor, lambda x: torch.tensor([x]).half(),
        lambda x: torch.nn.Parameter(torch.tensor([x]), requires_grad=False),
    ],
    ids=["number", "numpy", "numpy of one", "tensor", "tensor of one", "parameter"],
)  # fmt: skip
def test_a_scale_may_be_an_array_of_one(one):
    """As vLLM's layers have them."""
    _, caches, _ = quantised()
    q, *new = torch.randn(3, 2, 1, 2, 64).bfloat16()
    lengths = torch.tensor([40, 17], dtype=torch.int32)
    found = []
    for of in (float, one):
        own = [x.clone() for x in caches]
        scales = {"k_scale": of(0.5), "v_scale": of(0.25)}
        out = xeflash.flash_attn_with_kvcache(q, *own, *new, cache_seqlens=lengths, **scales)
        found.append([out, xeflash.flash_attn_with_kvcache(q, *own, **scales), *(x.float() for x in own)])
    for want, got in zip(*found, strict=True):
        assert torch.equal(got, want)


def test_scales_may_be_learned_and_may_vary():
    (q, k, v), scales, _ = in_8_bits()
    arrays = [x.flatten(0, 1) for x in (q, k, v)]
    starts, key_starts = torch.tensor([0, 5, 10]).int(), torch.tensor([0, 48, 96]).int()
    scale = torch.tensor([2.0], requires_grad=True)
    out = xeflash.flash_attn_varlen_func(*arrays, starts, key_starts, 5, 48, **scales | {"v_descale": scale})
    (found,) = torch.autograd.grad(out.float().sum(), scale)
    torch.testing.assert_close(found, out.detach().float().sum()[None] / 2, rtol=2e-2, atol=1e-2)
    _, caches, _ = quantised()
    q = torch.randn(2, 1, 2, 64).bfloat16()
    call = lambda scale: xeflash.flash_attn_with_kvcache(q, *caches, k_scale=scale, v_scale=scale)  # noqa: E731
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    for scale in (0.5, 0.25, 0.75):
        assert torch.equal(compiled(scale), call(scale))


def test_a_dropout_of_0_may_be_any_number():
    _, caches, _ = quantised()
    q = torch.randn(2, 1, 2, 64).bfloat16()
    want = xeflash.flash_attn_func(q, *caches)
    for zero in (0, 0.0, np.float32(0), np.int64(0), torch.tensor(0.0)):
        assert torch.equal(xeflash.flash_attn_func(q, *caches, dropout_p=zero), want)
    with pytest.raises(
        NotImplementedError, match="^flash_attn_func: dropout_p must be 0 with k and v in 8 bits, got 0.5"
    ):
        xeflash.flash_attn_func(q, *caches, dropout_p=0.5)


def test_scales_that_do_not_fit():
    q, caches, (k_scale, v_scale) = quantised()
    call = xeflash.flash_attn_with_kvcache
    with pytest.raises(ValueError, match=r"k_descale must be a number, .* per head \[2\], .* got \[2, 3\]"):
        call(q, *caches, k_descale=torch.rand(2, 3), v_descale=v_scale)
    with pytest.raises(
        ValueError, match="v_descale must have a scale per row of the cache if k_descale has, else none"
    ):
        call(q, *caches, k_descale=torch.rand(2, 48, 2), v_descale=v_scale)


def test_they_compile():
    q, k, v = arguments("flash_attn_func")
    want = xeflash.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)[:2]
    call = torch.compile(xeflash.flash_attn_func, fullgraph=True, backend="aot_eager")
    got = call(q, k, v, causal=True, window_size=(None, None), pack_gqa=False, return_lse=True)
    assert all(map(torch.equal, got, want))


def test_compiled_calls_split_and_scale():
    q, caches, _ = quantised()
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
