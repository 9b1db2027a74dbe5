"""Models in vLLM's engine with our attention: what they generate is what they generate with vLLM's own, and Transformers'."""

import importlib
import re

import engine as e
import pytest
import tiny_models
import torch
from vllm import __version__ as version

EXACT = 2e-4  # of log probabilities, in fp32, for sums in another order
FULL = -1  # log probabilities of all tokens
VERSION = tuple(map(int, re.match(r"(\d+)\.(\d+)", version).groups()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def stock(folder):
    """What vLLM generates with an attention backend of its own, by model and arguments."""
    known = {}

    def run(name, backend="CPU_ATTN", asked=None, **given):
        key = (name, backend, str(asked), str(given))
        if key not in known:
            with e.engine(e.saved(name, folder), attention_backend=backend, max_logprobs=FULL, **given) as (
                made,
                steps,
            ):
                known[key] = e.generate(made, asked or e.prompts(), logprobs=FULL)
                assert not steps.calls
        return known[key]

    return run


def logits(results):
    """Log probabilities of all tokens where one was generated, a tensor (tokens, vocabulary) per prompt."""
    found = []
    for result in results:
        rows = [[row[i].logprob for i in range(tiny_models.VOCABULARY)] for row in result.outputs[0].logprobs]
        found.append(torch.tensor(rows))
    return found


def eager(name, results):
    """The same by Transformers, of what was generated."""
    model, found = e.model(name), []
    for result in results:
        ids = [*result.prompt_token_ids, *result.outputs[0].token_ids]
        with torch.no_grad():
            rows = model(torch.tensor([ids])).logits[0, -e.NEW - 1 : -1]
        found.append(rows.log_softmax(-1))
    return found


def largest(got, want):
    return max((a - b).abs().max().item() for a, b in zip(got, want, strict=True))


def own_is_broken(name):
    """CPU_ATTN took sinks of bf16 only, and raises in a model of fp32."""
    return name == "gpt_oss" and VERSION < (0, 31)


@pytest.mark.parametrize("name", e.MODELS)
def test_tokens_are_those_of_vllms_attention_and_of_transformers(name, folder, stock):
    with e.engine(
        e.saved(name, folder), attention_backend="CUSTOM", max_logprobs=FULL, max_num_batched_tokens=48, block_size=32
    ) as (made, steps):
        got = e.generate(made, e.prompts(), logprobs=FULL)
        batches, calls = steps.batches[:], steps.calls
        common = e.prompts((3, 20), common=70)
        first, again = e.generate(made, common), e.generate(made, common)
    from_eager = largest(logits(got), eager(name, got))
    assert from_eager < (10 * EXACT if name == "bloom" else EXACT)  # vLLM's Bloom has the exact gelu
    assert e.tokens(got) == [row.argmax(-1).tolist() for row in eager(name, got)]
    if not own_is_broken(name):
        assert e.tokens(got) == e.tokens(stock(name))
        assert largest(logits(got), logits(stock(name))) < EXACT
    own = "vLLM's own fails" if own_is_broken(name) else f"{largest(logits(got), logits(stock(name))):.1e} from its own"
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
    if VERSION == (0, 30):  # its sampler needs triton, whatever the attention
        with pytest.raises(TypeError, match="Cannot inspect kernel parameters"):
            stock("llama", asked=asked, speculative_config=guess)
        return
    want = stock("llama", asked=asked)
    with e.engine(e.saved("llama", folder), **given) as (made, steps):
        got = e.generate(made, asked)
    assert e.tokens(got) == e.tokens(want)
    assert any(1 < n <= 4 and keys > 36 for batch in steps.batches for n, keys in batch)  # guesses are verified


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_compiled_model(name, folder, stock, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_CI_ENV", "1")  # dynamo's graph, run by eager: inductor adds nothing about attention
    given = {"attention_backend": "CUSTOM", "max_logprobs": FULL}
    with e.engine(e.saved(name, folder), enforce_eager=False, **given) as (made, steps):
        got = e.generate(made, e.prompts(), logprobs=FULL)
    assert steps.calls and largest(logits(got), eager(name, got)) < EXACT
    assert e.tokens(got) == [row.argmax(-1).tolist() for row in eager(name, got)]


def error(results, exact):
    """Of log probabilities, up to the first token that is another."""
    total, rows = 0.0, 0
    for mine, good, a, b in zip(e.tokens(results), e.tokens(exact), logits(results), logits(exact), strict=True):
        same = next((i for i, (x, y) in enumerate(zip(mine, good, strict=True)) if x != y), e.NEW - 1) + 1
        total, rows = total + (a[:same] - b[:same]).square().mean(-1).sum().item(), rows + same
    return (total / rows) ** 0.5


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_errors_of_rounding_are_no_larger_than_vllms(name, dtype, folder, stock):
    with e.engine(e.saved(name, folder), attention_backend="CUSTOM", max_logprobs=FULL, dtype=dtype) as (made, steps):
        got = e.generate(made, e.prompts(), logprobs=FULL)
    mine, theirs = error(got, stock(name)), error(stock(name, dtype=dtype), stock(name))
    print(f"vLLM {version}, {name} in {dtype}: our errors {mine:.2e}, its own {theirs:.2e}")
    assert steps.calls and mine < 1.5 * theirs


EIGHT_BITS = {"fp8": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


@pytest.mark.parametrize("cache", EIGHT_BITS)
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_cache_in_eight_bits_does_what_rounded_keys_and_values_do(name, cache, folder, stock, monkeypatch):
    """In a model of fp32. vLLM's own attention has such caches on CPUs with AVX-512 only; we have them on all."""
    with e.engine(e.saved(name, folder), attention_backend="CUSTOM", max_logprobs=FULL, kv_cache_dtype=cache) as (
        made,
        steps,
    ):
        got = e.generate(made, e.prompts(), logprobs=FULL)

    def rounded(module, query, key, value, *more, **named):
        key, value = (x.to(EIGHT_BITS[cache]).float() for x in (key, value))
        return plainly(module, query, key, value, *more, **named)

    unrounded = eager(name, got)
    modeling = importlib.import_module(type(e.model(name)).__module__)
    plainly = modeling.eager_attention_forward
    monkeypatch.setattr(modeling, "eager_attention_forward", rounded)
    want = eager(name, got)

    def distance(a, b):
        return (torch.cat(a) - torch.cat(b)).square().mean().sqrt().item()

    mine, of_rounding = distance(logits(got), want), distance(want, unrounded)
    print(f"vLLM {version}, {name}, cache in {cache}: {mine:.1e} from rounded ones, whose errors are {of_rounding:.1e}")
    assert steps.calls and mine < 0.1 * of_rounding
