"""Documents that share a row do not see each other, however Transformers says where they begin."""

import packed
import pytest
import torch
import transformers
from cover import few
from packed import IDS, ONES, POSITIONS, alone, check, collated
from tiny_models import DECODERS, SHAPE, LargestResult, decoder, given_cache, prompts
from xeflash.integrations import _documents
from xeflash.integrations.transformers import NAME, XeCache, attention_function, register

register()


def together(model, **how):
    return packed.together(model, NAME, **how)


WAYS = [{"attention_mask": mask, "use_cache": cache} for mask in (None, ONES) for cache in (False, True)]


@pytest.mark.parametrize("name", few(DECODERS, "llama", "mistral", "gpt_oss", "gemma2"))
def test_each_document_gives_what_it_gives_alone(name):
    model = decoder(name)
    want = alone(model)
    for how in WAYS:
        check(together(model, position_ids=POSITIONS, **how), want)


def test_with_an_xe_cache():
    model = decoder("llama")
    want = alone(model)[0]
    model.set_attn_implementation(NAME)
    for mask in (None, ONES):
        with torch.no_grad():
            cache = XeCache(model.config)
            got = model(IDS, attention_mask=mask, position_ids=POSITIONS, **given_cache(cache)).logits
        torch.testing.assert_close(got.flatten(0, 1), want, atol=2e-5, rtol=1e-4)
        assert cache.get_seq_length() == 13


def test_rows_of_one_position_each_and_positions_of_one_row():
    model = decoder("llama")
    check(together(model, rows=[0], position_ids=POSITIONS[:1], attention_mask=None), alone(model, rows=[0]))
    model.set_attn_implementation(NAME)
    with torch.no_grad():
        want = model(IDS[:, :5], position_ids=POSITIONS[:, :5].clone().fill_(0), use_cache=False).logits
        got = torch.cat(
            [model(IDS[:, i : i + 1], position_ids=POSITIONS[:, :1], use_cache=False).logits for i in range(5)], 1
        )
        torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)  # five documents of a token
        same = model(IDS, position_ids=POSITIONS[:1], use_cache=False).logits
        each = model(IDS, position_ids=POSITIONS[[0, 0]], use_cache=False).logits
    assert torch.equal(same, each)


def test_padding_behind_documents():
    model = decoder("llama")
    want = alone(model, rows=[0])[0]
    mask = torch.cat([ONES[:1], 0 * ONES[:1, :4]], 1)
    ids, positions = (torch.cat([x[:1], 0 * x[:1, :4]], 1) for x in (IDS, POSITIONS))
    model.set_attn_implementation(NAME)
    with torch.no_grad():
        got = model(ids, attention_mask=mask, position_ids=positions).logits
    torch.testing.assert_close(got[0, :13], want, atol=2e-5, rtol=1e-4)


def looks(monkeypatch):
    """What was looked into, a call after the other."""
    seen, look = [], _documents._find
    monkeypatch.setattr(_documents, "_find", lambda *given: seen.append(given[0]) or look(*given))
    return seen


def test_a_forward_pass_looks_into_positions_once(monkeypatch):
    model, seen = decoder("llama", implementation=NAME, num_hidden_layers=5), looks(monkeypatch)
    positions = torch.arange(13)[None]
    for changed in range(2):
        model(IDS, attention_mask=ONES, position_ids=positions, use_cache=False)
        assert len(seen) == 1 + changed
        positions.copy_(POSITIONS[:1])  # in place: they are other positions then
    with torch.inference_mode():
        model(IDS, position_ids=torch.arange(13)[None], use_cache=False)
    assert len(seen) == 2 + 5  # nothing tells whether tensors of inference mode were changed


def test_decode_does_not_look(monkeypatch):
    seen = looks(monkeypatch)
    for cache in ({}, {"cache_implementation": "static", "disable_compile": True}):
        model = decoder("llama", implementation=NAME)
        model.generate(IDS, attention_mask=ONES, max_new_tokens=4, min_new_tokens=4, do_sample=False, **cache)
        assert len(seen) <= 1  # at the prompt
        seen.clear()


def test_more_tokens_after_a_cache_are_one_document():
    model = decoder("llama", implementation=NAME)
    with torch.no_grad():
        whole = model(IDS, use_cache=False).logits
        cache = transformers.DynamicCache(config=model.config)
        model(IDS[:, :6], **given_cache(cache))
        rest = model(IDS[:, 6:], position_ids=torch.arange(6, 13)[None], **given_cache(cache)).logits
    torch.testing.assert_close(rest, whole[:, 6:], atol=2e-5, rtol=1e-4)


def test_no_mask_of_queries_by_keys():
    model = decoder("mistral", implementation=NAME, num_hidden_layers=1, max_position_embeddings=8192)
    ids = prompts(1, 8192)["input_ids"]
    positions = torch.cat([torch.arange(5000), torch.arange(3192)])[None]
    for mask in (None, torch.ones_like(ids)):
        with torch.no_grad(), LargestResult() as watched:
            model(ids, attention_mask=mask, position_ids=positions, use_cache=False, logits_to_keep=1)
        assert watched.elements <= 8192 * SHAPE["hidden_size"]


# ---- cu_seq_lens --------------------------------------------------------------------------------


GPU_TESTS = ("passes[llama-xpu]",)


@pytest.mark.parametrize("place", ["cpu", pytest.param("xpu", marks=[pytest.mark.gpu, pytest.mark.xpu])])
@pytest.mark.parametrize("name", few(["llama", "gpt_oss"], "llama"))
def test_what_the_collator_without_padding_passes(request, name, place):
    if place == "xpu":
        request.getfixturevalue("xpu")
    model, want = decoder(name).to(place), alone(decoder(name))
    given = collated()
    check(together(model, shape=(1, 26), **given), want)
    del given["max_length_q"], given["max_length_k"]  # they are computed
    check(together(model, shape=(1, 26), **given), want)


def states(rows=1, queries=13, keys=13):
    shapes = ((rows, 4, queries, 64), (rows, 2, keys, 64), (rows, 2, keys, 64))
    return tuple(torch.randn(*shape, generator=torch.Generator().manual_seed(5)) for shape in shapes)


def test_cu_seq_lens_beside_masks_and_biases():
    module, (q, k, v) = torch.nn.Module(), states()
    starts = torch.tensor([0, 5, 13], dtype=torch.int32)
    cu = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts.clone(), "max_length_q": 8, "max_length_k": 8}
    alike = torch.block_diag(torch.ones(5, 5), torch.ones(8, 8)).bool()
    causal = alike.tril()
    padding = torch.ones(1, 13, dtype=torch.bool)
    padding[0, :2] = False
    bias = torch.randn(1, 4, 13, 13)
    additive = torch.randn(1, 1, 13, 13)

    def check(mask, want, **more):
        out, _ = attention_function(module, q, k, v, mask, **cu, **more)
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, want, enable_gqa=True).nan_to_num(0)
        torch.testing.assert_close(out, want.transpose(1, 2), atol=2e-5, rtol=1e-4)

    check(None, causal)
    check(None, alike, is_causal=False)
    check(padding, causal & padding[:, None, None])
    check(torch.ones(1, 1, 13, 13, dtype=torch.bool).tril(), causal)
    check(additive, additive.masked_fill(~alike, -torch.inf))
    check(None, bias.masked_fill(~causal, -torch.inf), position_bias=bias)


def test_queries_and_keys_of_other_lengths():
    q, k, v = states(queries=7, keys=13)
    cu = {"cu_seq_lens_q": torch.tensor([0, 3, 7]), "cu_seq_lens_k": torch.tensor([0, 5, 13])}
    out, _ = attention_function(torch.nn.Module(), q, k, v, None, is_causal=False, **cu)
    alike = torch.block_diag(torch.ones(3, 5), torch.ones(4, 8)).bool()
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, alike, enable_gqa=True)
    torch.testing.assert_close(out, want.transpose(1, 2), atol=2e-5, rtol=1e-4)
    with pytest.raises(NotImplementedError, match=r"must be equal where padding .* hides keys, got \[0, 3, 7\] and"):
        attention_function(torch.nn.Module(), q, k, v, None, position_bias=torch.zeros(1, 4, 7, 13), **cu)


@pytest.mark.parametrize("name", ["cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"])
def test_half_of_them_is_refused(name):
    with pytest.raises(ValueError, match=f"xe_attention: {name} must come with both cu_seq_lens_q and cu_seq_lens_k"):
        attention_function(torch.nn.Module(), *states(), None, **{name: torch.tensor([0, 13])})


# ---- compiled -----------------------------------------------------------------------------------


def test_compiled():
    torch._dynamo.reset()
    model = decoder("llama", implementation=NAME)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for mask in (None, ONES):
        with torch.no_grad():
            want = model(IDS, attention_mask=mask, position_ids=POSITIONS, use_cache=False).logits
            got = compiled(IDS, attention_mask=mask, position_ids=POSITIONS, use_cache=False).logits
        torch.testing.assert_close(got, want, atol=2e-5, rtol=1e-4)


def test_compiled_training_with_what_the_collator_passes():
    torch._dynamo.reset()
    q, k, v = (x.requires_grad_() for x in states())
    starts = torch.tensor([0, 5, 13], dtype=torch.int32)
    cu = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": 8, "max_length_k": 8}

    def call(*given):
        return attention_function(torch.nn.Module(), *given, None, **cu)[0]

    out = call(q, k, v)
    dout = torch.randn_like(out)
    want = torch.autograd.grad(out, (q, k, v), dout)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")(q, k, v)
    torch.testing.assert_close(compiled, out)
    for x, y in zip(torch.autograd.grad(compiled, (q, k, v), dout), want, strict=True):
        torch.testing.assert_close(x, y)


def test_compiled_layers_take_the_numbers_of_a_mask():
    torch._dynamo.reset()
    q, k, v = states(rows=2)
    numbers = torch.tensor([[4] * 5 + [5] * 8, [0] * 3 + [1] + [2] * 9], dtype=torch.int32)

    def call(*given):
        return attention_function(torch.nn.Module(), *given)[0]

    want = call(q, k, v, numbers)
    got = torch.compile(call, fullgraph=True, backend="aot_eager")(q, k, v, numbers)
    torch.testing.assert_close(got, want)
    first = call(q[:1, :, :5], k[:1, :, :5], v[:1, :, :5], None)
    torch.testing.assert_close(first, want[:1, :5])
