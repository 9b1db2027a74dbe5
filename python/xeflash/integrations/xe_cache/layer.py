"""The keys and values of a layer, and the calls by which attention reads them."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map
from transformers.cache_utils import CacheLayerMixin, LinearAttentionAndFullAttentionLayer, LinearAttentionLayer

from xeflash import flash_attn_with_kvcache
from xeflash.integrations.xe_cache import nibbles
from xeflash.integrations.xe_cache.columns import Columns


class Layer(CacheLayerMixin):  # type: ignore[misc]
    """The keys and values of a layer, (rows, heads, columns, D), and of fewer bits their scales (rows, heads, columns).

    Keys of fewer bits lie there less the mean of the first ones, which takes what they have in common out of the
    scales. Attention is the same without it, as all scores of a query are less by the same number.
    """

    is_compileable = False
    is_croppable = True

    def __init__(self, columns: Columns, dtype: torch.dtype | str | None) -> None:
        self.columns = columns
        self._in_nibbles = dtype == nibbles.NAME
        self._kept_dtype = torch.int8 if isinstance(dtype, str) else dtype
        self.is_sliding = columns.window is not None
        self.is_initialized = False
        self.used = 0  # columns with keys, and those of the new ones
        self.left_behind = 0  # keys before those
        self.version = 0
        self._new: tuple[torch.Tensor, ...] = ()  # keys and values that are not written yet, the last of those used
        self._mean: torch.Tensor | None = None  # (1, heads, 1, D), that keys are less by
        self._keeps_whole = False  # keys, as attention has to see scores as they are

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Takes types, sizes and device from the first states; the number of columns is the cache's."""
        self.dtype, self.device = key_states.dtype, key_states.device
        if torch.is_autocast_enabled(self.device.type):
            self.dtype = torch.get_autocast_dtype(self.device.type)
        self.batch_size, self._heads = key_states.shape[:2]
        self._dims = (key_states.shape[3], value_states.shape[3])
        if self._in_nibbles:
            nibbles.check(self.dtype, *self._dims)
        self._allocate()
        self.is_initialized = True

    def _allocate(self) -> None:
        shape = (self.batch_size, self._heads, self.columns.count)
        kept = self._kept_dtype or self.dtype
        arrays: list[tuple[tuple[int, ...], torch.dtype]] = [((dim,), kept) for dim in self._dims]
        if self._kept_dtype:
            arrays += [((), torch.float32)] * 2
        if self._in_nibbles:
            arrays[1::2] = nibbles.arrays_of(self._dims[1])
        self._arrays = [torch.empty((*shape, *row), dtype=dtype, device=self.device) for row, dtype in arrays]
        self._name_arrays()

    def _name_arrays(self) -> None:
        names = ("k_cache", "v_cache", "k_scale", "v_scale")
        self._cached = {name: array.transpose(1, 2) for name, array in zip(names, self._arrays, strict=False)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.is_initialized and self._arrays:
            self._name_arrays()  # pickle makes tensors of their own of views

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
        """Copies the keys that a later query may see, of `rows` (default: all), to rows of their own."""
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
        """Returns the last keys of rows (default: all), in place where they are together."""
        table = self.columns.tables.get(self.device)
        first = self.used - keys
        if table is None:
            array = array[:, :, first : self.used]
            return array if rows is None else array[rows]
        table = table[:, first : self.used]
        places = (table if rows is None else table[rows]).long()
        return array[places, :, torch.arange(first, self.used, device=self.device)].transpose(1, 2)

    def states(self, part: int, keys: int) -> torch.Tensor:
        """Returns the last keys (part 0) or values (1) as a tensor (rows, heads, keys, D)."""
        self.write()
        states = self._last(self._arrays[part], keys)
        if self._kept_dtype is None:
            return states
        scales = self._last(self._arrays[2 + part], keys)
        if self._in_nibbles and part == 1:
            return nibbles.unpacked(states, scales).to(self.dtype)
        states = states.float() * scales[..., None]
        if self._mean is not None and part == 0:
            states += self._mean
        return states.to(self.dtype)

    @property
    def keys(self) -> torch.Tensor | None:
        """Returns the keys that a later query may see, or None before the first ones."""
        return self.states(0, self.columns.kept(self.used)) if self.is_initialized else None

    @property
    def values(self) -> torch.Tensor | None:
        """Returns the values that a later query may see, or None before the first ones."""
        return self.states(1, self.columns.kept(self.used)) if self.is_initialized else None

    def write(self) -> None:
        """Writes new keys and values that no attention call has written."""
        if self._new:
            self._call(self._new[0][:, :, :0])

    def _call(self, query: torch.Tensor, **options: Any) -> torch.Tensor:
        """Appends new keys and values, and attends."""
        length = self.used
        k = v = None
        if self._new:
            keys, values = self._new
            length -= keys.shape[2]
            if self._kept_dtype and not self._keeps_whole and not self.left_behind + length:
                # A row of the batch with infinities leaves the others as they are.
                self._mean = keys.mean((0, 2), keepdim=True).nan_to_num(0.0, 0.0, 0.0)
            k = (keys if self._mean is None else keys - self._mean).transpose(1, 2)
            v = values.transpose(1, 2)
        out: torch.Tensor = flash_attn_with_kvcache(
            query.transpose(1, 2), k=k, v=v, cache_seqlens=length, beam_index=self.columns.tables.get(self.device),
            **self._cached, **options,
        )  # fmt: skip
        self._new = ()
        return out

    def attend(
        self, query: torch.Tensor, visible: int, padding: torch.Tensor | None, window: tuple[int, int], **options: Any
    ) -> torch.Tensor | None:
        """Attends to the last `visible` keys in place; returns None if that needs more than padding on the left."""
        self._keeps_whole |= _needs_scores(**options)
        if self._mean is not None and self._keeps_whole:
            return None
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
        """Counts the keys that came so far."""
        return self.left_behind + self.used

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Returns (keys that query_length new queries may see, keys before those)."""
        kept = self.columns.kept(self.used)
        return kept + query_length, self.get_seq_length() - kept

    def get_max_length(self) -> int:
        """Returns the most keys that there may be, or -1 for any number."""
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
                f"XeCache.crop: a layer with a window keeps only the last {self.used}, "
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
        self._arrays, self._cached, self._new, self._mean = [], {}, (), None
        self._keeps_whole = False
        self.version += 1


def _needs_scores(softcap: float = 0.0, s_aux: torch.Tensor | None = None, **_: Any) -> bool:
    """Returns whether attention compares scores with numbers that do not depend on the query, or bends them."""
    return bool(softcap) or s_aux is not None


class HybridLayer(Layer, LinearAttentionAndFullAttentionLayer):  # type: ignore[misc]
    """A layer of keys and values beside states of linear attention, which are kept as Transformers keeps them."""

    def __init__(self, columns: Columns, dtype: torch.dtype | str | None, number_of_states: int) -> None:
        LinearAttentionLayer.__init__(self, number_of_states)
        Layer.__init__(self, columns, dtype)

    def lazy_initialization(self, *states: torch.Tensor, **named: Any) -> None:
        """Initialises keys and values, given by place, or the states of linear attention, given by name."""
        if states:
            Layer.lazy_initialization(self, *states)
        else:
            LinearAttentionLayer.lazy_initialization(self, **named)

    @property
    def is_croppable(self) -> bool:  # type: ignore[override]
        """Returns whether states can be cropped; linear attention cannot take back what it has seen."""
        croppable: bool = LinearAttentionLayer.is_croppable.fget(self)
        return croppable

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Reorders the states; XeCache reorders keys and values."""
        LinearAttentionLayer.reorder_cache(self, beam_idx)

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last -tokens_to_remove keys, if there are states of that many tokens."""
        LinearAttentionLayer.crop(self, tokens_to_remove)
        Layer.crop(self, tokens_to_remove)

    def reset(self) -> None:
        """Forgets all keys and states."""
        LinearAttentionLayer.reset(self)
        Layer.reset(self)


class CachedStates:
    """The keys or the values of a layer, in the form that an update returns.

    Our attention finds the layer by it. To everything else it is the tensor (B, Hk, keys, D), made when asked for.
    """

    __slots__ = ("_layer", "_part", "_states", "_version", "shape")

    def __init__(self, layer: Layer, part: int, keys: int) -> None:
        self._layer, self._part, self._version = layer, part, layer.version
        self.shape = torch.Size((layer.batch_size, layer._heads, keys, layer._dims[part]))
        self._states: torch.Tensor | None = None

    def _check(self) -> None:
        if self._version != self._layer.version:
            raise RuntimeError("XeCache: keys and values must be used before their layer changes again")

    def tensor(self) -> torch.Tensor:
        """Returns all of the states as a tensor."""
        if self._states is None:
            self._check()
            self._states = self._layer.states(self._part, self.shape[2])
        return self._states

    def attend(self, query: torch.Tensor, value: Any, **request: Any) -> torch.Tensor | None:
        """Attends to these keys and their values; returns None if that has to be done on tensors."""
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
    """Returns states, which may be of an XeCache, as a tensor."""
    return states.tensor() if isinstance(states, CachedStates) else states


def _operator(name: str) -> Any:
    return lambda self, *args: getattr(self.tensor(), name)(*map(as_tensor, args))


_OPERATORS = ("add", "eq", "ge", "getitem", "gt", "iter", "le", "len", "lt", "matmul", "mul", "ne", "neg", "pow",
              "radd", "rmatmul", "rmul", "rpow", "rsub", "rtruediv", "sub", "truediv")  # fmt: skip
for _name in _OPERATORS:
    setattr(CachedStates, f"__{_name}__", _operator(f"__{_name}__"))
