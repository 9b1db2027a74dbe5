"""What tests of the benchmarks share."""

import pytest
from xeflash.bench.llm import presets
from xeflash.cli import bench_shared


@pytest.fixture
def small_work(monkeypatch):
    """For commands whose work is too small for a second thread, which would wait for other programs."""
    import torch  # not before simulated devices are ready

    monkeypatch.setattr(bench_shared, "prepare_threads", lambda threads: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def tiny_preset(small_work, monkeypatch):
    """A preset "tiny": a model of two layers that has all a benchmark needs."""
    options = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
    options |= {"head_dim": 64}  # as in most tests, which share its kernels
    preset = presets.Preset("llama", 2, {**options, "vocab_size": 256, "max_position_embeddings": 512})
    monkeypatch.setitem(presets.PRESETS, "tiny", preset)
