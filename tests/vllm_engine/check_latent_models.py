"""DeepSeek's models in vLLM's engine with our latent attention: tokens are those of vLLM's own, and of Transformers.

vLLM's own on CPUs has neither chunks of prompts nor cached prefixes; with ours, both are as in other models.
"""

import engine as e
import pytest
from vllm import __version__ as version
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from xeflash.integrations.vllm_mla import XeflashMLAMetadataBuilder

OURS = {"attention_backend": "CUSTOM", "max_logprobs": e.FULL, "compilation_config": e.NATIVE_ROPE}
CHUNKS = {"max_num_batched_tokens": 48, "block_size": 32}

served = pytest.mark.skipif(e.VERSION < (0, 29), reason="vLLM's layer has no prefill on CPUs")


@pytest.fixture(scope="module")
def own(stock):
    """What vLLM generates with its own latent attention."""
    return lambda name, **given: stock(name, "CPU_MLA", compilation_config=e.NATIVE_ROPE, **given)


def check(name, got, own):
    """Returns the largest differences of log probabilities to vLLM's own, and to Transformers'."""
    to_own, to_eager = e.largest(e.logits(got), e.logits(own(name))), e.largest(e.logits(got), e.eager(name, got))
    assert max(to_own, to_eager) < e.EXACT
    assert e.tokens(got) == e.tokens(own(name)) == [row.argmax(-1).tolist() for row in e.eager(name, got)]
    return to_own, to_eager


@pytest.mark.skipif(e.VERSION >= (0, 29), reason="it is served")
def test_older_versions_are_refused(folder):
    message = "CUSTOM cannot serve a layer of this model: MLA needs vLLM 0.29 or newer"
    with pytest.raises(ValueError, match=message), e.engine(e.saved("deepseek_v2", folder), **OURS):
        pass


@served
@pytest.mark.parametrize("name", e.LATENT_MODELS)
def test_tokens_are_those_of_vllms_attention_and_of_transformers(name, folder, own):
    with e.engine(e.saved(name, folder), **OURS, **CHUNKS) as (made, steps):
        config = made.llm_engine.vllm_config
        assert config.cache_config.block_size == 32 and config.cache_config.enable_prefix_caching
        assert config.scheduler_config.enable_chunked_prefill
        got = e.generate(made, e.prompts(), logprobs=e.FULL)
        batches, names = steps.batches[:], dict(steps.names)
        common = e.prompts((3, 20), common=70)
        first, again = e.generate(made, common, logprobs=e.FULL), e.generate(made, common, logprobs=e.FULL)
    to_own, to_eager = check(name, got, own)
    count = sum(map(len, e.tokens(got)))
    print(f"vLLM {version}, {name}: {count} tokens equal; log probabilities {to_own:.1e} from its own, {to_eager:.1e} "
          "from Transformers'")  # fmt: skip
    assert all(names[call] % 2 == 0 for call in ("forward_mha", "forward_mqa"))  # a layer each
    assert any(n > 1 and keys > n for batch in batches for n, keys in batch)  # a later chunk of a prompt
    assert any({n == 1 for n, _ in batch} == {True, False} for batch in batches)  # prefill and decode in one step
    assert again[1].num_cached_tokens >= 64 and first[1].num_cached_tokens in (0, 64)
    for results in (first, again):
        assert e.largest(e.logits(results), e.eager(name, results)) < e.EXACT


@served
def test_earlier_keys_in_pieces(folder, own, monkeypatch):
    """Of a workspace of 48 rows: a sequence of 100 keys takes several, and sequences share one."""
    pieces, build = [], XeflashMLAMetadataBuilder.build

    def noted(self, *given, **named):
        made = build(self, *given, **named)
        if made.prefill is not None and made.prefill.chunked_context is not None:
            pieces.append([(p.num_requests, p.is_continuation) for p in made.prefill.chunked_context.chunks])
        return made

    size = "determine_chunked_prefill_workspace_size"
    monkeypatch.setattr(XeflashMLAMetadataBuilder, size, staticmethod(lambda config: 48))
    monkeypatch.setattr(XeflashMLAMetadataBuilder, "build", noted)
    with e.engine(e.saved("deepseek_v3", folder), **OURS, max_num_batched_tokens=40, block_size=16) as (made, steps):
        got = e.generate(made, e.prompts(), logprobs=e.FULL)
    check("deepseek_v3", got, own)
    assert any(continued for step in pieces for _, continued in step) and max(map(len, pieces)) > 1


@served
def test_a_cache_that_does_not_hold_all(folder, own):
    given = {**OURS, "block_size": 16, "num_gpu_blocks_override": 18, "max_num_batched_tokens": 64}
    with e.engine(e.saved("deepseek_v2", folder), **given) as (made, steps):
        check("deepseek_v2", e.generate(made, e.prompts(), logprobs=e.FULL), own)


@served
@pytest.mark.skipif(e.VERSION == (0, 30), reason="its sampler of guesses needs triton")
def test_speculation_by_ngrams(folder, own):
    asked = [prompt[:9] * 4 for prompt in e.prompts((9, 12, 20))]
    guess = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    with e.engine(e.saved("deepseek_v2", folder), **OURS, speculative_config=guess) as (made, steps):
        got = e.generate(made, asked)
    assert e.tokens(got) == e.tokens(own("deepseek_v2", asked=asked))
    assert any(1 < n <= 4 and keys > 36 for batch in steps.batches for n, keys in batch)  # guesses are verified
    assert steps.names["forward_mha"] == 2  # by the prompts' step alone


@served
@pytest.mark.wide
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_errors_of_rounding_are_no_larger_than_vllms(dtype, folder, own):
    with e.engine(e.saved("deepseek_v3", folder), **OURS, **CHUNKS, dtype=dtype) as (made, steps):
        got = e.generate(made, e.prompts(), logprobs=e.FULL)
    exact = own("deepseek_v3")
    mine, theirs = e.error(got, exact), e.error(own("deepseek_v3", dtype=dtype), exact)
    print(f"vLLM {version}, deepseek_v3 in {dtype}: our errors {mine:.2e}, its own {theirs:.2e}")
    assert steps.calls and mine < 1.5 * theirs


@served
def test_compiled_model(folder, own, monkeypatch):
    """By inductor."""
    monkeypatch.setenv("VLLM_CPU_CI_ENV", "0")
    with e.engine(e.saved("deepseek_v3", folder), enforce_eager=False, **OURS, **CHUNKS) as (made, steps):
        assert made.llm_engine.vllm_config.compilation_config.backend == "inductor"
        check("deepseek_v3", e.generate(made, e.prompts(), logprobs=e.FULL), own)
    assert steps.names["forward_mha"] and steps.names["forward_mqa"]


@served
def test_as_the_default(folder, own, monkeypatch):
    monkeypatch.setenv("XEFLASH_VLLM", "1")
    given = {name: value for name, value in OURS.items() if name != "attention_backend"}
    with e.engine(e.saved("deepseek_v2", folder), **given) as (made, steps):
        check("deepseek_v2", e.generate(made, e.prompts(), logprobs=e.FULL), own)
    assert steps.names["forward_mha"] and steps.names["forward_mqa"]


@served
def test_what_vllms_own_lacks_stays_off_with_it(folder):
    assert AttentionBackendEnum.CPU_MLA  # named below, beside a plugin that is loaded
    with e.engine(e.saved("deepseek_v2", folder), attention_backend="CPU_MLA", **CHUNKS) as (made, steps):
        config = made.llm_engine.vllm_config
    assert config.cache_config.block_size == 16 and not config.cache_config.enable_prefix_caching
    assert not config.scheduler_config.enable_chunked_prefill
