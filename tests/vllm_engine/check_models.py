"""Models in vLLM's engine with our attention: what they generate is what they generate with vLLM's own, and Transformers'."""

import importlib

import engine as e
import pytest
import torch
from vllm import __version__ as version
from xeflash.integrations import _vllm_rows, vllm_backend
from xeflash.selftest.attention.nibbles import packed, unpacked


def own_is_broken(name):
    """CPU_ATTN took sinks of bf16 only, and raises in a model of fp32."""
    return name == "gpt_oss" and e.VERSION < (0, 31)


@pytest.mark.parametrize("name", e.MODELS)
def test_tokens_are_those_of_vllms_attention_and_of_transformers(name, folder, stock):
    with e.engine(
        e.saved(name, folder), attention_backend="CUSTOM", max_logprobs=e.FULL, max_num_batched_tokens=48, block_size=32
    ) as (made, steps):
        got = e.generate(made, e.prompts(), logprobs=e.FULL)
        batches, calls = steps.batches[:], steps.calls
        common = e.prompts((3, 20), common=70)
        first, again = e.generate(made, common), e.generate(made, common)
    from_eager = e.largest(e.logits(got), e.eager(name, got))
    assert from_eager < (10 * e.EXACT if name == "bloom" else e.EXACT)  # vLLM's Bloom has the exact gelu
    assert e.tokens(got) == [row.argmax(-1).tolist() for row in e.eager(name, got)]
    if not own_is_broken(name):
        assert e.tokens(got) == e.tokens(stock(name))
        assert e.largest(e.logits(got), e.logits(stock(name))) < e.EXACT
    own = (
        "vLLM's own fails"
        if own_is_broken(name)
        else f"{e.largest(e.logits(got), e.logits(stock(name))):.1e} from its own"
    )
    count = sum(map(len, e.tokens(got)))
    print(f"vLLM {version}, {name}: {count} tokens equal; log probabilities {own}, {from_eager:.1e} from Transformers'")
    assert calls and calls % 2 == 0  # a layer each
    assert any(n > 1 and keys > n for batch in batches for n, keys in batch)  # a later chunk of a prompt
    assert any({n == 1 for n, _ in batch} == {True, False} for batch in batches)  # prefill and decode in one step
    assert e.tokens(first) == e.tokens(again)
    if name not in ("mistral", "gemma2", "gpt_oss"):  # of windows, vLLM keeps what the next token sees
        assert again[1].num_cached_tokens >= 64 and first[1].num_cached_tokens in (0, 64)


def test_pages_of_16_tokens_in_a_cache_that_does_not_hold_all(folder, stock):
    given = {
        "attention_backend": "CUSTOM",
        "block_size": 16,
        "num_gpu_blocks_override": 18,
        "max_num_batched_tokens": 64,
    }
    with e.engine(e.saved("llama", folder), **given) as (made, steps):
        got = e.generate(made, e.prompts())
    assert e.tokens(got) == e.tokens(stock("llama"))


def test_speculation_by_ngrams(folder, stock):
    asked = [prompt[:9] * 4 for prompt in e.prompts((9, 12, 20))]
    guess = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    given = {"attention_backend": "CUSTOM", "speculative_config": guess}
    if e.VERSION == (0, 30):  # its sampler needs triton, whatever the attention
        with pytest.raises(TypeError, match="Cannot inspect kernel parameters"):
            stock("llama", asked=asked, speculative_config=guess)
        return
    want = stock("llama", asked=asked)
    with e.engine(e.saved("llama", folder), **given) as (made, steps):
        got = e.generate(made, asked)
    assert e.tokens(got) == e.tokens(want)
    assert any(1 < n <= 4 and keys > 36 for batch in steps.batches for n, keys in batch)  # guesses are verified


@pytest.mark.parametrize("name, compiler", [("llama", "eager"), ("gpt_oss", "eager"), ("llama", "inductor")])
def test_compiled_model(name, compiler, folder, stock, monkeypatch):
    """Dynamo's graph, run by torch's operators or by what inductor makes of it."""
    monkeypatch.setenv("VLLM_CPU_CI_ENV", str(int(compiler == "eager")))
    compiled, compile_fx = [], importlib.import_module("torch._inductor.compile_fx").compile_fx

    def noted(module, *given, **named):
        compiled.append(str(module.code))
        return compile_fx(module, *given, **named)

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", noted)
    given = {"attention_backend": "CUSTOM", "max_logprobs": e.FULL}
    with e.engine(e.saved(name, folder), enforce_eager=False, **given) as (made, steps):
        config = made.llm_engine.vllm_config.compilation_config
        got = e.generate(made, e.prompts(), logprobs=e.FULL)
    attention_graphs = [code for code in compiled if "attention" in code]  # not the ranks of log probabilities
    assert config.backend == compiler and bool(attention_graphs) == (compiler == "inductor")
    assert steps.calls and e.largest(e.logits(got), e.eager(name, got)) < e.EXACT
    assert e.tokens(got) == [row.argmax(-1).tolist() for row in e.eager(name, got)]


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.wide)])
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_errors_of_rounding_are_no_larger_than_vllms(name, dtype, folder, stock):
    with e.engine(e.saved(name, folder), attention_backend="CUSTOM", max_logprobs=e.FULL, dtype=dtype) as (made, steps):
        got = e.generate(made, e.prompts(), logprobs=e.FULL)
    mine, theirs = e.error(got, stock(name)), e.error(stock(name, dtype=dtype), stock(name))
    print(f"vLLM {version}, {name} in {dtype}: our errors {mine:.2e}, its own {theirs:.2e}")
    assert steps.calls and mine < 1.5 * theirs


def errors(name, got, quantised, monkeypatch):
    """Distances of log probabilities: ours from those with quantised keys and values, and these from exact ones."""
    unrounded = e.eager(name, got)
    modeling = importlib.import_module(type(e.model(name)).__module__)
    plainly = modeling.eager_attention_forward

    def attention(module, query, key, value, *more, **named):
        return plainly(module, query, *quantised(module.layer_idx, key, value), *more, **named)

    monkeypatch.setattr(modeling, "eager_attention_forward", attention)
    want = e.eager(name, got)

    def distance(a, b):
        return (torch.cat(a) - torch.cat(b)).square().mean().sqrt().item()

    mine, rounding = distance(e.logits(got), want), distance(want, unrounded)
    print(f"vLLM {version}, {name}: {mine:.1e} from a quantised cache, whose errors are {rounding:.1e}")
    return mine, rounding


EIGHT_BITS = {"fp8": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


@pytest.mark.parametrize(
    ("name", "cache"), [("llama", "fp8"), pytest.param("gemma2", "fp8_e5m2", marks=pytest.mark.wide)]
)
def test_cache_in_eight_bits_does_what_rounded_keys_and_values_do(name, cache, folder, monkeypatch):
    """In a model of fp32. vLLM's own attention has such caches on CPUs with AVX-512 only; we have them on all."""
    with e.engine(e.saved(name, folder), attention_backend="CUSTOM", max_logprobs=e.FULL, kv_cache_dtype=cache) as (
        made,
        steps,
    ):
        got = e.generate(made, e.prompts(), logprobs=e.FULL)
    mine, rounding = errors(name, got, lambda layer, *kv: [x.to(EIGHT_BITS[cache]).float() for x in kv], monkeypatch)
    assert steps.calls and mine < 0.1 * rounding


@pytest.mark.wide
@pytest.mark.skipif(
    _vllm_rows.K8V4 not in vllm_backend.XeflashBackend.supported_kv_cache_dtypes, reason="vLLM has no room for scales"
)
@pytest.mark.parametrize(
    ("cache", "dtype", "most"), [(_vllm_rows.K8V4, "float16", 0.5), ("int8_per_token_head", "float32", 0.1)]
)
def test_cache_with_scales_of_tokens_does_what_rounded_keys_and_values_do(cache, dtype, most, folder, monkeypatch):
    """vLLM keeps the first and last two layers from k8v4. fp16 moves some values by a step."""
    given = {"attention_backend": "CUSTOM", "dtype": dtype, "kv_cache_dtype": cache}
    with e.engine(e.saved("deep", folder), max_logprobs=e.FULL, **given) as (made, steps):
        got = e.generate(made, e.prompts(), logprobs=e.FULL)

    def rounded(x):
        scale = x.abs().amax(-1, keepdim=True) / 127
        return (x / scale).round() * scale

    def quantised(layer, key, value):
        if cache != _vllm_rows.K8V4:
            return rounded(key), rounded(value)
        if layer not in (2, 3):
            return key, value
        return rounded(key), torch.from_numpy(unpacked(*packed(value.numpy()))).float()

    mine, rounding = errors("deep", got, quantised, monkeypatch)
    assert steps.calls and mine < most * rounding
