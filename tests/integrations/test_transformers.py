"""Models of Transformers with our attention give what they give with their own."""

import warnings

import pytest
import torch
import transformers
from cover import few, few_rows
from tiny_models import (
    DECODERS,
    SHAPE,
    VOCABULARY,
    WAYS,
    WINDOW,
    LargestResult,
    decoder,
    given_cache,
    prompts,
    random_weights,
)
from tolerance import assert_close
from transformers.utils.generic import is_flash_attention_requested
from xeflash.integrations import torch_sdpa
from xeflash.integrations.transformers import NAME, XeCache, attention_function, mask_function, register

register()

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

CACHES = {
    "dynamic": lambda model: {},
    "static": lambda model: {"cache_implementation": "static", "disable_compile": True},
    "none": lambda model: {"use_cache": False},
    "xe": lambda model: given_cache(XeCache(model.config)),
}


def generate(model, implementation, way, cache="dynamic", padded=False, tokens=11):
    model.set_attn_implementation(implementation)
    torch.manual_seed(2)
    inputs = prompts(padded=padded)
    return model.generate(**inputs, min_new_tokens=tokens, max_new_tokens=tokens, **WAYS[way], **CACHES[cache](model))


# (model, way, whether padded): sampling takes the same calls as greedy search, so one model will do.
USUAL = [("llama", "beams", True), ("gemma3", "greedy", False), ("qwen2", "sampled beams", False)]
USUAL += [(name, "greedy", True) for name in ("llama", "gpt2", "gpt_oss")]
GENERATED = [
    *(
        (name, way, padded)
        for name in DECODERS
        for way, padded in (("greedy", False), ("greedy", True), ("beams", True))
    ),
    *(("qwen2", way, False) for way in ("sampling", "beams", "sampled beams")),
]


@pytest.mark.parametrize(("name", "way", "padded"), few_rows(GENERATED, *USUAL))
def test_generates_the_tokens_of_eager(name, way, padded):
    model = decoder(name)
    want = generate(model, "eager", way, padded=padded)
    for cache in CACHES:
        got = generate(model, NAME, way, cache, padded)
        assert torch.equal(got, want), f"{cache} cache:\n{got}\n{want}"


def steps(model, implementation, cache=None, padded=True, chunks=(13, 1, 1, 5, 1)):
    """Logits of prompts, then of more tokens, a chunk at a time; of tokens that are not padding."""
    model.set_attn_implementation(implementation)
    inputs = prompts(tokens=sum(chunks), padded=padded)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cache = transformers.DynamicCache(config=model.config) if cache is None else cache
    logits, at = [], 0
    with torch.no_grad():
        for chunk in chunks:
            until = at + chunk
            out = model(
                ids[:, at:until],
                attention_mask=mask[:, :until],
                position_ids=positions[:, at:until],
                **given_cache(cache),
            )
            logits.append(out.logits)
            at = until
    return torch.cat(logits, 1)[mask.bool()]


@pytest.mark.parametrize("name", few(DECODERS, "gpt_oss"))
def test_logits_are_as_exact_as_torch_in_bf16(name):
    want = steps(decoder(name), "eager").double().numpy()
    model = decoder(name, torch.bfloat16)
    peer = "sdpa" if name not in ("gemma2", "gpt_oss") else "eager"
    by_torch = steps(model, peer).double().numpy()
    for cache in (None, XeCache(model.config)):
        assert_close(f"{name} {type(cache).__name__}", steps(model, NAME, cache), want, by_torch)


@pytest.mark.parametrize("name", [name for name in DECODERS if name != "gpt_oss"])  # torch has no experts in float64
def test_logits_in_fp32(name):
    model = decoder(name)
    peer = "sdpa" if name not in ("gemma2", "gpt_oss") else "eager"
    want = steps(
        decoder(name, torch.float64), "eager", padded=False
    ).numpy()  # eager's rows without keys are not finite
    by_torch = steps(model, peer, padded=False).double().numpy()
    for cache in (None, XeCache(model.config)):
        got = steps(model, NAME, cache, padded=False)
        assert_close(f"{name} {type(cache).__name__}", got, want, by_torch)


ENCODER = {"vocab_size": VOCABULARY, "hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2}
ENCODER |= {"initializer_range": 0.0625, "intermediate_size": 96}
BART = {"vocab_size": VOCABULARY, "d_model": 256, "encoder_layers": 2, "decoder_layers": 2, "init_std": 0.0625}
BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96}
BART |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
LLAMA_4 = {"attention_chunk_size": 5, "num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size_mlp": 64}
PACKED = torch.tensor([[*range(5), *range(8)]])

# What no decoder above does: (config, class of the model, arguments of a call).
OTHERS = {
    "encoder": (transformers.BertConfig(**ENCODER), transformers.BertModel, {}),
    "encoder with windows": (
        transformers.ModernBertConfig(**ENCODER, local_attention=6, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                                      cls_token_id=1, sep_token_id=2),
        transformers.ModernBertModel,
        {},
    ),
    "cross attention": (
        transformers.BartConfig(**BART),
        transformers.BartModel,
        {"decoder_input_ids": prompts(tokens=7)["input_ids"]},
    ),
    "decoder as encoder": (DECODERS["llama"], transformers.LlamaModel, {"is_causal": False}),
    "decoder as encoder with windows": (
        transformers.Gemma3TextConfig(**SHAPE, sliding_window=WINDOW, use_bidirectional_attention=True),
        transformers.Gemma3TextModel,
        {},
    ),
    "chunks": (transformers.Llama4TextConfig(**SHAPE, **LLAMA_4), transformers.Llama4TextModel, {}),
    "several sequences in a row": (
        DECODERS["llama"],
        transformers.LlamaModel,
        {"position_ids": PACKED, "attention_mask": None, "use_cache": False},
    ),
    "additive mask": (
        DECODERS["llama"],
        transformers.LlamaModel,
        {"attention_mask": torch.linspace(-2, 2, 13 * 13).reshape(1, 1, 13, 13).expand(2, 1, 13, 13)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("name", OTHERS)
def test_other_models(name, padded):
    config, model_type, arguments = OTHERS[name]
    torch.manual_seed(0)
    model = random_weights(model_type._from_config(config, attn_implementation="eager"))
    inputs = {**prompts(padded=padded), **arguments}

    def states(implementation):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            out = model(**inputs).last_hidden_state
        mask = inputs["attention_mask"]
        return out[mask.bool()] if mask is not None and mask.shape == out.shape[:2] else out

    want = states("eager")
    by_torch = states("sdpa").double().numpy()
    assert_close(name, states(NAME), want.double().numpy(), by_torch)


def largest_of_prefill(implementation, name, tokens=8192, padded=False, cache=None, seen=0):
    model = decoder(name, implementation=implementation, num_hidden_layers=1, max_position_embeddings=2 * tokens)
    inputs = prompts(1, tokens)
    if padded:
        inputs["attention_mask"][:, :100] = 0
    cache = cache(model.config) if cache else transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        if seen:
            model(inputs["input_ids"][:, :seen], **given_cache(cache), logits_to_keep=1)
            inputs["input_ids"] = inputs["input_ids"][:, seen:]
        with LargestResult() as watched:
            model(**inputs, **given_cache(cache), logits_to_keep=1)
    return watched.elements


PREFILLS = {
    "plain": {},
    "padded": {"padded": True},
    "continued": {"seen": 5000},
    "static cache": {"cache": lambda config: transformers.StaticCache(config, max_cache_len=9000)},
    "xe": {"cache": XeCache, "padded": True},
}


@pytest.mark.parametrize("name", ["llama", "mistral"])
@pytest.mark.parametrize("case", PREFILLS)
def test_no_mask_of_queries_by_keys(name, case):
    assert largest_of_prefill(NAME, name, **PREFILLS[case]) <= 8192 * SHAPE["hidden_size"]  # the states between layers


def test_of_which_the_watch_would_know():
    assert largest_of_prefill("sdpa", "llama", tokens=2048, padded=True) >= 2048 * 2048


def test_continuous_batching_goes_by_torch_sdpa():
    """Its list of attentions is closed, and it works in a thread of its own."""
    model = decoder("llama", implementation="sdpa")
    ids = [list(range(3, 3 + tokens)) for tokens in (13, 5)]
    ways = {
        "generation_config": transformers.GenerationConfig(max_new_tokens=3, do_sample=False, eos_token_id=-1),
        "continuous_batching_config": transformers.ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64),
    }

    def tokens():
        return [output.generated_tokens for output in model.generate_batch(inputs=ids, **ways).values()]

    want, before = tokens(), torch_sdpa.calls()
    torch_sdpa.enable()
    try:
        assert tokens() == want
    finally:
        torch_sdpa.disable()
    assert torch_sdpa.calls() == (before.xeflash + 3 * 2, before.torch)


def test_name_is_not_taken_for_another_package():
    assert not is_flash_attention_requested(requested_attention_implementation=NAME)
    model = decoder("llama", implementation=NAME)
    assert model.config._attn_implementation == NAME


def states_of(rows=2, heads=4, heads_k=2, queries=3, keys=7, dim=64):
    return (
        torch.randn(rows, heads, queries, dim),
        torch.randn(rows, heads_k, keys, dim),
        torch.randn(rows, heads_k, keys, dim),
    )


def test_result_is_contiguous_and_rows_without_keys_are_zero():
    q, k, v = states_of()
    padding = torch.ones(2, 7, dtype=torch.bool)
    padding[0] = False
    out, weights = attention_function(torch.nn.Module(), q, k, v, padding, sliding_window=None)
    assert weights is None and out.shape == (2, 3, 4, 64) and out.is_contiguous()
    assert not out[0].any() and out[1].any()


def test_position_bias_hides_what_masks_hide():
    q, k, v = states_of(queries=5)
    bias = torch.randn(1, 4, 5, 9)  # of more keys than there are, as with a static cache
    padding = torch.ones(2, 7, dtype=torch.bool)
    padding[0, :4] = False
    causal = torch.ones(5, 7).tril(2).bool()
    for mask in (
        padding,
        padding[:, None, None, :] & causal,
        torch.where(padding[:, None, None, :] & causal, 0.0, -torch.inf),
    ):
        out, _ = attention_function(
            torch.nn.Module(), q, k, v, mask, position_bias=bias[..., : 7 + 2 * (mask.dim() == 2)], sliding_window=None
        )
        both = (bias[..., :7]).masked_fill(~(padding[:, None, None, :] & causal), -torch.inf)
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, both, enable_gqa=True).nan_to_num(0)
        torch.testing.assert_close(out, want.transpose(1, 2))


def test_dropout_is_that_of_attention():
    q, k, v = states_of()
    with pytest.raises(ValueError, match="dropout_p"):
        attention_function(torch.nn.Module(), q, k, v, None, dropout=1.5)
    out, _ = attention_function(torch.nn.Module(), q, k, v, None, dropout=0.5)
    assert not torch.equal(out, attention_function(torch.nn.Module(), q, k, v, None)[0])


@pytest.mark.parametrize("name", ["block_table", "block_indices", "cache"])
def test_what_would_change_the_result_is_refused(name):
    with pytest.raises(NotImplementedError, match=f"xe_attention: {name} must be None, got Tensor"):
        attention_function(torch.nn.Module(), *states_of(), None, **{name: torch.zeros(2)})


@pytest.mark.parametrize("calls", ["forward", "generate"])
def test_weights_of_attention_are_refused(calls):
    model, ids = decoder("llama", implementation=NAME), prompts()["input_ids"]
    how = {"max_new_tokens": 2, "return_dict_in_generate": True} if calls == "generate" else {}
    with pytest.raises(NotImplementedError) as error:
        getattr(model, calls)(ids, output_attentions=True, **how)
    message = "xe_attention: output_attentions must be False, got True: the weights are never formed. "
    assert str(error.value) == message + "Use attn_implementation='eager'"


def test_generate_takes_the_cache_without_a_warning():
    model, ids = decoder("llama", implementation=NAME), prompts()["input_ids"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.generate(ids, max_new_tokens=3, do_sample=False, **given_cache(XeCache(model.config)))


EXPERTS = {"num_experts": 2, "num_local_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 32}
EXPERTS |= {"shared_expert_intermediate_size": 32}
WINDOWS_UNSAID = {
    "some layers": transformers.Qwen2MoeConfig(
        **SHAPE, **EXPERTS, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "all layers": transformers.PhimoeConfig(
        **SHAPE, **EXPERTS, sliding_window=WINDOW, rope_parameters={"rope_type": "default", "rope_theta": 1e4}
    ),
}


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("name", WINDOWS_UNSAID)
def test_windows_that_only_the_mask_tells(name, padded):
    torch.manual_seed(0)
    model = random_weights(transformers.AutoModelForCausalLM.from_config(WINDOWS_UNSAID[name]))
    want = generate(model, "eager", "greedy", padded=padded)
    for cache in CACHES:
        got = generate(model, NAME, "greedy", cache, padded)
        assert torch.equal(got, want), f"{cache} cache:\n{got}\n{want}"


def test_window_that_nobody_tells_is_refused():
    module = torch.nn.Module()
    module.config = transformers.MistralConfig(**SHAPE, sliding_window=6)
    mask = torch.ones(2, 7, dtype=torch.bool)
    assert attention_function(module, *states_of(keys=6), mask[:, :6])[0].isfinite().all()
    with pytest.raises(NotImplementedError, match="Module does not; sliding_window = 6, keys = 7"):
        attention_function(module, *states_of(), mask)


def test_masks():
    two_d = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()
    same = {"batch_size": 2, "q_length": 5, "kv_length": 5, "device": "cpu"}
    assert mask_function(**same) is None
    assert mask_function(**same, attention_mask=torch.ones(2, 5).bool()) is None
    assert torch.equal(mask_function(**same, attention_mask=two_d), two_d)
    longer = {**same, "kv_length": 9}
    five_keys = torch.ones(2, 5).bool()  # of a static cache
    assert torch.equal(mask_function(**longer), five_keys)
    assert torch.equal(mask_function(**longer, attention_mask=mask_function(**longer)), five_keys)
    assert torch.equal(mask_function(**longer, attention_mask=two_d), two_d)
    assert mask_function(**same, allow_is_causal_skip=False).shape == (2, 1, 5, 5)
    for window, hides in ((5, False), (4, True)):
        windowed = {**same, "mask_function": transformers.masking_utils.sliding_window_causal_mask_function(window)}
        assert (mask_function(**windowed) is not None) == hides
        assert torch.equal(mask_function(**windowed, attention_mask=two_d), two_d)
    both = {**same, "mask_function": transformers.masking_utils.bidirectional_mask_function}
    both |= {"allow_is_bidirectional_skip": True}
    assert mask_function(**both) is None
    rows = mask_function(**both, attention_mask=two_d)
    assert rows.shape == (2, 1, 5, 5) and rows.stride(2) == 0
