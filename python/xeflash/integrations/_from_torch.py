"""Calls of torch's own functions that come here: the switch that sends them, and the tensors that xeflash takes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TYPES = (Tensor, torch.nn.Parameter, FakeTensor, FunctionalTensor)
_MAX_HEAD_DIM = 576


class Calls(NamedTuple):
    """Counts of the calls of torch's functions that xeflash and torch have run since the process began."""

    xeflash: int
    torch: int


def _nothing() -> None:
    pass


class Switch:
    """A switch says whether the calls of a thread come here, and counts them.

    Args:
        register: makes torch's functions ask this switch; it is called each time that somebody turns it on.
        hold, release: called, one thread at a time, when the first user comes and when the last one has gone.
    """

    def __init__(
        self, name: str, register: Callable[[], None], hold: Callable[[], None] = _nothing,
        release: Callable[[], None] = _nothing,
    ) -> None:  # fmt: skip
        self._register, self._hold, self._release = register, hold, release
        self._lock = threading.Lock()
        self._users = 0
        self._everywhere = False
        self._here: ContextVar[bool] = ContextVar(f"xeflash_{name}", default=False)
        self._calls = {"xeflash": 0, "torch": 0}

    def is_on(self) -> bool:
        """Returns whether the calls of this thread come here."""
        return self._everywhere or self._here.get()

    @property
    def is_everywhere(self) -> bool:
        """Returns whether the calls of all threads come here."""
        return self._everywhere

    def count(self, ours: bool) -> bool:
        """Counts a call for xeflash, or for torch; returns `ours`. Threads that call at once may lose a count."""
        if self.is_on():
            self._calls["xeflash" if ours else "torch"] += 1
        return ours

    def calls(self) -> Calls:
        """Returns the counts."""
        return Calls(**self._calls)

    def enable(self) -> None:
        """Turns it on for all threads."""
        self._register()
        with self._lock:
            if not self._everywhere:
                self._enter()
            self._everywhere = True

    def disable(self) -> None:
        """Undoes enable(); open contexts stay in force."""
        with self._lock:
            if self._everywhere:
                self._leave()
            self._everywhere = False

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Turns it on for this thread, or asynchronous task."""
        self._register()
        token = self._here.set(True)
        with self._lock:
            self._enter()
        try:
            yield
        finally:
            with self._lock:
                self._leave()
            self._here.reset(token)

    def _enter(self) -> None:
        if not self._users:
            self._hold()
        self._users += 1

    def _leave(self) -> None:
        self._users -= 1
        if not self._users:
            self._release()


def are_plain(*tensors: Tensor) -> bool:
    """Returns whether tensors are dense, of our types and one of our dtypes, and seen by no function transform."""
    dtype = tensors[0].dtype
    if dtype not in _DTYPES:
        return False
    if peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return False
    return all(type(x) in TYPES and x.dtype is dtype and x.layout is torch.strided for x in tensors)


def have_kernels(dim: Any, dim_v: Any, device: str) -> bool:
    """Returns whether there are kernels for these head dims."""
    step = 1 if device == "cpu" else 8
    return all(0 < d <= _MAX_HEAD_DIM and d % step == 0 for d in (dim, dim_v))
