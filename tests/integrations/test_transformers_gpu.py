"""The attention calls of models, as recorded on the CPU, on an Intel GPU, a real or a simulated one."""

import pytest
import torch
import xeflash
from reference import Features
from tiny_models import WAYS, decoder, prompts
from tolerance import check_attention
from transformers import AttentionInterface, AttentionMaskInterface
from xeflash.integrations import _xe_cache, transformers
from xeflash.integrations.transformers import NAME, XeCache, attention_function, mask_function

usm = pytest.importorskip("usm", reason="dpctl is not installed")

pytestmark = pytest.mark.gpu

# The model, how it generates, whether with an XeCache.
RUNS = [
    ("gemma2", "beams", True),
    ("gpt_oss", "greedy", True),
    ("mistral", "beams", True),
    ("llama", "greedy", False),
    ("gemma2", "greedy", False),
    ("qwen2", "greedy", False),
]


class Recorder:
    """Attention that keeps what it is asked, as a formula and as the call of a public function."""

    def __init__(self, monkeypatch):
        self.calls = []
        for module, name in ((transformers, "attention"), (_xe_cache, "flash_attn_with_kvcache")):
            monkeypatch.setattr(module, name, self.recorded(getattr(module, name)))

    def recorded(self, function):
        def run(*args, **kwargs):
            copies = [x.clone() if isinstance(x, torch.Tensor) else x for x in args]
            self.call = function, copies, {name: _copy(x) for name, x in kwargs.items() if name != "out"}
            return function(*args, **kwargs)

        return run

    def __call__(self, module, query, key, value, attention_mask, **kwargs):
        out, _ = attention_function(module, query, key, value, attention_mask, **kwargs)
        call = self.call
        k, v = (_xe_cache.as_tensor(x) for x in (key, value))
        window = kwargs.get("sliding_window")
        features = Features(
            scale=kwargs["scaling"],
            window=(-1 if window is None else window - 1, 0),
            softcap=kwargs.get("softcap") or 0.0,
            mask=None if attention_mask is None else attention_mask[:, None, None, :],
            sinks=kwargs.get("s_aux"),
        )
        self.calls.append((*call, query.clone(), k.clone(), v.clone(), features))
        return out, None


def _copy(x):
    return x.clone() if isinstance(x, torch.Tensor) else x


def _on_gpu(x, queue):
    return usm.UsmArray(x, queue) if isinstance(x, torch.Tensor) else x


@pytest.mark.parametrize(("name", "way", "with_cache"), RUNS, ids=lambda value: str(value))
def test_recorded_calls(gpu, monkeypatch, name, way, with_cache):
    recorder = Recorder(monkeypatch)
    AttentionInterface.register("recorder", recorder)
    AttentionMaskInterface.register("recorder", mask_function)
    model = decoder(name, implementation="recorder")
    cache = {"past_key_values": XeCache(model.config)} if with_cache else {}
    model.generate(**prompts(padded=True), **WAYS[way], **cache, max_new_tokens=4, min_new_tokens=4)
    assert len(recorder.calls) == 2 * 4
    queue = usm.gpu_queue()
    for number, (function, args, kwargs, q, k, v, features) in enumerate(recorder.calls):
        args = [_on_gpu(x, queue) for x in args]
        kwargs = {key: _on_gpu(x, queue) for key, x in kwargs.items()}
        out = usm.read(getattr(xeflash, function.__name__)(*args, **kwargs))
        out = out.transpose(1, 2) if function.__name__ == "flash_attn_with_kvcache" else out
        check_attention(f"{NAME} {name} call {number}", q, k, v, features, out, gpu=True)
