"""Models of Transformers whose masks hide whole rows: gradients of all parameters are finite, and those of torch."""

import pytest
import torch
import transformers
from tiny_models import VOCABULARY, decoder, prompts, random_weights
from torch.nn.attention import SDPBackend, sdpa_kernel
from xeflash.integrations import torch_sdpa
from xeflash.integrations.transformers import NAME, register

register()

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
LOWEST = torch.finfo(torch.float32).min
T5 = transformers.T5Config(
    vocab_size=VOCABULARY, d_model=64, d_kv=64, d_ff=96, num_layers=2, num_heads=4, dropout_rate=0.0,
    decoder_start_token_id=0,
)  # fmt: skip


def padded():
    """Three samples: one with padding on the left, one without, and one that is all padding."""
    inputs = prompts(3, padded=True)
    inputs["attention_mask"] = inputs["attention_mask"][[0, 2, 1]]
    inputs["attention_mask"][2] = 0
    return inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, 0), inputs["attention_mask"]


def gradients(model, **inputs):
    model.zero_grad()
    logits = model(**inputs).logits
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(4))
    (logits * weights).sum().backward()  # padding counts, too
    return {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}


def assert_same(got, want):
    assert got.keys() == want.keys()
    for name, expected in want.items():
        assert got[name].isfinite().all(), f"{name} is not finite"
        error, size = float((got[name] - expected).norm()), float(expected.norm())
        assert error <= 1e-4 * size + 1e-6, f"{name}: {error:.3g} off, of {size:.3g}"


@pytest.mark.parametrize("hidden", [LOWEST, -1e9, -torch.inf])
def test_llama_below_its_additive_mask(hidden):
    """As models were given it before they took boolean ones."""
    ids, mask = padded()
    seen = torch.ones(13, 13).tril().bool() & mask[:, None, None, :].bool()
    if hidden == -torch.inf:  # eager's rows that see nothing are not finite
        seen |= torch.eye(13).bool()
    additive = torch.zeros(3, 1, 13, 13).masked_fill(~seen, hidden)
    model = decoder("llama")
    want = gradients(model, input_ids=ids, attention_mask=additive)
    model.set_attn_implementation(NAME)
    assert_same(gradients(model, input_ids=ids, attention_mask=additive), want)


def test_t5_by_torchs_attention():
    """Its biases have the mask within; eager attention gets another mask where a row is hidden."""
    ids, mask = padded()
    torch.manual_seed(0)
    model = random_weights(transformers.T5ForConditionalGeneration(T5))
    model.set_attn_implementation("sdpa")
    inputs = {"input_ids": ids, "attention_mask": mask}
    inputs |= {"decoder_input_ids": ids[:, 3:], "decoder_attention_mask": mask[:, 3:]}
    with sdpa_kernel(SDPBackend.MATH):  # torch's flash attention is far off where a row is hidden
        want = gradients(model, **inputs)
    before = torch_sdpa.calls()
    with torch_sdpa.use_xeflash():
        got = gradients(model, **inputs)
    assert torch_sdpa.calls() == (before.xeflash + 3 * T5.num_layers, before.torch)
    assert_same(got, want)
