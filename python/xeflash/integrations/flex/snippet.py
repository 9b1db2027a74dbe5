"""A function of torch as a snippet of C++, and the arrays and numbers that the snippet reads in a call."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from xeflash.api.attention.made_once import is_captured, made_once
from xeflash.call.score_mod import read_snippets
from xeflash.integrations.flex.expressions import Expr, Refused, as_bool, as_float
from xeflash.integrations.flex.traced import trace
from xeflash.integrations.flex.translate import READABLE, Capture, translate
from xeflash.torch_ops.library import requires_grad

_MOST_ARRAYS, _MOST_NUMBERS = 8, 8  # kMaxCapturedArrays and kMaxCapturedNumbers of kernels/attention/params.hpp
_MOST_OF_TABLE = 1 << 22  # elements
_IN_TEXT = (0, 1, 2, 0.5, math.inf)  # numbers that are not captured
_MOST_BRACKETS = 24  # in one statement
_INT32 = torch.iinfo(torch.int32)
_FAR = 1 << 30


class Place(NamedTuple):
    """The sizes of a call, and its device."""

    b: Any
    h: Any
    q: Any
    k: Any
    device: torch.device


class Snippet:
    """A score_mod, or a mask_mod, in C++; its text is empty if it changes nothing."""

    def __init__(
        self,
        function: Callable[..., Any],
        scores: bool,
        device: torch.device,
        given: Sequence[Any],
        seen: Sequence[Tensor],
    ) -> None:
        """Translates a function; see trace() for `given` and `seen`."""
        self.name = "score_mod" if scores else "mask_mod"
        try:
            self.traced = trace(function, scores, device, given, seen)
            result = translate(self.traced)
            result = as_float(result) if scores else as_bool(result)
            writer = _Writer("" if scores else "m")
            self.text = "" if result.code == "s" or result.value is True else writer.write(result)
            if self.text:
                texts = (self.text, None) if scores else (None, self.text)
                read_snippets("a snippet", texts[0], texts[1], writer.numbers | writer.arrays)
        except (Refused, ValueError, IndexError, RecursionError) as error:
            which = getattr(function, "__name__", type(function).__name__)
            rule = f"flex_attention: {self.name} must be what a kernel can say"
            raise Refused(f"{rule}, got {error} in {which!r}") from error
        self._numbers, self._arrays = writer.numbers, writer.arrays
        self._tables: dict[Hashable, Tensor] = {}  # that depend on positions alone

    def captures(self, tensors: Sequence[Tensor], place: Place) -> dict[str, Any]:
        """Returns what the snippet reads, for the tensors of a call."""
        return {name: self._array(x, tensors, place) for name, x in self._arrays.items()} | self._numbers

    def _array(self, capture: Capture, tensors: Sequence[Tensor], place: Place) -> Tensor:
        every = (*tensors, *self.traced.own)
        sources = [every[i] for i in self.traced.read_by(capture.node)]
        sizes = tuple(getattr(place, name) for name in capture.side)
        if any(0 in x.shape for x in sources):
            raise Refused("flex_attention: captured tensors must not be empty")
        if math.prod(sizes) > _MOST_OF_TABLE:
            size = math.prod(sizes)
            raise Refused(f"flex_attention: {self.name} needs a table of {size} elements, at most {_MOST_OF_TABLE}")

        def make() -> Tensor:
            return _readable(self.traced.value(capture.node, capture.side, every, place), place.device)

        if self.name == "score_mod" and requires_grad(*sources):
            return make()
        with torch.no_grad():
            if not sources:
                is_traced = any(isinstance(n, torch.SymInt) for n in sizes)
                return self._table(None if is_traced else (capture, place.device, sizes), make)
            if capture.node not in self.traced.tensors:
                return made_once(sources, (self, capture, place.device, sizes), make)
            x = sources[0].detach() if self.name == "mask_mod" else sources[0]
            if x.dtype in READABLE and x.device == place.device:
                return x
            return made_once(sources, ("readable", place.device), make)

    def _table(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """Returns make(), called once for the latest sizes, but for calls that torch traces."""
        made = self._tables.get(key) if key is not None else None
        if made is None:
            with torch.inference_mode(False):  # a later call may record gradients
                made = make()
            if key is not None and type(made) is Tensor:
                self._tables = {**dict(list(self._tables.items())[-_MOST_ARRAYS:]), key: made}
        return made


def _readable(x: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor as kernels read it."""
    if x.dtype is torch.float64 and x.dim() == 0:
        x = x.to(torch.float32)
    if x.dtype is torch.float64:
        raise Refused("flex_attention: captured tensors must not be float64")
    if x.dtype not in READABLE:
        x = (_near(x) if x.dtype is torch.int64 else x).to(torch.int32)
    return x if x.device == device else x.to(device)


def _near(x: Tensor) -> Tensor:
    """Returns integers in whose place those beyond 32 bits are 2^30, beyond positions and sums with them.

    They must all mean "no limit", of either sign: several that differ may be names, which have to stay different.
    """
    beyond = (x > _INT32.max) | (x < _INT32.min)
    if type(x) in (Tensor, torch.nn.Parameter) and not (x.is_xpu and is_captured(torch, x)):  # it has values
        far = x[beyond].abs()
        if far.numel() and bool((far != far[0]).any()):
            raise Refused("flex_attention: captured integers beyond 32 bits must be one number, got several")
    return torch.where(beyond, x.sign() * _FAR, x)


class _Writer:
    """Writes an expression as statements: one for each value that is read more than once."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._lines: list[str] = []
        self._names: dict[Any, str] = {}  # of expressions and of their texts
        self._uses: Counter[Expr] = Counter()
        self.arrays: dict[str, Capture] = {}
        self.numbers: dict[str, Any] = {}

    def write(self, x: Expr) -> str:
        self._count(x)
        result = self._text(x)
        return "\n".join([*self._lines, f"return {result};"]) if self._lines else result

    def _count(self, x: Expr) -> None:
        for i, part in enumerate(x.of):
            if part not in self._uses:
                self._count(part)
            self._uses[part] += x.code.count(f"{{{i}}}") or 1

    def _text(self, x: Expr) -> str:
        if x.value is not None:
            return self._number(x)
        if x not in self._names:
            parts = [self._text(part) for part in x.of]
            text = x.code.format(*parts)
            if x.capture is not None:
                text = self._array(x.capture) + (f"({', '.join(parts)})" if parts else "")
            if parts and text not in self._names and (self._uses[x] > 1 or text.count("(") > _MOST_BRACKETS):
                self._names[text] = f"t{len(self._lines)}"
                self._lines.append(f"const auto {self._names[text]} = {text};")
            self._names[x] = self._names.get(text, text)
        return self._names[x]

    def _number(self, x: Expr) -> str:
        """Returns a number's text, or the name that it is captured by, so that other values need no other kernel."""
        if x.is_literal and (x.stays or abs(x.value) in _IN_TEXT):
            return x.code
        for name, known in self.numbers.items():
            if known is x.value or (x.code and type(known) is type(x.value) and known == x.value):
                return name
        if len(self.numbers) == _MOST_NUMBERS:
            if not x.code:
                raise Refused(f"more than {_MOST_NUMBERS} numbers that vary")
            return x.code
        name = f"{self._prefix}n{len(self.numbers)}"
        self.numbers[name] = x.value
        return name

    def _array(self, capture: Capture) -> str:
        for name, known in self.arrays.items():
            if known == capture:
                return name
        if len(self.arrays) == _MOST_ARRAYS:
            raise Refused(f"more than {_MOST_ARRAYS} captured tensors")
        name = f"{self._prefix}a{len(self.arrays)}"
        self.arrays[name] = capture
        return name
