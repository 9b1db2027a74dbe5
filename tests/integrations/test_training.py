"""Models of Transformers train with our attention as with their own."""

import functools

import pytest
import torch
from cover import few_rows
from training import train
from xeflash.integrations import torch_sdpa
from xeflash.integrations.transformers import NAME, register

register()

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
STEPS = 50
MODELS = ["llama", "gemma2"]  # grouped queries; softcap and windows


@functools.cache
def losses_of(name, implementation, **more):
    torch._dynamo.reset()
    return train(name, implementation, STEPS, **{"padded": name != "gemma2", **more})


def assert_near(got, want):
    assert want[-1] < want[0] - 0.5, f"nothing was learned: {want[0]} to {want[-1]}"
    worst = max(range(STEPS), key=lambda step: abs(got[step] - want[step]))
    assert abs(got[worst] - want[worst]) <= 1e-3, f"step {worst}: {got[worst]}, eager {want[worst]}"


@pytest.mark.parametrize("name", [*MODELS, "gpt_oss"])  # sinks
def test_losses_are_those_of_eager_attention(name):
    assert_near(losses_of(name, NAME), losses_of(name, "eager"))


@pytest.mark.parametrize("name", MODELS)
def test_the_same_bits_twice(name):
    assert losses_of.__wrapped__(name, NAME) == losses_of(name, NAME)


@pytest.mark.parametrize("name", MODELS)
def test_checkpointing_changes_nothing(name):
    assert losses_of(name, NAME, checkpointed=True) == losses_of(name, NAME)


@pytest.mark.parametrize(  # most of the time is torch's compiling
    ("name", "checkpointed"),
    few_rows([("gemma2", True), ("llama", False), ("llama", True), ("gemma2", False)]),
)
def test_compiled_models_train(name, checkpointed):
    assert_near(losses_of(name, NAME, compiled=True, checkpointed=checkpointed), losses_of(name, "eager"))


def test_dropout_is_the_same_in_a_checkpointed_model():
    want = losses_of("llama", NAME, padded=False, attention_dropout=0.2)
    assert want != losses_of("llama", NAME, padded=False)
    assert losses_of("llama", NAME, padded=False, checkpointed=True, attention_dropout=0.2) == want


def test_models_that_call_torchs_attention_train_with_ours():
    before = torch_sdpa.calls()
    with torch_sdpa.use_xeflash():
        got = losses_of("llama", "sdpa")
    assert torch_sdpa.calls().xeflash - before.xeflash == 2 * STEPS
    assert_near(got, losses_of("llama", "eager"))
