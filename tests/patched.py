"""Models whose layers are quantised, beside dense copies of them, and what the calls of xeflash.linear were."""

import copy

import torch
import xeflash
from tiny_models import prompts
from torch import nn
from transformers import AutoModelForCausalLM
from xeflash.integrations.transformers_linear import patch

LAYERS = 2 * 7 + 1  # of the tiny Llama: four of attention and three of an MLP, and the head


def calls_of_linear(monkeypatch):
    """The arguments of xeflash.linear, call by call."""
    seen, linear = [], xeflash.linear

    def spy(*arguments, **named):
        seen.append((*arguments, named))
        return linear(*arguments, **named)

    monkeypatch.setattr(xeflash, "linear", spy)
    return seen


def generate(model, tokens=9):
    torch.manual_seed(2)
    return model.generate(**prompts(padded=True), min_new_tokens=tokens, max_new_tokens=tokens, do_sample=False)


def in_place(model, make):
    """Replaces the layers of a decoder's blocks, all but its head, and gives a copy of it with the same weights, dense."""
    plain = copy.deepcopy(model)
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and name != "lm_head":
            layer, weight = make(module, name)
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, layer)
            plain.get_submodule(name).weight.data = torch.as_tensor(weight).float()
    return plain


def assert_serves(model, plain, format, calls):
    """The model, patched, generates what the dense one does, and all its layers are ours."""
    want = generate(plain)
    done = patch(model)
    assert done.left == {} and len(done.swapped) == LAYERS
    assert set(done.swapped.values()) == {format, "float32"}
    assert torch.equal(generate(model), want)
    assert len(calls) == 9 * LAYERS


def close(got, want, relative=1e-5):
    torch.testing.assert_close(got.double(), want.double(), rtol=0, atol=relative * float(want.abs().max()))


def saved_and_loaded(model, path, **named):
    model.save_pretrained(path)
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager", **named).eval()
