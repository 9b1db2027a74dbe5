"""Stand-ins for logits: they remember a head's inputs, and what is done to its result, until a cross entropy.

A model's own code runs on them: they are shifted, scaled, capped, flattened and given to ``cross_entropy``, which is
then ``xeflash.linear_cross_entropy`` of the head's inputs and weights. All else that needs logits raises an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import xeflash

__all__ = ["Head", "UnmadeLogits"]

_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Head:
    """A call of a model in which its head makes no logits."""

    def __init__(self, module: nn.Linear, owner: str) -> None:
        self.module = module
        self.owner = owner
        self.called = False
        self.losses = 0

    def logits(self, x: Any) -> UnmadeLogits:
        self.called = True
        weight: Any = self.module.weight
        bias: Any = self.module.bias
        if torch.is_autocast_enabled(x.device.type):  # autocast would cast the head's product, too
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight = x.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        return UnmadeLogits(self, x, weight, bias, x.dtype)

    def refused(self, what: str) -> NotImplementedError:
        return NotImplementedError(
            f"patch: with loss=True {self.owner} may take a cross entropy of logits, but wants {what}. "
            "No logits are made for it; call patch without loss=True"
        )


class UnmadeLogits:
    """Logits cap tanh(scale (x W^T + bias)), or without cap and tanh, of the type that the model expects."""

    def __init__(
        self,
        head: Head,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
        scale: float = 1.0,
        cap: float | None = None,
    ) -> None:
        self._head = head
        self._x = x
        self._weight = weight
        self._bias = bias
        self._scale = scale
        self._cap = cap
        self.dtype = dtype

    def _with(
        self,
        x: Tensor | None = None,
        scale: float | None = None,
        cap: float | None = None,
        dtype: torch.dtype | None = None,
    ) -> UnmadeLogits:
        return UnmadeLogits(
            self._head,
            self._x if x is None else x,
            self._weight,
            self._bias,
            self.dtype if dtype is None else dtype,
            self._scale if scale is None else scale,
            self._cap if cap is None else cap,
        )

    # ---- what they are

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self._x.shape[:-1], self._weight.shape[0]))

    @property
    def device(self) -> torch.device:
        return self._x.device

    @property
    def ndim(self) -> int:
        return len(self._x.shape)

    def dim(self) -> int:
        return len(self._x.shape)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    # ---- what keeps rows as they are

    def contiguous(self) -> UnmadeLogits:
        return self

    def float(self) -> UnmadeLogits:
        return self._with(dtype=torch.float32)

    def to(self, *wanted: Any, **named: Any) -> UnmadeLogits:
        """Returns the logits in another type, which sums in fp32 do not heed; refuses another device."""
        dtype = self.dtype
        for value in (*wanted, *(named[name] for name in ("dtype", "device") if name in named)):
            if isinstance(value, torch.dtype) and value in _FLOATS:
                dtype = value
            elif not isinstance(value, torch.device) or value != self.device:
                raise self._head.refused(f"them as {value}, where they are of {self.dtype} on {self.device}")
        return self._with(dtype=dtype)

    def __getitem__(self, index: Any) -> UnmadeLogits:
        """Returns some of the rows; the vocabulary stays whole."""
        parts = index if isinstance(index, tuple) else (index,)
        if all(part is Ellipsis or isinstance(part, (slice, int)) for part in parts):
            if Ellipsis in parts:
                at = parts.index(Ellipsis)
                parts = (*parts[:at], *[slice(None)] * (self.ndim + 1 - len(parts)), *parts[at + 1 :])
            if len(parts) < self.ndim or (len(parts) == self.ndim and parts[-1] == slice(None)):
                return self._with(self._x[parts])
        raise self._head.refused(f"logits[{index!r}]" if not isinstance(index, Tensor) else "logits[a tensor]")

    def view(self, *shape: Any) -> UnmadeLogits:
        sizes = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        vocabulary, inputs = self._weight.shape
        if not sizes or sizes[-1] not in (-1, vocabulary):
            raise self._head.refused(f"logits.view{sizes}, where {vocabulary} are a row")
        return self._with(self._x.reshape(*sizes[:-1], inputs))

    reshape = view

    # ---- what changes each of them

    def __mul__(self, factor: Any) -> UnmadeLogits:
        if not isinstance(factor, (int, float)):
            raise self._head.refused(f"logits * {type(factor).__name__}")
        return self._with(scale=self._scale * factor) if self._cap is None else self._with(cap=self._cap * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> UnmadeLogits:
        if not isinstance(divisor, (int, float)):
            raise self._head.refused(f"logits / {type(divisor).__name__}")
        return self._with(scale=self._scale / divisor) if self._cap is None else self._with(cap=self._cap / divisor)

    def tanh(self) -> UnmadeLogits:
        if self._cap is not None:
            raise self._head.refused("tanh of what is a tanh already")
        return self._with(cap=1.0)

    # ---- the loss

    def cross_entropy(
        self,
        target: Tensor,
        weight: Tensor | None = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        label_smoothing: Any = 0.0,
    ) -> Tensor:
        """Computes torch.nn.functional.cross_entropy of the logits without making them."""
        if self.ndim != 2:
            raise self._head.refused(f"cross_entropy(logits) of {self.ndim} dimensions, which must be 2")
        if weight is not None or size_average is not None or reduce is not None:
            raise self._head.refused("cross_entropy(logits) with weight, size_average or reduce, which must be None")
        self._head.losses += 1
        softcap, scale = (0.0, self._scale) if self._cap is None else (self._cap, self._scale * self._cap)
        loss: Tensor = xeflash.linear_cross_entropy(
            self._x, self._weight, target, linear_bias=self._bias, reduction=reduction, ignore_index=ignore_index,
            label_smoothing=label_smoothing, softcap=softcap, logit_scale=scale,
        )  # fmt: skip
        return loss

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ours = _FUNCTIONS.get(function)
        if ours is not None and isinstance(args[0] if args else None, UnmadeLogits):
            return ours(*args, **(kwargs or {}))
        for value in (*args, *(kwargs or {}).values()):
            if isinstance(value, UnmadeLogits):
                if function is functional.cross_entropy and not args:
                    named = dict(kwargs)
                    return named.pop("input").cross_entropy(**named)
                raise value._head.refused(f"{getattr(function, '__name__', function)} of them")
        raise NotImplementedError(f"patch: {function} is given logits in a list, which are not made")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._head.refused(f"logits.{name}")


def _refuses(operator: str) -> Callable[..., Any]:
    def refuse(self: UnmadeLogits, *_: Any) -> Any:
        raise self._head.refused(f"{operator} of them")

    return refuse


for _name in ("add", "radd", "sub", "rsub", "rtruediv", "matmul", "rmatmul", "pow", "neg", "setitem", "len", "iter",
              "float", "bool", "eq", "ne", "lt", "le", "gt", "ge"):  # fmt: skip
    setattr(UnmadeLogits, f"__{_name}__", _refuses(f"__{_name}__"))

_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    functional.cross_entropy: UnmadeLogits.cross_entropy,
    torch.tanh: UnmadeLogits.tanh,
    torch.mul: UnmadeLogits.__mul__,
    torch.div: UnmadeLogits.__truediv__,
}
