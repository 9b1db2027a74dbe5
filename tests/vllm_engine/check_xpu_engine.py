"""vLLM's engine on its platform for XPU, with our attention on simulated GPUs, and stand-ins for what is not there.

Kernels, pages, steps and vLLM's runner and scheduler are what they are on a GPU; xpu_stand_ins.py says what is not.
"""

import engine as e
import pytest
from vllm import __version__ as version

pytestmark = [pytest.mark.gpu, pytest.mark.xpu]

SMALL = {"attention_backend": "CUSTOM", "max_logprobs": e.FULL, "max_model_len": 128, "max_num_seqs": 4}
SMALL |= {"num_gpu_blocks_override": 32, "gpu_memory_utilization": 0.1, "max_num_batched_tokens": 16}


@pytest.fixture
def engine(xpu, monkeypatch, folder):
    """Makes engines; its counts are of graphs."""
    import xpu_stand_ins

    counts = xpu_stand_ins.install(monkeypatch)

    def made(name, compilation=None, **given):
        native = {name: {**value} for name, value in xpu_stand_ins.NATIVE.items()}
        native["compilation_config"] |= compilation or {}
        return e.engine(e.saved(name, folder), **SMALL, **native, **given)

    made.counts = counts
    return made


def check(name, got):
    distance = e.largest(e.logits(got), e.eager(name, got))
    print(f"vLLM {version} on simulated XPU, {name}: log probabilities {distance:.1e} from Transformers'")
    assert distance < e.EXACT and e.tokens(got) == [row.argmax(-1).tolist() for row in e.eager(name, got)]


@pytest.mark.parametrize("name", ["llama", "mistral", "deepseek_v3"])
def test_tokens_are_those_of_transformers(name, engine):
    with engine(name) as (made, steps):
        got = e.generate(made, e.prompts((5, 20, 1)), logprobs=e.FULL)
    check(name, got)
    kinds = {"forward_mha", "forward_mqa"} if name in e.LATENT_MODELS else {"forward"}
    assert set(steps.names) == kinds and any(n > 1 and keys > n for batch in steps.batches for n, keys in batch)


@pytest.mark.parametrize("name", ["llama", "deepseek_v3"])
def test_steps_of_single_tokens_are_replayed(name, engine):
    """vLLM records them whole, as the builders allow it; three sequences take the graph of four."""
    graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4]}
    with engine(name, graphs, enforce_eager=False) as (made, steps):
        assert made.llm_engine.vllm_config.compilation_config.cudagraph_mode.name == "FULL_DECODE_ONLY"
        built = len(steps.batches)
        got = e.generate(made, e.prompts((5, 20, 1)), logprobs=e.FULL)
    check(name, got)
    singles = [batch for batch in steps.batches[built:] if all(n <= 1 for n, _ in batch)]
    assert any(n == 0 for batch in singles for n, _ in batch)  # a place that is empty
    assert engine.counts.recorded >= 3 and engine.counts.replayed == len(singles) > 8
