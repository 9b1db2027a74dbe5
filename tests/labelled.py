"""Models that train on labels, and whether two of them made the same step."""

import torch
import xeflash
from tiny_models import DECODERS, SHAPE, decoder, prompts, random_weights
from transformers import AutoModelForCausalLM, CohereConfig, GraniteConfig, MixtralConfig

MODELS = {
    **DECODERS,
    "cohere": CohereConfig(**SHAPE, logit_scale=0.3),  # which multiplies
    "granite": GraniteConfig(**SHAPE, logits_scaling=3.0),  # which divides
    "mixtral": MixtralConfig(**SHAPE, num_local_experts=4),
}
CHANGES = {
    "gemma2": {"final_logit_softcapping": 2.0},
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "gpt_oss": {"output_router_logits": True, "router_aux_loss_coef": 0.5},
    "mixtral": {"output_router_logits": True, "router_aux_loss_coef": 0.5},
}


def model_of(name, **changes):
    changes = CHANGES.get(name, {}) | changes
    if name in DECODERS:
        return decoder(name, **changes).train()
    config = type(MODELS[name])(**{**MODELS[name].to_dict(), **changes})
    torch.manual_seed(0)
    return random_weights(AutoModelForCausalLM.from_config(config, attn_implementation="eager")).train()


def labelled(padded=True):
    inputs = prompts(padded=padded)
    return inputs | {"labels": inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)}


def step(model, inputs, **more):
    """The output of a training step, and gradients by name."""
    torch.manual_seed(0)  # routers add noise
    model.zero_grad()
    out = model(**inputs, **more)
    (out[0] if isinstance(out, tuple) else out.loss).backward()
    return out, {name: x.grad for name, x in model.named_parameters() if x.grad is not None}


def assert_same_step(got, want, relative=3e-6):
    """A loss and gradients, to what rounding in fp32 leaves of a model's few layers."""
    (ours, our_grads), (own, own_grads) = got, want
    torch.testing.assert_close(ours.loss, own.loss, rtol=relative, atol=0)
    assert list(our_grads) == list(own_grads)
    largest = max(float(x.abs().max()) for x in own_grads.values())
    for name, x in own_grads.items():  # of biases of keys all is rounding
        limit = 10 * relative * max(float(x.abs().max()), 1e-2 * largest)
        assert float((our_grads[name] - x).abs().max()) <= limit, name


def calls_of_loss(monkeypatch):
    """The named arguments of xeflash.linear_cross_entropy, call by call."""
    seen, loss = [], xeflash.linear_cross_entropy

    def spy(*arguments, **named):
        seen.append(named)
        return loss(*arguments, **named)

    monkeypatch.setattr(xeflash, "linear_cross_entropy", spy)
    return seen
