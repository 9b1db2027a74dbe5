"""A KV cache for Transformers' models that is copied neither to append to it nor to reorder the beams of a search.

Rows are the sequences of a batch, columns their keys. New keys are written by the attention call itself, into columns
that are there already. Beam search permutes a table of int32 (rows, columns): which row holds a row's key of a column.
Room is made by doubling, which gathers the keys by the table, so that every row has its own again; layers with a window
then leave behind what no later query will see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map
from transformers import cache_utils
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
    get_layer_types_and_kwargs,
)

from xeflash import flash_attn_with_kvcache

_EIGHT_BITS = (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)
_SPARE = 256  # columns that are made beyond those that are needed
_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")
_HYBRID = ("hybrid", "hybrid_sliding")  # attention beside linear attention
_WITHOUT_KEYS = ("linear_attention", "conv", "dummy")  # what these keep, if anything, is as long as it is at first


class XeCache(Cache):  # type: ignore[misc]
    """The cache of a model: ``model.generate(..., past_key_values=XeCache(model.config))``.

    With the attention of ``register()`` its keys stay where they are. To any other attention it hands out the same
    tensors as DynamicCache, which after a step of beam search, or in 8 bits, means a copy. Layers of linear attention
    and convolutions keep their states as in DynamicCache. A model with an encoder and a decoder takes it as
    ``EncoderDecoderCache(XeCache(config), DynamicCache(config=config))``.

    Args:
        config: the model's.
        max_cache_len: keys that there is room for, from the start, in layers without a window; default as many as come.
        dtype: float8_e4m3fn, float8_e5m2 or int8, with a scale per key and head; default that of the keys.
    """

    def __init__(self, config: Any, max_cache_len: int | None = None, dtype: torch.dtype | None = None) -> None:
        if max_cache_len is not None and max_cache_len <= 0:
            raise ValueError(f"XeCache: max_cache_len must be positive, got {max_cache_len}")
        if dtype not in (None, *_EIGHT_BITS):
            raise ValueError(f"XeCache: dtype must be None, float8_e4m3fn, float8_e5m2 or int8, got {dtype}")
        self._columns: dict[int | None, _Columns] = {}  # those of layers with one window
        layers: list[Any] = []
        for kind, options in zip(*get_layer_types_and_kwargs(config.get_text_config(decoder=True)), strict=True):
            if kind in (*_ATTENTION, *_HYBRID):
                window = options["sliding_window"] if kind in ("sliding_attention", "hybrid_sliding") else None
                columns = self._columns.setdefault(window, _Columns(window, max_cache_len))
                if kind in _ATTENTION:
                    layers.append(_Layer(columns, dtype))
                else:
                    layers.append(_HybridLayer(columns, dtype, options["number_of_states"]))
            elif kind in _WITHOUT_KEYS:
                layers.append(cache_utils.DYNAMIC_LAYER_TYPE_MAPPING[kind](**options))
            else:
                known = ", ".join((*_ATTENTION, *_HYBRID, *_WITHOUT_KEYS))
                raise NotImplementedError(f"XeCache: layers must be one of {known}, got {kind}. Use DynamicCache")
        self._with_encoder = bool(getattr(config, "is_encoder_decoder", False))
        super().__init__(layers=layers)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """Takes keys and values (B, Hk, tokens, D) of new tokens; returns all that these tokens may see."""
        layer, tokens = self.layers[layer_idx], key_states.shape[2]
        if isinstance(layer, _Layer):
            if self._with_encoder:
                self._refuse_cross_attention(layer_idx)
            columns = layer.columns
            if layer.used + tokens > columns.count:
                columns.grow(columns.kept(layer.used) + tokens)
                self._gather(columns)
        states: tuple[Any, Any] = layer.update(key_states, value_states)
        return states

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Row i becomes what row beam_idx[i] is."""
        for layer in self._linear():
            layer.reorder_cache(beam_idx)
        for columns in self._columns.values():
            layers = self._layers_of(columns)
            if len({layer.used for layer in layers}) > 1:
                raise RuntimeError(
                    "XeCache: all layers must hold as many keys when beams are reordered, "
                    f"got {[layer.used for layer in layers]}"
                )
            for layer in layers:
                layer.write()
            if layers and layers[0].batch_size == len(beam_idx):
                for device in {layer.device for layer in layers}:
                    columns.permute(beam_idx.to(device), layers[0].used)
            else:
                self._gather(columns, beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row becomes so many, next to each other."""
        self._choose(lambda rows: torch.arange(rows).repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Only these rows stay."""
        self._choose(lambda rows: torch.arange(rows)[indices.cpu()])

    def _choose(self, chosen: Callable[[int], torch.Tensor]) -> None:
        """Rows become those that are chosen from so many."""
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
        """Self attention takes the layers in turn; cross attention would come between, with keys of the encoder."""
        following = self.layers[layer_idx + 1 : layer_idx + 2]
        if any(self.layers[layer_idx].get_seq_length() > layer.get_seq_length() for layer in following):
            raise TypeError(
                "XeCache: a model with an encoder and a decoder must get EncoderDecoderCache(XeCache(config), "
                f"DynamicCache(config=config)), got an XeCache, to which layer {layer_idx} gives keys twice"
            )

    def _linear(self) -> list[Any]:
        """Layers with states of linear attention or convolutions."""
        return [layer for layer in self.layers if isinstance(layer, LinearAttentionCacheLayerMixin)]

    def _layers_of(self, columns: _Columns) -> list[_Layer]:
        return [x for x in self.layers if isinstance(x, _Layer) and x.columns is columns and x.is_initialized]

    def _gather(self, columns: _Columns, rows: torch.Tensor | None = None) -> None:
        for layer in self._layers_of(columns):
            layer.gather(rows)
        columns.tables.clear()


class _Columns:
    """What layers with one window have in common: how many columns there are, and who holds whose key."""

    def __init__(self, window: int | None, max_len: int | None) -> None:
        self.window, self.max_len = window, max_len
        self.count = 0
        self.tables: dict[torch.device, torch.Tensor] = {}  # none: every row holds its own keys
        self._left_pad: tuple[Any, int, torch.Tensor | None, int] = (None, 0, None, 0)

    def kept(self, keys: int) -> int:
        """How many of so many keys a later query may see."""
        return keys if self.window is None else min(keys, self.window - 1)

    def grow(self, needed: int) -> None:
        wanted = max(2 * self.count, needed + _SPARE)
        if self.window is not None:
            self.count = max(needed, min(wanted, 2 * self.window))
        elif self.max_len is None:
            self.count = wanted
        elif needed <= self.max_len:
            self.count = self.max_len
        else:
            raise ValueError(f"XeCache: max_cache_len must be at least {needed}, the keys, got {self.max_len}")

    def permute(self, rows: torch.Tensor, used: int) -> None:
        if rows.device not in self.tables:
            own = torch.arange(len(rows), dtype=torch.int32, device=rows.device)
            self.tables[rows.device] = own[:, None].repeat(1, self.count)
        table = self.tables[rows.device]
        table[:, :used] = table[:, :used].index_select(0, rows)

    def free(self, begin: int, end: int) -> None:
        """In columns without keys, every row will write its own."""
        for table in self.tables.values():
            table[:, begin:end] = torch.arange(len(table), dtype=torch.int32, device=table.device)[:, None]

    def left_pad(self, padding: torch.Tensor, before: int) -> tuple[torch.Tensor | None, int]:
        """Where the keys of each row begin, and the last of those; None if `padding` is not on the left.

        `before` columns come before those of padding.
        """
        if self._left_pad[0] is not padding or self._left_pad[1] != before:
            hidden = padding.shape[1] - padding.sum(1, dtype=torch.int32)
            column = torch.arange(padding.shape[1], dtype=torch.int32, device=padding.device)
            is_left = bool((padding == (column >= hidden[:, None])).all())
            starts = hidden + before
            self._left_pad = (padding, before, starts if is_left else None, int(starts.max()))
        return self._left_pad[2:]


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """The keys and values of a layer, (rows, heads, columns, D), and in 8 bits their scales (rows, heads, columns)."""

    is_compileable = False
    is_croppable = True

    def __init__(self, columns: _Columns, dtype: torch.dtype | None) -> None:
        self.columns, self._kept_dtype = columns, dtype
        self.is_sliding = columns.window is not None
        self.is_initialized = False
        self.used = 0  # columns with keys, and those of the new ones
        self.left_behind = 0  # keys before those
        self.version = 0
        self._new: tuple[torch.Tensor, ...] = ()  # keys and values that are not written yet, the last of those used

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Takes all but the number of columns from the first states."""
        self.dtype, self.device = key_states.dtype, key_states.device
        if torch.is_autocast_enabled(self.device.type):
            self.dtype = torch.get_autocast_dtype(self.device.type)
        self.batch_size, self._heads = key_states.shape[:2]
        self._dims = (key_states.shape[3], value_states.shape[3])
        self._allocate()
        self.is_initialized = True

    def _allocate(self) -> None:
        shape = (self.batch_size, self._heads, self.columns.count)
        dtype = self._kept_dtype or self.dtype
        self._arrays = [torch.empty((*shape, dim), dtype=dtype, device=self.device) for dim in self._dims]
        if self._kept_dtype:
            self._arrays += [torch.empty(shape, dtype=torch.float32, device=self.device) for _ in self._dims]
        names = ("k_cache", "v_cache", "k_scale", "v_scale")
        self._cached = {name: array.transpose(1, 2) for name, array in zip(names, self._arrays, strict=False)}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[CachedStates, CachedStates]:
        """Takes the states of new tokens, for which there is room."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.write()
        tokens = key_states.shape[2]
        visible = self.columns.kept(self.used) + tokens
        self._new = (key_states, value_states)
        self.used += tokens
        self.version += 1
        return CachedStates(self, 0, visible), CachedStates(self, 1, visible)

    def gather(self, rows: torch.Tensor | None) -> None:
        """Copies what a later query may see of `rows` (default: all) to rows of their own."""
        self.write()
        sources, kept = self._arrays, self.columns.kept(self.used)
        if rows is not None:
            rows = rows.to(self.device)
            self.batch_size = len(rows)
        self._allocate()
        for array, source in zip(self._arrays, sources, strict=True):
            array[:, :, :kept] = self._last(source, kept, rows)
        self.left_behind += self.used - kept
        self.used = kept
        self.version += 1

    def _last(self, array: torch.Tensor, keys: int, rows: torch.Tensor | None = None) -> torch.Tensor:
        """The last keys of rows (default: all), in place where they are together."""
        table = self.columns.tables.get(self.device)
        first = self.used - keys
        if table is None:
            array = array[:, :, first : self.used]
            return array if rows is None else array[rows]
        table = table[:, first : self.used]
        places = (table if rows is None else table[rows]).long()
        return array[places, :, torch.arange(first, self.used, device=self.device)].transpose(1, 2)

    def states(self, part: int, keys: int) -> torch.Tensor:
        """The last keys (part 0) or values (1) as a tensor (rows, heads, keys, D)."""
        self.write()
        states = self._last(self._arrays[part], keys)
        if self._kept_dtype:
            states = (states.float() * self._last(self._arrays[2 + part], keys)[..., None]).to(self.dtype)
        return states

    @property
    def keys(self) -> torch.Tensor | None:
        """Those that a later query may see."""
        return self.states(0, self.columns.kept(self.used)) if self.is_initialized else None

    @property
    def values(self) -> torch.Tensor | None:
        """Those that a later query may see."""
        return self.states(1, self.columns.kept(self.used)) if self.is_initialized else None

    def write(self) -> None:
        """Writes new keys and values that no attention call has written."""
        if self._new:
            self._call(self._new[0][:, :, :0])

    def _call(self, query: torch.Tensor, **options: Any) -> torch.Tensor:
        """Appends what is new, and attends."""
        length = self.used
        k = v = None
        if self._new:
            k, v = self._new[0].transpose(1, 2), self._new[1].transpose(1, 2)
            length -= k.shape[1]
        out: torch.Tensor = flash_attn_with_kvcache(
            query.transpose(1, 2), k=k, v=v, cache_seqlens=length, beam_index=self.columns.tables.get(self.device),
            **self._cached, **options,
        )  # fmt: skip
        self._new = ()
        return out

    def attend(
        self, query: torch.Tensor, visible: int, padding: torch.Tensor | None, window: tuple[int, int], **options: Any
    ) -> torch.Tensor | None:
        """Attention on the last `visible` keys where they are; None if it needs more than padding on the left."""
        if self.columns.window is not None and not 0 <= window[0] < self.columns.window:
            return None
        starts = None
        if padding is not None:
            starts, last = self.columns.left_pad(padding, self.used - visible)
            if starts is None:
                return None
            if self._new and last > self.used - self._new[0].shape[2]:  # a row begins among the new keys
                self.write()
        return self._call(query, cache_leftpad=starts, window_size=window, **options)

    def get_seq_length(self) -> int:
        """Keys that were there so far."""
        return self.left_behind + self.used

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys that so many new queries may see, keys before those)."""
        kept = self.columns.kept(self.used)
        return kept + query_length, self.get_seq_length() - kept

    def get_max_length(self) -> int:
        """Keys that there may be; -1 for any number."""
        return self.columns.window or self.columns.max_len or -1

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last -tokens_to_remove keys."""
        if tokens_to_remove > 0:
            raise ValueError(f"XeCache.crop: tokens_to_remove must not be positive, got {tokens_to_remove}")
        if not self.is_initialized or tokens_to_remove == 0:
            return
        self.write()
        used = max(0, self.used + tokens_to_remove)
        if used < self.columns.kept(self.left_behind + used):
            raise RuntimeError(
                f"XeCache.crop: a layer with a window has left behind the keys before the last {self.used}, "
                f"got tokens_to_remove = {tokens_to_remove}"
            )
        self.columns.free(used, self.used)
        self.used = used
        self.version += 1
        if used == 0:
            self.columns.tables.clear()
            self.reset()

    def reset(self) -> None:
        """Forgets all keys, and how many rows there are."""
        self.is_initialized = False
        self.used = self.left_behind = 0
        self._arrays, self._cached, self._new = [], {}, ()
        self.version += 1


class _HybridLayer(_Layer, LinearAttentionAndFullAttentionLayer):  # type: ignore[misc]
    """The same beside the states of linear attention, which are kept as Transformers keeps them."""

    def __init__(self, columns: _Columns, dtype: torch.dtype | None, number_of_states: int) -> None:
        LinearAttentionLayer.__init__(self, number_of_states)
        _Layer.__init__(self, columns, dtype)

    def lazy_initialization(self, *states: torch.Tensor, **named: Any) -> None:
        """Of keys and values, by place, or of the others, by name."""
        if states:
            _Layer.lazy_initialization(self, *states)
        else:
            LinearAttentionLayer.lazy_initialization(self, **named)

    @property
    def is_croppable(self) -> bool:  # type: ignore[override]
        """What linear attention has seen cannot be taken back."""
        croppable: bool = LinearAttentionLayer.is_croppable.fget(self)
        return croppable

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Of the states; XeCache does it for keys and values."""
        LinearAttentionLayer.reorder_cache(self, beam_idx)

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last -tokens_to_remove keys, if there are states of as many tokens."""
        LinearAttentionLayer.crop(self, tokens_to_remove)
        _Layer.crop(self, tokens_to_remove)

    def reset(self) -> None:
        """Forgets all."""
        LinearAttentionLayer.reset(self)
        _Layer.reset(self)


class CachedStates:
    """The keys or the values of a layer, as an update returns them.

    Our attention finds the layer by it. To everything else it is the tensor (B, Hk, keys, D), made when asked for.
    """

    __slots__ = ("_layer", "_part", "_states", "_version", "shape")

    def __init__(self, layer: _Layer, part: int, keys: int) -> None:
        self._layer, self._part, self._version = layer, part, layer.version
        self.shape = torch.Size((layer.batch_size, layer._heads, keys, layer._dims[part]))
        self._states: torch.Tensor | None = None

    def _check(self) -> None:
        if self._version != self._layer.version:
            raise RuntimeError("XeCache: keys and values must be used before their layer changes again")

    def tensor(self) -> torch.Tensor:
        """All of it."""
        if self._states is None:
            self._check()
            self._states = self._layer.states(self._part, self.shape[2])
        return self._states

    def attend(self, query: torch.Tensor, value: Any, **request: Any) -> torch.Tensor | None:
        """Attention of a query on these keys and their values; None if it has to be on tensors."""
        if (
            not isinstance(value, CachedStates)
            or value._layer is not self._layer
            or (self._part, value._part) != (0, 1)
        ):
            return None
        self._check()
        return self._layer.attend(query, self.shape[2], **request)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map(as_tensor, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tensor(), name)


def as_tensor(states: Any) -> Any:
    """The tensor of states that may be of an XeCache."""
    return states.tensor() if isinstance(states, CachedStates) else states


def _operator(name: str) -> Any:
    return lambda self, *args: getattr(self.tensor(), name)(*map(as_tensor, args))


_OPERATORS = ("add", "eq", "ge", "getitem", "gt", "iter", "le", "len", "lt", "matmul", "mul", "ne", "neg", "pow",
              "radd", "rmatmul", "rmul", "rpow", "rsub", "rtruediv", "sub", "truediv")  # fmt: skip
for _name in _OPERATORS:
    setattr(CachedStates, f"__{_name}__", _operator(f"__{_name}__"))
