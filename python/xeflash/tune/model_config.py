"""The attention of a model as its config.json describes it, in the words of Transformers' configurations."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xeflash.tune.models import Features, ModelShape

_HEADS = ("num_attention_heads", "n_head", "decoder_attention_heads")
_HEADS_K = ("num_key_value_heads", "num_kv_heads")
_WIDTH = ("hidden_size", "n_embd", "n_embed", "d_model")
_DTYPE = ("dtype", "torch_dtype")
_LATENTS = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")  # of MLA
_LANGUAGE_MODEL = ("text_config", "llm_config", "language_config")
# Another key that ends so describes layers of another kind, but for those of linear attention and encoders.
_SIZES = ("head_dim", "attention_heads", "key_value_heads", "kv_heads", "heads_per_layer")
_KNOWN = {*_HEADS, *_HEADS_K, *_LATENTS, "head_dim", "qk_head_dim"}
_OTHERS = ("linear_", "mamba_", "encoder_")
_SINKS = ("gpt_oss", "openai_privacy_filter", "granite_swa", "granitemoe_swa", "flint")  # no key says it


class ModelConfig:
    """A configuration: a folder or its config.json, a mapping, or an object with to_dict()."""

    def __init__(self, function: str, config: Any) -> None:
        """Reads the numbers of the language model, which a model of several kinds keeps apart."""
        self._where, values = f"{function}: config", config
        if isinstance(config, str | os.PathLike):
            path = Path(config)
            path = path / "config.json" if path.is_dir() else path
            self._where = f"{function}: {path}"
            try:
                values = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise ValueError(f"{self._where} must be a file of JSON, or its folder: {error}") from None
            if not isinstance(values, dict):
                raise ValueError(f"{self._where} must hold an object of JSON, got {type(values).__name__}")
        elif hasattr(config, "to_dict"):
            values = config.to_dict()
        if not isinstance(values, Mapping):
            rule = "must be a path, a mapping, or a configuration of Transformers"
            raise TypeError(f"{self._where} {rule}, got {type(values).__name__}")
        inner = [values[name] for name in _LANGUAGE_MODEL if isinstance(values.get(name), Mapping)]
        said = (item for one in inner[:1] for item in one.items() if item[1] is not None)
        self._values: dict[str, Any] = {**values, **dict(said)}

    @property
    def dtype(self) -> str:
        """Returns the name of the model's dtype."""
        return str(self._needed(_DTYPE)).removeprefix("torch.")

    @property
    def shape(self) -> ModelShape:
        """Returns the heads and head sizes of the layers, which have to be alike."""
        if unknown := sorted(filter(self._is_of_other_layers, self._values)):
            name = unknown[0]
            raise NotImplementedError(
                f"{self._where} must have layers of one kind of heads, got {name} = {self._values[name]}; give a "
                "mapping of num_attention_heads, num_key_value_heads and head_dim for each kind"
            )
        heads = self._count(_HEADS)
        heads_k = 1 if self._is_multi_query() else self._count(_HEADS_K, heads)
        layer = (Features(causal=True, softcap=self._softcap(), alibi=self._has_alibi(), sinks=self._has_sinks()),)
        if self._values.get("kv_lora_rank"):
            latents, plain, rotated, dim_v = (self._count((name,)) for name in _LATENTS)
            return ModelShape(heads, heads, plain + rotated, dim_v, layer, (latents + rotated, latents))
        dim = self._count(("head_dim",), None if self._first(_WIDTH) is None else self._count(_WIDTH) // heads)
        return ModelShape(heads, heads_k, dim, self._count(("v_head_dim",), dim), layer)

    def _first(self, names: tuple[str, ...]) -> Any:
        return next((self._values[name] for name in names if self._values.get(name) is not None), None)

    def _needed(self, names: tuple[str, ...]) -> Any:
        if (value := self._first(names)) is None:
            raise ValueError(f"{self._where} needs {' or '.join(names)}")
        return value

    def _count(self, names: tuple[str, ...], default: int | None = None) -> int:
        value = self._first(names)
        if value is None:
            value = self._needed(names) if default is None else default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{self._where} must have a positive integer as {' or '.join(names)}, got {value!r}")
        return value

    def _is_of_other_layers(self, name: str) -> bool:
        if name == "per_layer_config":
            return "head" in str(self._values[name])
        is_size = name.endswith(_SIZES) and name not in _KNOWN and not name.startswith(_OTHERS)
        return is_size and self._values[name] is not None

    def _is_multi_query(self) -> bool:
        return bool(self._values.get("multi_query")) and not self._values.get("new_decoder_architecture")

    def _softcap(self) -> float:
        return float(self._values.get("attn_logit_softcapping") or 0)

    def _has_alibi(self) -> bool:
        by_name = self._values.get("model_type") == "bloom" or self._values.get("position_embedding_type") == "alibi"
        return by_name or bool(self._values.get("alibi"))

    def _has_sinks(self) -> bool:
        return self._values.get("model_type") in _SINKS
