"""Compiled as one graph, models give the tokens and logits that they give when not compiled."""

import pytest
import torch
from cover import few
from tiny_models import decoder, prompts
from transformers.generation.configuration_utils import CompileConfig
from xeflash.integrations.transformers import NAME, register

register()

NAMES = ["llama", "gemma2", "gpt_oss"]


@pytest.fixture(autouse=True)
def compiled_anew():
    torch._dynamo.reset()


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("name", few(NAMES, "llama"))
def test_forward(name, padded):
    model, inputs = decoder(name, implementation=NAME), prompts(padded=padded)
    with torch.no_grad():
        want = model(**inputs).logits
        got = torch.compile(model, fullgraph=True, backend="aot_eager")(**inputs).logits
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", few(NAMES, "llama"))
def test_generate_with_a_static_cache(name):
    model, inputs = decoder(name), prompts(padded=True)
    tokens = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
    want = model.generate(**inputs, **tokens)
    model.set_attn_implementation(NAME)
    how = CompileConfig(fullgraph=True, backend="aot_eager")
    how._compile_all_devices = True
    got = model.generate(**inputs, **tokens, cache_implementation="static", compile_config=how)
    assert torch.equal(got, want)
