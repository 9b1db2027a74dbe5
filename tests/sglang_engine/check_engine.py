"""SGLang's engine on the CPU, in processes of its own, which find the backend by the plugin."""

import contextlib
import copy
import random

import pytest
import sglang
import tiny_models
import torch
from sglang import __version__ as version

NEW = 12  # tokens that are generated
EXACT = 2e-4  # of log probabilities, in fp32, for sums in another order
SAMPLING = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}


def prompts(lengths, common=0):
    """Of random tokens, of which the first are those of all prompts."""
    draw = random.Random(1)
    first = [draw.randrange(3, tiny_models.VOCABULARY) for _ in range(common)]
    return [first + [draw.randrange(3, tiny_models.VOCABULARY) for _ in range(n)] for n in lengths]


@contextlib.contextmanager
def engine(path, **given):
    said = {"device": "cpu", "dtype": "float32", "attention_backend": "xeflash", "page_size": 16}
    said |= {"max_total_tokens": 1024, "context_length": 256, "max_running_requests": 8, "chunked_prefill_size": 32}
    said |= {"skip_tokenizer_init": True, "sampling_backend": "pytorch", "log_level": "error", "random_seed": 0}
    made = sglang.Engine(model_path=path, **{**said, **given})
    try:
        yield made
    finally:
        made.shutdown()


def check(name, model, asked, got):
    """Tokens, and their log probabilities, are those of Transformers' eager attention."""
    largest = 0.0
    for prompt, answer in zip(asked, got, strict=True):
        tokens = answer["output_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        assert tokens == logits.argmax(-1).tolist()
        ours = torch.tensor([row[0] for row in answer["meta_info"]["output_token_logprobs"]])
        largest = max(largest, float((ours - logits.amax(-1)).abs().max()))
    print(f"SGLang {version}, {name}: log probabilities {largest:.1e} from Transformers'")
    assert largest < EXACT


# SGLang's Mistral has no window. Its Gemma 2 has windows and a softcap, and reads a name that Transformers has dropped.
CHANGES = {"llama": {}, "gemma2": {"hidden_act": "gelu_pytorch_tanh"}}


@pytest.mark.parametrize("name", CHANGES)
def test_tokens_are_those_of_transformers(name, tmp_path):
    """Prompts come in chunks, beside tokens that are generated; then prefixes that are known are not computed again."""
    model = tiny_models.decoder(name, head_dim=64, **CHANGES[name])
    model.save_pretrained(tmp_path)
    with engine(str(tmp_path)) as made:
        asked = prompts((5, 40, 17, 100, 1, 64))
        check(name, model, asked, made.generate(input_ids=asked, sampling_params=SAMPLING, return_logprob=True))
        asked = prompts((3, 20), common=48)
        for _ in range(2):
            got = made.generate(input_ids=asked, sampling_params=SAMPLING, return_logprob=True)
            check(f"{name}, known prefixes", model, asked, got)
        assert all(answer["meta_info"]["cached_tokens"] >= 48 for answer in got)


def test_guesses_of_a_draft_model_are_accepted(tmp_path):
    """Those of a tree more often than those of a chain; and tokens are as without guesses."""
    model = tiny_models.decoder("llama", head_dim=64)
    model.save_pretrained(tmp_path / "model")
    draft = copy.deepcopy(model)
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(0.15 * weight.std(correction=0) * torch.randn_like(weight))
    draft.save_pretrained(tmp_path / "draft")
    asked, passes = prompts((5, 40, 17, 31)), {}
    for topk, guesses in ((1, 4), (4, 8)):
        said = {"algorithm": "STANDALONE", "draft_model_path": str(tmp_path / "draft"), "num_steps": 3}
        said |= {"eagle_topk": topk, "num_draft_tokens": guesses}
        with engine(str(tmp_path / "model"), **{f"speculative_{name}": x for name, x in said.items()}) as made:
            got = made.generate(input_ids=asked, sampling_params=SAMPLING, return_logprob=True)
        check(f"{guesses} guesses, {topk} a step", model, asked, got)
        passes[topk] = sum(answer["meta_info"]["spec_verify_ct"] for answer in got)
    print(f"SGLang {version}, passes that verify guesses, 1 or 4 a step: {passes[1]} and {passes[4]}")
    assert passes[4] < passes[1] < (NEW - 1) * len(asked)  # the first token is that of the prompt
