"""Every causal language model of Transformers that looks for a registered attention, with ours and with its own.

The default set has a sample; `-m wide` has the others. A family that no tiny model is made of
is skipped with the reason, and so is one whose layers have an attention of their own.
"""

import random

import pytest
import torch
import transformers
from cover import few
from families import FAMILIES, NotTiny, takes_attention, tiny
from labelled import step
from tiny_models import given_cache, prompts, random_weights
from xeflash.integrations.transformers import NAME, XeCache, attention_function, mask_function, register

register()

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

ALWAYS = ("deepseek_v4", "deepseek_v32")  # layers extend masks, and pick keys
SAMPLED = 12
TOKENS = 5
CACHES_OF_THEIR_OWN = {
    "deepseek_v4": (NotImplementedError, "got compressed_sparse_attention. Use DynamicCache"),
    "minimax": (ValueError, "MiniMax uses cache of its own"),
}


def pytest_generate_tests(metafunc):
    if "family" not in metafunc.fixturenames:
        return
    drawn = random.Random("families").sample(FAMILIES, SAMPLED)
    metafunc.parametrize("family", few(FAMILIES, *drawn, *ALWAYS))


@pytest.fixture
def model(family):
    try:
        made = tiny(family)
    except NotTiny as why:
        pytest.skip(f"{family}: {why}")
    if not takes_attention(made):
        pytest.skip("it has an attention of its own")
    if not (made._supports_attention_backend or made._supports_sdpa):
        pytest.skip(f"{family}: Transformers has it work with eager attention alone")
    made.set_attn_implementation("eager")
    return random_weights(made)


@pytest.fixture
def calls(monkeypatch):
    """Those of our attention."""
    seen = []

    def counted(*arguments, **named):
        seen.append(0)
        return attention_function(*arguments, **named)

    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, NAME, counted)
    return seen


def assert_near(got, want):
    """To what rounding in fp32 leaves of a few layers."""
    torch.testing.assert_close(got, want, rtol=0, atol=1e-4 * max(1.0, float(want.abs().max())))


def test_logits(model, calls):
    inputs = prompts(padded=True)
    visible = inputs["attention_mask"].bool()
    with torch.no_grad():
        want = model(**inputs, use_cache=False).logits[visible]
        model.set_attn_implementation(NAME)
        got = model(**inputs, use_cache=False).logits[visible]
    assert calls
    assert_near(got, want)


@pytest.mark.parametrize("cache", ["dynamic", "xe"])
def test_tokens(family, model, calls, cache):
    options = {**prompts(padded=True), "do_sample": False, "min_new_tokens": TOKENS, "max_new_tokens": TOKENS}
    options |= {"use_cache": True, "output_logits": True, "return_dict_in_generate": True}
    if family == "dory":
        pytest.skip("dory: with eager attention it does not generate from left padding")
    want = model.generate(**options)
    model.set_attn_implementation(NAME)
    if cache == "xe":
        if family in CACHES_OF_THEIR_OWN:
            error, words = CACHES_OF_THEIR_OWN[family]
            with pytest.raises(error, match=words):
                model.generate(**options, **given_cache(XeCache(model.config)))
            return
        options |= given_cache(XeCache(model.config))
    got = model.generate(**options)
    assert calls
    assert torch.equal(got.sequences, want.sequences), f"{got.sequences}\n{want.sequences}"
    assert_near(torch.stack(got.logits), torch.stack(want.logits))


def test_training_step(model, calls):
    model.train()
    inputs = prompts(padded=True)
    # On the right: derivatives of what is 0 after a query that sees nothing are not finite in gemma3n.
    inputs = {name: x.flip(1) for name, x in inputs.items()}
    inputs["labels"] = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    want, own = step(model, inputs, use_cache=False)
    own = {name: x.clone() for name, x in own.items()}
    model.set_attn_implementation(NAME)
    got, grads = step(model, inputs, use_cache=False)
    assert calls
    assert_near(got.loss, want.loss)
    assert list(grads) == list(own)
    largest = max(float(x.abs().max()) for x in own.values())
    for name, x in own.items():
        assert float((grads[name] - x).abs().max()) <= 1e-4 * max(float(x.abs().max()), 1e-2 * largest), name


@pytest.mark.parametrize("kind", ["beams", "8 bits"])
def test_cache_of_sparse_attention(kind):
    model = random_weights(tiny("deepseek_v32")).eval()
    model.set_attn_implementation("eager")
    options = {**prompts(padded=True), "do_sample": False, "num_beams": 3, "max_new_tokens": TOKENS, "use_cache": True}
    want = model.generate(**options)
    model.set_attn_implementation(NAME)
    if kind == "beams":
        assert torch.equal(model.generate(**options, **given_cache(XeCache(model.config))), want)
    else:
        with pytest.raises(NotImplementedError, match="XeCache: dtype must be None with layers of indexed_attention"):
            XeCache(model.config, dtype=torch.int8)


@pytest.mark.wide
@pytest.mark.gpu
@pytest.mark.xpu
def test_sparse_attention_on_gpu(xpu):
    model = random_weights(tiny("deepseek_v32")).eval()
    model.set_attn_implementation("eager")
    options = {**prompts(), "do_sample": False, "max_new_tokens": 3, "use_cache": True}
    want = model.generate(**options)
    model.set_attn_implementation(NAME)
    options |= {name: options[name].to("xpu") for name in ("input_ids", "attention_mask")}
    assert torch.equal(model.to("xpu").generate(**options).cpu(), want)


@pytest.mark.parametrize("padded", [False, True])
def test_chunks_of_a_prompt_are_documents(padded, monkeypatch):
    """A mask of numbers, where nothing is padded; then decoding from what is cached."""
    model = random_weights(tiny("llama4_text")).eval()
    model.set_attn_implementation("eager")
    options = {**prompts(padded=padded), "do_sample": False, "max_new_tokens": TOKENS, "use_cache": True}
    want = model.generate(**options)
    model.set_attn_implementation(NAME)
    seen = []

    def watched(*arguments, **named):
        seen.append(mask_function(*arguments, **named))
        return seen[-1]

    monkeypatch.setitem(transformers.AttentionMaskInterface._global_mapping, NAME, watched)
    assert torch.equal(model.generate(**options), want)
    assert any(x is not None and x.dtype is torch.int32 for x in seen) != padded
