"""SGLang's engine on the CPU, in processes of its own, which find the backend by the plugin."""

import contextlib
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
