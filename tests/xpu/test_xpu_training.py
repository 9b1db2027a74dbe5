"""Models of Transformers on xpu train as they do on the CPU."""

import pytest
from cover import few
from training import train
from xeflash.integrations.transformers import NAME, register

pytestmark = [pytest.mark.gpu, pytest.mark.xpu, pytest.mark.filterwarnings("ignore::UserWarning")]
STEPS = 3


@pytest.mark.parametrize("padded", few([False, True], False))  # a mask takes three kernels more
@pytest.mark.parametrize("checkpointed", few([False, True], True))
@pytest.mark.parametrize("name", few(["llama", "gemma2"], "llama"))  # grouped queries; softcap and windows
def test_losses_are_those_of_eager_attention_on_the_cpu(xpu, name, checkpointed, padded):
    register()
    got = train(name, NAME, STEPS, device="xpu", checkpointed=checkpointed, padded=padded)
    assert got == pytest.approx(train(name, "eager", STEPS, padded=padded), rel=0, abs=1e-3)
