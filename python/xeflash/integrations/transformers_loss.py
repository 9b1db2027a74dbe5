"""The loss of a language model of Transformers without its logits: ``patch(model, loss=True)``.

In training, a call with ``labels`` makes no logits: the model's own forward runs with a head that only remembers what
it was given, up to ``cross_entropy``, which is then ``xeflash.linear_cross_entropy``. So the loss is what the model and
its ``loss_function`` make of it: shifted labels, ``num_items_in_batch``, the scales of Cohere and Granite, the softcap
of Gemma, what routers of experts add. It is in fp32. The output has no ``logits``, as if these were None: a tuple is
shorter by one. In evaluation and without labels, as where Trainer smooths labels, logits are made as before.

A model whose code needs more of logits than that raises NotImplementedError in its first step, which names the model
and the operation. The head must be a plain nn.Linear, without hooks and without adapters.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import MethodType
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from xeflash.integrations._unmade_logits import Head, UnmadeLogits

__all__ = ["find", "replace", "restore"]

_KEY = "_xeflash_loss"  # in the __dict__ of modules whose forward is replaced
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_TENSORS = (torch.Tensor, nn.Parameter)


class _Replaced:
    """The forward that a module had before, if it was not its class's."""

    def __init__(self, before: Callable[..., Any] | None, labels: int = 0) -> None:
        self.before = before
        self.labels = labels  # the place of labels among positional arguments

    def own(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return type(module).forward(module, *args, **kwargs) if self.before is None else self.before(*args, **kwargs)


class _Calls:
    """The call of a model that is running in this thread, or in a compiled graph in this process."""

    def __init__(self) -> None:
        self._in_thread: ContextVar[Head | None] = ContextVar(_KEY, default=None)
        self._traced: Head | None = None

    def current(self) -> Head | None:
        return self._traced if torch.compiler.is_compiling() else self._in_thread.get()

    @contextmanager
    def of(self, head: Head) -> Iterator[None]:
        if torch.compiler.is_compiling():
            before, self._traced = self._traced, head
            try:
                yield
            finally:
                self._traced = before
        else:
            token = self._in_thread.set(head)
            try:
                yield
            finally:
                self._in_thread.reset(token)


_calls = _Calls()


def find(model: nn.Module) -> tuple[PreTrainedModel, nn.Linear]:
    """Finds the language model in a module, and its head; raises an error where the loss needs its logits."""
    found = next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)
    if found is None:
        raise TypeError(f"patch: model must contain a model of Transformers for loss=True, got {type(model).__name__}")
    if "labels" not in inspect.signature(type(found).forward).parameters:
        raise NotImplementedError(f"patch: loss=True wants a forward with labels, but {type(found).__name__} has none")
    return found, _head_of(found)


def replace(model: nn.Module) -> str:
    """Replaces the forward of the language model in a module, and of its head; returns the name of the head."""
    found, head = find(model)
    kind: Any = type(found)
    _take(found, _forward_of(kind), [*inspect.signature(kind.forward).parameters].index("labels") - 1)
    _take(head, _head_forward)
    names: list[str] = [name for name, module in model.named_modules() if module is head]
    return names[0]


def restore(model: nn.Module) -> None:
    """Undoes ``replace`` in a model."""
    for module in model.modules():
        replaced: _Replaced | None = module.__dict__.pop(_KEY, None)
        if replaced is None:
            continue
        function = getattr(module.forward, "__func__", None)
        if not hasattr(function, _KEY) and function is not type(module).forward:
            continue  # somebody has it inside of his own, where it runs what the class has
        module.__dict__.pop("forward", None)
        if replaced.before is not None:
            module.__dict__["forward"] = replaced.before


def _take(module: nn.Module, forward: Callable[..., Any], labels: int = 0) -> None:
    module.__dict__[_KEY] = _Replaced(module.__dict__.get("forward"), labels)
    module.__dict__["forward"] = MethodType(forward, module)


def _head_of(model: PreTrainedModel) -> nn.Linear:
    """Returns the head of a model; raises an error if it cannot be left out."""
    head: Any = model.get_output_embeddings()
    owner = type(model).__name__

    def refused(why: str) -> NotImplementedError:
        return NotImplementedError(f"patch: loss=True wants a head of {owner} that is a plain nn.Linear, but {why}")

    if head is None:
        raise refused("get_output_embeddings() gives None")
    if type(head) is not nn.Linear:
        raise refused(f"it is a {type(head).__name__} of {type(head).__module__}")
    if type(head.weight) not in _TENSORS or head.weight.dtype not in _DTYPES:
        raise refused(f"its weight is a {type(head.weight).__name__} of {head.weight.dtype}")
    if head.weight.device.type not in ("cpu", "xpu"):
        raise refused(f"its weight is on {head.weight.device}")
    if head._forward_hooks or head._forward_pre_hooks or head._backward_hooks or head._backward_pre_hooks:
        raise refused("it has hooks")
    if hasattr(head, "_hf_hook"):
        raise refused("it has a hook of accelerate, which may bring its tensors")
    if _KEY not in head.__dict__ and "forward" in head.__dict__ and "_xeflash" not in head.__dict__:
        raise refused("its forward was replaced by somebody else")
    return head


def _head_forward(self: nn.Linear, input: Any) -> Any:
    call = _calls.current()
    if call is not None and call.module is self:
        return call.logits(input)
    replaced: _Replaced | None = self.__dict__.get(_KEY)
    return type(self).forward(self, input) if replaced is None else replaced.own(self, input)


_head_forward.__name__ = "forward"  # by this name pickle finds it in a module; in one that it has made, the class's own
setattr(_head_forward, _KEY, True)


@functools.cache
def _forward_of(model: Any) -> Callable[..., Any]:
    """Makes our forward of a class, with the signature of its own, which Trainer reads."""

    @functools.wraps(model.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        replaced: _Replaced | None = self.__dict__.get(_KEY)
        if replaced is None:
            return type(self).forward(self, *args, **kwargs)
        labels = args[replaced.labels] if len(args) > replaced.labels else kwargs.get("labels")
        if labels is None or not self.training:
            return replaced.own(self, *args, **kwargs)
        head = _head_of(self)
        if _KEY not in head.__dict__:  # resize_token_embeddings made the head later
            _take(head, _head_forward)
        call = Head(head, type(self).__name__)
        with _calls.of(call):
            output = replaced.own(self, *args, **kwargs)
        if not call.called:
            raise NotImplementedError(f"patch: loss=True wants {call.owner} to call its head, but it did not")
        if not call.losses:
            raise NotImplementedError(
                f"patch: loss=True wants {call.owner} to make its loss by cross_entropy, but it did not"
            )
        return _without_logits(output, call)

    setattr(forward, _KEY, True)
    return forward


def _without_logits(output: Any, call: Head) -> Any:
    if isinstance(output, ModelOutput):
        return type(output)(**{name: x for name, x in output.items() if not isinstance(x, UnmadeLogits)})
    if type(output) is tuple:
        return tuple(x for x in output if not isinstance(x, UnmadeLogits))
    raise call.refused(f"to put them into a {type(output).__name__}")
