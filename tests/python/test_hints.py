"""Errors end with what the caller meant, or with what makes the argument one that is taken: then the call works."""

import inspect

import numpy as np
import pytest
import torch
import xeflash
from xeflash.call.call import Call
from xeflash.call.hints import add_hint

STARTS = torch.tensor([0, 5, 9], dtype=torch.int32)
Q, K = torch.randn(2, 8, 7, 64), torch.randn(2, 8, 9, 64)  # (batch, heads, length, head_dim)
PUBLIC = [name for name in xeflash.__all__ if hasattr(getattr(xeflash, name), "body")]

WORDS = {
    "flash_attn_func": {
        "is_causal": "did you mean causal?",
        "scale": "did you mean softmax_scale?",
        "windows_size": "did you mean window_size?",
        "query": "did you mean q?",
        "attention_mask": "attention takes attn_mask, and flash_attn_varlen_func takes sequences without padding",
        "key_padding_mask": "attention takes it as attn_mask[:, None, None, :], True where there is a token, "
        "and flash_attn_varlen_func takes sequences without padding",
        "cu_seqlens_k": "flash_attn_varlen_func takes packed sequences",
        "max_seqlen_q": "flash_attn_varlen_func takes packed sequences",
        "position_ids": "document_ids of flash_attn_func, and cu_seqlens_q and cu_seqlens_k of flash_attn_varlen_func, "
        "keep documents apart",
        "enable_gqa": "k and v may have fewer heads than q without it",
    },
    "attention": {
        "causal": "did you mean is_causal?",
        "softmax_scale": "did you mean scale?",
        "attention_mask": "did you mean attn_mask?",
        "return_attn_probs": "did you mean return_lse?",
    },
    "flash_attn_varlen_func": {
        "document_ids": "flash_attn_varlen_func takes documents as sequences",
        "cu_seqlens": "did you mean cu_seqlens_q?",
    },
    "flash_attn_varlen_qkvpacked_func": {"max_seqlen_q": "did you mean max_seqlen?"},
    "flash_attn_kvpacked_func": {
        "score_mod": "flash_attn_func and attention take it",
        "block_mask": "flash_attn_func and attention take it",
    },
    "linear": {"wieght": "did you mean weight?"},
    "linear_cross_entropy": {"labels": "did you mean target?"},
    "sample": {"temp": "did you mean temperature?"},
}


@pytest.mark.parametrize(("name", "word"), [(name, word) for name, words in WORDS.items() for word in words])
def test_an_unknown_word(name, word):
    with pytest.raises(TypeError) as refused:
        getattr(xeflash, name)(**{word: 1})
    assert str(refused.value) == f"{name}: unexpected keyword argument {word}; {WORDS[name][word]}"


@pytest.mark.parametrize("name", PUBLIC)
def test_a_letter_too_many_in_every_word(name):
    assert len(PUBLIC) > 12
    own = [x for x in inspect.signature(getattr(xeflash, name)).parameters if len(x) > 2]
    for word in own:
        with pytest.raises(TypeError, match=f"^{name}: unexpected keyword argument {word}e; did you mean {word}?"):
            getattr(xeflash, name)(**{f"{word}e": 1})
    with pytest.raises(TypeError, match=f"^{name}: unexpected keyword argument colour$"):
        getattr(xeflash, name)(colour=1)


def call(name, *arguments, **named):
    """Returns the function and its arguments by name."""
    function = getattr(xeflash, name)
    return function, inspect.signature(function).bind(*arguments, **named).arguments


def packed(starts, more=(), **named):
    x = torch.randn(9, 2, 64)
    return call("flash_attn_varlen_func", x, x, x, starts, starts, 5, 5, *more, **named)


def cached(**named):
    q, cache = torch.randn(2, 1, 4, 64), torch.randn(2, 16, 4, 64)
    return call("flash_attn_with_kvcache", q, cache, cache, **named)


def masked(mask):
    return call("attention", Q, K, K, mask)


# The call, the argument, and the hint, which is what to give in its place.
FIXED = [
    (packed(STARTS.long()), "cu_seqlens_q", "cu_seqlens_q.int()"),
    (packed(STARTS[None]), "cu_seqlens_q", "cu_seqlens_q.flatten()"),
    (packed(STARTS.repeat_interleave(2)[::2]), "cu_seqlens_q", "cu_seqlens_q.contiguous()"),
    (call("flash_attn_varlen_qkvpacked_func", torch.randn(9, 3, 2, 64), STARTS, 5.0), "max_seqlen", "int(max_seqlen)"),
    (packed([0, 5, 9]), "cu_seqlens_q", "torch.tensor(cu_seqlens_q, dtype=torch.int32, device=q.device)"),
    (packed(STARTS, seqused_k=[4, 4]), "seqused_k", "torch.tensor(seqused_k, dtype=torch.int32, device=q.device)"),
    (packed(STARTS, seqused_q=torch.tensor([4, 4])), "seqused_q", "seqused_q.int()"),
    (
        call("flash_attn_varlen_qkvpacked_func", torch.randn(9, 3, 2, 64), STARTS.long(), 5),
        "cu_seqlens",
        "cu_seqlens.int()",
    ),
    (cached(cache_seqlens=torch.tensor([3, 4])), "cache_seqlens", "cache_seqlens.int()"),
    (cached(block_table=torch.tensor([[0], [1]])), "block_table", "block_table.int()"),
    (masked(torch.ones(2, 9, dtype=torch.bool)), "attn_mask", "attn_mask[:, None, None, :]"),
    (masked(torch.ones(2, 9, dtype=torch.int64)), "attn_mask", "attn_mask.bool()[:, None, None, :]"),
    (masked(torch.ones(2, 7, 9)), "attn_mask", "attn_mask[:, None]"),
    (masked(torch.ones(7, 9, dtype=torch.float64)), "attn_mask", "attn_mask.to(query.dtype)"),
    (call("flash_attn_func", *[Q] * 3, alibi_slopes=torch.ones(7).half()), "alibi_slopes", "alibi_slopes.float()"),
    (
        call("flash_attn_func", *[Q] * 3, alibi_slopes=[0.5] * 7),
        "alibi_slopes",
        "torch.tensor(alibi_slopes, dtype=torch.float32, device=q.device)",
    ),
    (call("flash_attn_func", Q, Q.half(), Q), "k", "k.to(q.dtype)"),
    (call("flash_attn_func", *[Q] * 3, causal=torch.tensor(True)), "causal", "bool(causal)"),
    (call("flash_attn_qkvpacked_func", torch.randn(1, 5, 3, 2, 64).double()), "qkv", "qkv.float()"),
    (call("attention", Q, K, K.bfloat16()), "value", "value.to(query.dtype)"),
    (call("linear", Q[0, 0], torch.randn(64, 5)), "weight", "weight.T.contiguous()"),
]


@pytest.mark.parametrize(("made", "argument", "hint"), FIXED, ids=[f"{x[0][0].__name__}-{x[2]}" for x in FIXED])
def test_with_the_hint_the_call_works(made, argument, hint):
    function, given = made
    with pytest.raises((TypeError, ValueError), match=f"^{function.__name__}: {argument} must") as refused:
        function(**given)
    assert str(refused.value).endswith(f"; use {hint}")
    given = {name: eval(hint, {"torch": torch, **given}) if x is given[argument] else x for name, x in given.items()}
    function(**given)


def test_heads_and_rows_in_the_other_order():
    for name, x, y in (("flash_attn_func", Q, K), ("attention", Q.swapaxes(1, 2), K.swapaxes(1, 2))):
        order = "(batch, heads, length, head_dim)" if x is Q else "(batch, length, heads, head_dim)"
        with pytest.raises(ValueError) as refused:
            getattr(xeflash, name)(x, y, y)
        assert str(refused.value).endswith(f"; use .swapaxes(1, 2) if the order is {order}")
        getattr(xeflash, name)(*(z.swapaxes(1, 2) for z in (x, y, y)))
    with pytest.raises(ValueError, match=r"k.shape = \[2, 64, 3, 64\]$"):  # the other order would be no better
        xeflash.flash_attn_func(torch.randn(2, 64, 4, 64), *[torch.randn(2, 64, 3, 64)] * 2)


def test_other_hints():
    x, starts = np.ones((9, 2, 64), np.float32), np.array([0, 9])
    with pytest.raises(TypeError, match=r"; use cu_seqlens_q.astype\(np.int32\)$"):
        xeflash.flash_attn_varlen_func(x, x, x, starts, starts, 9, 9)
    with pytest.raises(
        ValueError, match=r"; use torch.nn.functional.pad\(lengths.cumsum\(0, .* for the starts of lengths$"
    ):
        xeflash.flash_attn_varlen_func(*[torch.ones(9, 2, 64)] * 3, STARTS[1:], STARTS[1:], 9, 9)
    with pytest.raises(ValueError, match=r"; use q.flatten\(0, 1\)$"):
        xeflash.flash_attn_varlen_func(Q, Q, Q, STARTS, STARTS, 5, 5)
    with pytest.raises(ValueError, match=r"; use q\[None\], or flash_attn_varlen_func for packed sequences$"):
        xeflash.flash_attn_func(Q[0], Q, Q)
    with pytest.raises(TypeError, match=r"; use q.to\(k_cache.dtype\)$"):  # the caller's cache takes the new keys
        xeflash.flash_attn_with_kvcache(Q, K.half(), K.half())
    for caches in ((K, K.half()), (K.double(), K.double())):  # there is no dtype that q could have
        with pytest.raises(TypeError, match=r"_cache.shape = \[2, 8, 9, 64\]$"):
            xeflash.flash_attn_with_kvcache(Q, *caches)
    with pytest.raises(TypeError, match=r"max_seqlen_q must be an integer, got 5.5 \(float\)$"):
        xeflash.flash_attn_varlen_func(*[x] * 3, STARTS.numpy(), STARTS.numpy(), 5.5, 5)
    with pytest.raises(ValueError, match='; use b_layout="kn"$'):
        xeflash.matmul_softmax(torch.randn(3, 64), torch.randn(64, 5))
    with pytest.raises(ValueError, match=r"; use q_scale.to\(q.device\)$"):
        keys = torch.randn(2, 8, 2, 64).to(torch.float8_e4m3fn)
        xeflash.flash_attn_func(keys, keys, keys, q_scale=torch.ones(2, 2, device="meta"))
    with pytest.raises(TypeError, match="got list$"):  # integers are no queries
        xeflash.flash_attn_func([1], Q, Q)


def test_compiled_calls_keep_the_error():
    calls = [
        lambda x: xeflash.attention(x, x, x, gather_kv_indices=torch.zeros(2, 7, 3, dtype=torch.int64)),
        lambda x: xeflash.attention(x, x, x, causal=True),
    ]
    for call, text in zip(
        calls, ["gather_kv_indices must be int32, got torch.int64", "argument causal; did"], strict=True
    ):
        with pytest.raises(Exception, match=text) as refused:
            torch.compile(call, fullgraph=True, backend="eager")(Q)
        assert "assignment" not in str(refused.value)  # of a hint, which torch's compiler cannot trace


def test_rows_of_padding_are_a_sequence_of_their_own():
    x = torch.randn(12, 2, 64, requires_grad=True)
    with pytest.raises(ValueError, match="; use a last sequence for the rows of padding$"):
        xeflash.flash_attn_varlen_func(x, x, x, STARTS, STARTS, 5, 5)
    padded = torch.cat([STARTS, STARTS.new_tensor([12])])
    out = xeflash.flash_attn_varlen_func(x, x, x, padded, padded, 5, 5)
    torch.testing.assert_close(out[:9], xeflash.flash_attn_varlen_func(*[x[:9]] * 3, STARTS, STARTS, 5, 5))
    out[:9].sum().backward()
    assert x.grad[:9].all() and not x.grad[9:].any()
    with pytest.raises(ValueError, match=r"shape = \[3\]$"):
        xeflash.flash_attn_varlen_func(*[x[:8]] * 3, STARTS, STARTS, 5, 5)


def test_no_hint_makes_a_copy_of_what_is_written():
    error = ValueError("flash_attn_func: out must be on the device of q (xpu:0), got cpu")
    add_hint(Call({"function": "flash_attn_func", "q": Q, "out": Q}), error)
    assert str(error).endswith("got cpu")


def test_a_hint_never_takes_the_place_of_the_error():
    error = ValueError("attention: attn_mask must broadcast, got an odd one")
    add_hint(Call({"function": "attention", "attn_mask": 1}), error)  # there is no q to read
    assert error.args == ("attention: attn_mask must broadcast, got an odd one",)
