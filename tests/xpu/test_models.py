"""Models of Transformers on xpu generate the tokens that they generate on the CPU."""

import pytest
import torch
from cover import few_rows
from tiny_models import WAYS, decoder, given_cache, prompts
from xeflash.integrations.transformers import NAME, XeCache, register

pytestmark = [pytest.mark.gpu, pytest.mark.xpu, pytest.mark.filterwarnings("ignore::UserWarning")]

CACHES = {
    "dynamic": lambda model: {},
    "static": lambda model: {"cache_implementation": "static", "disable_compile": True},
    "xe": lambda model: given_cache(XeCache(model.config)),
}
MODELS = ["llama", "gemma2", "gpt_oss"]  # grouped queries; softcap and windows; sinks
RUNS = [(name, way, cache) for name in MODELS for way in ("greedy", "beams") for cache in CACHES]
RUNS += [("mistral", "beams", "xe"), ("qwen2", "greedy", "dynamic")]  # windows, in all layers and in the last


@pytest.fixture(scope="module")
def tokens_of_cpu():
    """What eager attention gives on the CPU, asked for once."""
    known = {}

    def ask(name, way):
        if (name, way) not in known:
            known[name, way] = generate(decoder(name), "cpu", way, "dynamic")
        return known[name, way]

    return ask


def generate(model, device, way, cache, tokens=5):
    inputs = {name: x.to(device) for name, x in prompts(padded=True).items()}
    options = WAYS[way] | CACHES[cache](model)
    return model.generate(**inputs, **options, min_new_tokens=tokens, max_new_tokens=tokens).cpu()


@pytest.mark.parametrize(("name", "way", "cache"), few_rows(RUNS, *RUNS[:2], *RUNS[3:6], RUNS[-2]))
def test_generates_the_tokens_of_the_cpu(xpu, tokens_of_cpu, name, way, cache):
    register()
    model = decoder(name, implementation=NAME).to("xpu")
    model.set_experts_implementation("eager")  # the others count with a type that torch's CPU operators do not take
    got = generate(model, "xpu", way, cache)
    want = tokens_of_cpu(name, way)
    assert torch.equal(got, want), f"{got}\n{want}"
