"""Configurations of well-known models, as published."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A model's type in Transformers, and what differs from that type's defaults."""

    model_type: str
    layers: int
    options: dict[str, Any] = field(default_factory=dict)


def _sizes(hidden: int, intermediate: int, heads: int, kv_heads: int, vocabulary: int, **others: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": 131072,
        **others,
    }


PRESETS: dict[str, Preset] = {
    # Llama 3's proportions at a size that two CPU cores decode
    "small": Preset("llama", 4, _sizes(1024, 2816, 8, 2, 8192)),
    "llama-2-7b": Preset("llama", 32, _sizes(4096, 11008, 32, 32, 32000)),
    "llama-3-8b": Preset("llama", 32, _sizes(4096, 14336, 32, 8, 128256)),
    "qwen2.5-7b": Preset("qwen2", 28, _sizes(3584, 18944, 28, 4, 152064)),
    "mistral-7b": Preset("mistral", 32, _sizes(4096, 14336, 32, 8, 32000, sliding_window=4096)),
    "gemma-2-9b": Preset("gemma2", 42, _sizes(3584, 14336, 16, 8, 256000, head_dim=256)),
    "gpt-oss-20b": Preset("gpt_oss", 24, _sizes(2880, 2880, 64, 8, 201088, num_local_experts=32)),
}
