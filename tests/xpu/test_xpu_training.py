"""Models of Transformers on xpu train as they do on the CPU."""

import pytest
from cover import few
from training import train
from xeflash.integrations.transformers import NAME, register

pytestmark = [pytest.mark.gpu, pytest.mark.xpu, pytest.mark.filterwarnings("ignore::UserWarning")]
STEPS = 3


@pytest.mark.parametrize("checkpointed", few([False, True], True))
@pytest.mark.parametrize("name", few(["llama", "gemma2"], "llama"))  # grouped queries; softcap and windows
def test_losses_are_those_of_eager_attention_on_the_cpu(xpu, name, checkpointed):
    register()
    got = train(name, NAME, STEPS, device="xpu", checkpointed=checkpointed)
    assert got == pytest.approx(train(name, "eager", STEPS), rel=0, abs=1e-3)
