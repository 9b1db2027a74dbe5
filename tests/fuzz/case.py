"""A case: what is called and what has to come of it. `perform` calls and judges."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from memory import Array

REFUSALS = (ValueError, TypeError, NotImplementedError)
# What the machinery below says, which nobody who calls a function can understand.
NOT_OURS = (
    "incompatible function arguments",
    "incompatible constructor arguments",
    "Unable to cast",
    "Expected a value of type",
    "Invoked with",
    "declaration:",
    "argument must be",
    "object is not",
)


@dataclass(eq=False)
class Case:
    function: str
    arguments: dict[str, Any]
    check: Callable[[Any], None]  # of a result, by assertions
    way: str = "direct"  # mode: below a dispatch mode of torch; operator: torch.ops.xeflash
    written: dict[str, Any] = field(default_factory=dict)  # arguments, and the index of what may change
    before: Callable[[], None] | None = None
    call: Callable[..., Any] | None = None  # instead of the function of this name
    facts: dict[str, Any] = field(default_factory=dict)  # what the arguments do not say by themselves
    wrong: str = ""  # what makes the call invalid
    names: frozenset[str] = frozenset()  # of which a refusal has to have one
    either: bool = False  # it may be taken all the same
    first: bool = False  # a refusal has to begin with one of the names

    @property
    def expected(self) -> str:
        return "refused" if self.wrong and not self.either else "right or refused" if self.wrong else "right"

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """All of them, each under the name of its argument."""
        for name, value in self.arguments.items():
            yield from ((name, x) for x in arrays_of(value))

    def __str__(self) -> str:
        lines = [f"{self.function} ({self.way}), to be {self.expected}" + (f": {self.wrong}" if self.wrong else "")]
        return "\n".join(lines + [f"  {name} = {value!r}" for name, value in self.arguments.items()])


def arrays_of(value: Any) -> Iterator[Array]:
    if isinstance(value, Array):
        yield value
    elif isinstance(value, dict):
        for x in value.values():
            yield from arrays_of(x)
    elif isinstance(value, list | tuple):
        for x in value:
            yield from arrays_of(x)


def given(value: Any) -> Any:
    """The same with what is passed in the place of each array."""
    if isinstance(value, Array):
        return value.given
    if isinstance(value, dict):
        return {name: given(x) for name, x in value.items()}
    if isinstance(value, list | tuple) and any(arrays_of(value)):
        return type(value)(given(x) for x in value)
    return value


class Wrong(AssertionError):
    """What a call did is not what it has to do."""


def perform(case: Case) -> str:
    """Calls, and returns "right" or "refused"; raises Wrong."""
    arrays = list(case.arrays())
    snapshots = [x.memory.copy() for _, x in arrays]
    if case.before:
        case.before()
    arguments = {name: given(value) for name, value in case.arguments.items()}
    try:
        with np.errstate(all="ignore"), torch.set_grad_enabled("grad" in case.names):
            result = (case.call or call_of(case.function, case.way))(**arguments)
    except REFUSALS as error:
        outcome, problem = "refused", judge_refusal(case, error)
    except Exception as error:
        kind = "unclear refusal: " if case.wrong else ""
        outcome, problem = "refused", f"{kind}raised {type(error).__name__}: {str(error)[:200]}; {case.wrong}"
    else:
        outcome, problem = "right", "" if case.expected != "refused" else f"accepted, although {case.wrong}"
    written = case.written if outcome == "right" else {}
    for (name, array), snapshot in zip(arrays, snapshots, strict=True):
        if changed := changes(array, snapshot, written.get(name)):
            raise Wrong(f"{name}: {changed}" + (f"; {problem}" if problem else ""))
    if problem:
        raise Wrong(problem)
    if outcome == "right":
        try:
            case.check(result)
        except AssertionError as error:
            raise Wrong(str(error)) from None
    return outcome


def changes(array: Array, snapshot: np.ndarray, written: Any) -> str:
    """What has changed in the memory of an array and had to stay."""
    now = array.now()
    if np.array_equal(now, snapshot):
        return ""
    other = now != snapshot
    if written is not None:
        other &= ~array.bytes_of(written)
    if not other.any():
        return ""
    places = np.flatnonzero(other)
    where = "an input" if written is None else "what is not to be written"
    inside = int(np.sum(array.bytes_of()[places]))
    return f"{where} has changed: {places.size} bytes, {inside} of elements, the first at byte {places[0]} ({array!r})"


def judge_refusal(case: Case, error: Exception) -> str:
    """What is wrong with a refusal; empty: nothing."""
    text = str(error)
    if case.expected == "right":
        return f"a valid call was refused: {type(error).__name__}: {text[:500]}"
    got = f"; {case.wrong}; got {type(error).__name__}: {text[:200]}"
    if any(raw in text for raw in NOT_OURS):
        return "unclear refusal: the text is not ours" + got
    if not text.startswith(f"{case.function}: "):
        return "unclear refusal: the text does not begin with the function" + got
    words = re.findall(r"[A-Za-z_]\w*", text.partition(": ")[2])
    if not case.names & set(words[:1] if case.first else words):
        return f"unclear refusal: the text names none of {', '.join(sorted(case.names))}" + got
    return ""


# ---- ways to call -------------------------------------------------------------------------------


def way_of(draw: Any, arguments: dict[str, Any], operator: bool = True) -> str:
    """Torch's tensors can go through its dispatcher, too."""
    if draw.kind not in ("torch", "xpu") or draw.mixed:
        return "direct"
    operator &= "gather_kv_indices" not in arguments  # which become another call
    return draw.random.choices(("direct", "mode", "operator"), (60, 20, 20 if operator else 0))[0]


def call_of(function: str, way: str) -> Callable[..., Any]:
    import xeflash

    direct = getattr(xeflash, function)
    if function == "merge_states":  # its states are positional
        direct = lambda states: xeflash.merge_states(*states)  # noqa: E731
    if way == "direct":
        return direct
    if way == "operator":
        return lambda **arguments: by_operator(function, arguments)

    def below_mode(**arguments: Any) -> Any:
        with passing_mode():
            return direct(**arguments)

    return below_mode


def passing_mode() -> contextlib.AbstractContextManager[Any]:
    """A dispatch mode that changes nothing: with it the public functions go through their operators."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Passing(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **(kwargs or {}))

    return Passing()


OPERATORS = {
    "attention": "attention",
    "flash_attn_func": "flash_attn",
    "flash_attn_varlen_func": "flash_attn_varlen",
    "flash_attn_with_kvcache": "flash_attn_with_kvcache",
    "merge_states": "merge_states",
    "linear": "linear",
    "matmul_softmax": "matmul_softmax",
    "linear_cross_entropy": "linear_cross_entropy",
    "linear_log_prob": "linear_cross_entropy",
    "linear_top_k": "linear_top_k",
    "linear_argmax": "linear_top_k",
    "sample": "sample",
    "linear_sample": "sample",
}
_OF_LINEAR = ("weight", "bias", "scales", "zeros", "group", "order")
_FLAGS = {"attention": "return_lse", "flash_attn_with_kvcache": "return_softmax_lse"}


def by_operator(function: str, arguments: dict[str, Any]) -> Any:
    """The call in the words of torch's operator; its result in those of the function."""
    import xeflash.torch_ops  # noqa: F401

    operator = getattr(torch.ops.xeflash, OPERATORS[function])
    if function == "merge_states":
        states = arguments["states"]
        return operator(list(states[::2]), list(states[1::2]))
    words = dict(arguments)
    if function == "matmul_softmax":
        return operator(words.pop("a"), words.pop("b"), **words)
    if function == "linear_cross_entropy":
        want_lse = words.pop("return_lse", False)
        loss, lse, _ = operator(**words)
        return (loss, lse) if want_lse else loss
    if function == "linear_log_prob":
        return operator(**words, reduction="none", log_prob=True, function=function)[0]
    if function == "linear_sample":
        linear_words = {name: words.pop(name) for name in (*_OF_LINEAR, "x") if name in words}
        words["function"] = linear_words["function"] = function
        return by_operator("sample", {"logits": by_operator("linear", linear_words), **words})
    if function == "sample":
        words = {name + "s" * (isinstance(x, torch.Tensor) and name != "logits"): x for name, x in words.items()}
    if function in ("linear_top_k", "sample"):
        return operator(**words)
    if function == "linear_argmax":
        return operator(**words, k=1, argmax=True, function=function)[1]
    if function == "linear":
        order = words.pop("order", None)
        return operator(**(words if order is None else words | {"x": words["x"][..., order]}))
    words["window_left"], words["window_right"] = words.pop("window_size", (-1, -1))
    want_lse = words.pop(_FLAGS.get(function, "return_attn_probs"), False)
    words["return_lse"] = want_lse
    words.pop("deterministic", None)
    if (rng := words.pop("rng", None)) is not None:
        words["seed"], words["offset"] = ((x + 2**63) % 2**64 - 2**63 for x in rng)
    if isinstance(words.get("cache_seqlens"), int):
        words["cache_length"] = words.pop("cache_seqlens")
    for side in "kv":
        if isinstance(words.get(f"{side}_scale"), float | int):
            words[f"{side}_factor"] = words.pop(f"{side}_scale")
    if captures := words.pop("captures", None):
        named = sorted(captures.items(), key=lambda item: not isinstance(item[1], torch.Tensor))
        words["capture_names"] = [name for name, _ in named]
        words["capture_arrays"] = [x for _, x in named if isinstance(x, torch.Tensor)]
        words["capture_numbers"] = [x for _, x in named if not isinstance(x, torch.Tensor)]
    out, lse, *_ = operator(**words)
    if not want_lse:
        assert lse.numel() == 0, f"an LSE of {lse.numel()} elements that was not asked for"
        return out
    return (out, lse, None) if function.startswith("flash_attn") and function not in _FLAGS else (out, lse)
