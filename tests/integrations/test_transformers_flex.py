"""Models of Transformers whose attention is torch's flex_attention run on xeflash, unchanged."""

import pytest
import torch
from cover import few, few_rows
from tiny_models import decoder, prompts
from xeflash.integrations import flex

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
RUNS = [(name, padded) for name in ("llama", "mistral", "gemma2") for padded in (False, True)]


@pytest.fixture(autouse=True)
def compiled_anew():
    torch._dynamo.reset()


def both(name):
    """A model by eager attention, and the same one by flex_attention."""
    return decoder(name), decoder(name, implementation="flex_attention")


@pytest.mark.parametrize(("name", "padded"), few_rows(RUNS, RUNS[0]))
def test_logits(name, padded):
    eager, model = both(name)
    inputs = prompts(padded=padded)
    seen = inputs["attention_mask"].bool()
    before = flex.calls()
    with torch.no_grad(), flex.use_xeflash():
        got = model(**inputs).logits
    after = flex.calls()
    assert after.xeflash > before.xeflash
    assert after.torch == before.torch
    with torch.no_grad():
        want = eager(**inputs).logits
    torch.testing.assert_close(got[seen], want[seen])


@pytest.mark.parametrize(("name", "padded"), few_rows(RUNS))
def test_tokens(name, padded):
    eager, model = both(name)
    inputs, tokens = prompts(padded=padded), {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    with flex.use_xeflash():
        got = model.generate(**inputs, **tokens)
    assert torch.equal(got, eager.generate(**inputs, **tokens))


@pytest.mark.parametrize("name", few(["llama", "gemma2"]))
def test_trains(name):
    """Gradients are those of eager attention, on the CPU, where torch's flex_attention has none."""
    pair, inputs = both(name), prompts()
    for model in pair:
        model.train()
        with flex.use_xeflash():
            model(**inputs, labels=inputs["input_ids"]).loss.backward()
    for (key, want), (_, got) in zip(*(model.named_parameters() for model in pair), strict=True):
        torch.testing.assert_close(got.grad, want.grad, msg=lambda text, key=key: f"{key}: {text}")
