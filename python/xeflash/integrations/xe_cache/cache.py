"""The cache that a model gets: its layers, and the operations on the rows of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import cache_utils
from transformers.cache_utils import Cache, LinearAttentionCacheLayerMixin, get_layer_types_and_kwargs

from xeflash.integrations.xe_cache import nibbles
from xeflash.integrations.xe_cache.columns import Columns
from xeflash.integrations.xe_cache.layer import HybridLayer, Layer

_EIGHT_BITS = (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)
_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")
_HYBRID = ("hybrid", "hybrid_sliding")  # attention beside linear attention
_WITHOUT_KEYS = ("linear_attention", "conv", "dummy")  # their states, if any, never grow
_INDEXED = "indexed_attention"  # sparse attention, which keeps what picks keys, too


class XeCache(Cache):  # type: ignore[misc]
    """The cache of a model: ``model.generate(..., cache=XeCache(model.config))``.

    Before Transformers 5.24 the argument is ``past_key_values``.

    With the attention of ``register()`` its keys stay where they are, but in beam search with values in 4 bits. To any
    other attention it hands out the same tensors as DynamicCache, which after a step of beam search, or in fewer bits,
    means a copy. Layers of linear attention, of convolutions and of sparse attention (DeepSeek V3.2) keep what they
    need as in DynamicCache. A model with an encoder and a decoder takes it as
    ``EncoderDecoderCache(XeCache(config), DynamicCache(config=config))``.

    Args:
        config: the model's.
        max_cache_len: keys that there is room for, from the start, in layers without a window; default as many as come.
        dtype: float8_e4m3fn, float8_e5m2 or int8, with a scale per key and head; or "k8v4": keys in int8, values in 4
            bits with a scale for 64 columns; default that of the keys.
    """

    def __init__(self, config: Any, max_cache_len: int | None = None, dtype: torch.dtype | str | None = None) -> None:
        if max_cache_len is not None and max_cache_len <= 0:
            raise ValueError(f"XeCache: max_cache_len must be positive, got {max_cache_len}")
        if dtype not in (None, *_EIGHT_BITS, nibbles.NAME):
            raise ValueError(
                f"XeCache: dtype must be None, float8_e4m3fn, float8_e5m2, int8 or {nibbles.NAME!r}, got {dtype!r}"
            )
        self._copies_beams = dtype == nibbles.NAME  # no kernel reads values in 4 bits by a table
        self._columns: dict[int | None, Columns] = {}  # columns by the window of their layers
        layers: list[Any] = []
        for kind, options in zip(*get_layer_types_and_kwargs(config.get_text_config(decoder=True)), strict=True):
            if kind in (*_ATTENTION, *_HYBRID):
                window = options["sliding_window"] if kind in ("sliding_attention", "hybrid_sliding") else None
                columns = self._columns.setdefault(window, Columns(window, max_cache_len))
                if kind in _ATTENTION:
                    layers.append(Layer(columns, dtype))
                else:
                    layers.append(HybridLayer(columns, dtype, options["number_of_states"]))
            elif kind in (*_WITHOUT_KEYS, _INDEXED):
                if kind == _INDEXED and dtype is not None:
                    raise NotImplementedError(f"XeCache: dtype must be None with layers of {_INDEXED}, got {dtype}")
                layers.append(cache_utils.DYNAMIC_LAYER_TYPE_MAPPING[kind](**options))
            else:
                known = ", ".join((*_ATTENTION, *_HYBRID, *_WITHOUT_KEYS, _INDEXED))
                raise NotImplementedError(f"XeCache: layers must be one of {known}, got {kind}. Use DynamicCache")
        self._with_encoder = bool(getattr(config, "is_encoder_decoder", False))
        super().__init__(layers=layers)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """Takes keys and values (B, Hk, tokens, D) of new tokens; returns all that these tokens may see."""
        layer, tokens = self.layers[layer_idx], key_states.shape[2]
        if isinstance(layer, Layer):
            if self._with_encoder:
                self._refuse_cross_attention(layer_idx)
            columns = layer.columns
            if layer.used + tokens > columns.count:
                columns.grow(columns.kept(layer.used) + tokens)
                self._gather(columns)
        states: tuple[Any, Any] = layer.update(key_states, value_states)
        return states

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Reorders rows: row i becomes what row beam_idx[i] is."""
        for layer in (*self._linear(), *self._indexed()):
            layer.reorder_cache(beam_idx)
        for columns in self._columns.values():
            layers = self._layers_of(columns)
            if len({layer.used for layer in layers}) > 1:
                raise RuntimeError(
                    "XeCache: all layers must hold equally many keys when beams are reordered, "
                    f"got {[layer.used for layer in layers]}"
                )
            for layer in layers:
                layer.write()
            if layers and layers[0].batch_size == len(beam_idx) and not self._copies_beams:
                for device in {layer.device for layer in layers}:
                    columns.permute(beam_idx.to(device), layers[0].used)
            else:
                self._gather(columns, beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats every row, with the copies next to each other."""
        for layer in self._indexed():
            layer.batch_repeat_interleave(repeats)
        self._choose(lambda rows: torch.arange(rows).repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps only these rows."""
        for layer in self._indexed():
            layer.batch_select_indices(indices)
        self._choose(lambda rows: torch.arange(rows)[indices.cpu()])

    def _choose(self, chosen: Callable[[int], torch.Tensor]) -> None:
        """Replaces rows by those that `chosen` names, given their count."""
        for layer in self._linear():
            states = [x for x in (*layer.conv_states.values(), *layer.recurrent_states.values()) if x is not None]
            if states:
                layer.reorder_cache(chosen(len(states[0])))
        for columns in self._columns.values():
            for layer in self._layers_of(columns)[:1]:
                self._gather(columns, chosen(layer.batch_size))

    def reset(self) -> None:
        """Forgets all keys, and how many rows there are."""
        super().reset()
        for columns in self._columns.values():
            columns.tables.clear()

    def _refuse_cross_attention(self, layer_idx: int) -> None:
        """Refuses a layer that gets keys twice before the next one gets any, as in cross attention.

        Self attention takes the layers in turn; cross attention would come between, with keys of the encoder.
        """
        following = self.layers[layer_idx + 1 : layer_idx + 2]
        if any(self.layers[layer_idx].get_seq_length() > layer.get_seq_length() for layer in following):
            raise TypeError(
                "XeCache: a model with an encoder and a decoder must get EncoderDecoderCache(XeCache(config), "
                f"DynamicCache(config=config)), got an XeCache, to which layer {layer_idx} gives keys twice"
            )

    def _linear(self) -> list[Any]:
        """Returns the layers with states of linear attention or convolutions."""
        return [layer for layer in self.layers if isinstance(layer, LinearAttentionCacheLayerMixin)]

    def _indexed(self) -> list[Any]:
        """Returns the layers of sparse attention."""
        return [layer for layer in self.layers if hasattr(layer, "update_indexer")]

    def _layers_of(self, columns: Columns) -> list[Layer]:
        return [x for x in self.layers if isinstance(x, Layer) and x.columns is columns and x.is_initialized]

    def _gather(self, columns: Columns, rows: torch.Tensor | None = None) -> None:
        for layer in self._layers_of(columns):
            layer.gather(rows)
        columns.tables.clear()
