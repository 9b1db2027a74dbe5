"""Models from config, with random weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from xeflash.bench.cases import key_bytes
from xeflash.bench.forms import TORCH_DTYPES
from xeflash.bench.llm.presets import PRESETS


def config_of(name: str, layers: int | None) -> Any:
    """Returns the configuration of a preset, of so many layers, in which no token ends a text."""
    import transformers

    preset = PRESETS[name]
    config = transformers.AutoConfig.for_model(
        preset.model_type, num_hidden_layers=layers or preset.layers, **preset.options
    )
    config.eos_token_id = config.bos_token_id = config.pad_token_id = None
    return config


def parameters_of(name: str, layers: int | None) -> int:
    """Returns how many numbers a model has, without building it."""
    import transformers

    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config_of(name, layers))
    return sum(x.numel() for x in model.parameters())


def check_models(names: Iterable[str], layers: int | None = None) -> None:
    """Raises before anything is built if Transformers is missing, does not know a model, or that has fewer layers."""
    for name in dict.fromkeys(names):
        if layers is not None and layers > PRESETS[name].layers:
            raise ValueError(
                f"bench: --layers must be at most the {PRESETS[name].layers} layers of {name}, got {layers}"
            )
        config_of(name, None)


def build(name: str, layers: int | None, dtype: str, device: str, seed: int) -> Any:
    """Builds a model with random weights, the same for a seed."""
    import transformers

    torch.manual_seed(seed)
    config = config_of(name, layers)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=TORCH_DTYPES[dtype])
    return model.eval()


def kv_bytes(config: Any, context: int, dtype: str) -> int:
    """Returns the bytes of keys and values of a type that one token of one sequence attends to, in all layers."""
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    window = getattr(config, "sliding_window", None)
    if window and getattr(config, "layer_types", None) is None:
        kinds = ["sliding_attention"] * config.num_hidden_layers
    keys = sum(min(context, window) if window and kind == "sliding_attention" else context for kind in kinds)
    return int(keys * config.num_key_value_heads * key_bytes(dtype, dim))
