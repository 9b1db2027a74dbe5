"""Binding of a public function's arguments to a call, which the function's body gets."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, cast

from xeflash.call.call import Call
from xeflash.call.hints import add_hint
from xeflash.call.newer_words import in_our_words
from xeflash.call.values import flag, window

_P = ParamSpec("_P")
_Result = TypeVar("_Result", covariant=True)
_Body = Callable[[Call], Any]


class Public(Generic[_P, _Result]):
    """The type of a public function for type checkers: its signature, and a decorator for its body."""

    def __call__(self, *arguments: _P.args, **named: _P.kwargs) -> _Result:
        """Calls the function."""
        raise NotImplementedError

    def body(self, run: _Body) -> _Body:
        """Makes `run` the body of the function."""
        raise NotImplementedError


def public(
    layout: int | None = None, *, words: dict[str, str] | None = None, with_ranks: bool = False, **defaults: Any
) -> Callable[[Callable[_P, _Result]], Public[_P, _Result]]:
    """Makes a public function of a signature and its docstring; what it does is the function below it:

        @public(BSHD)
        def flash_attn_func(q, k, v, ...):
            \"""...\"""

        @flash_attn_func.body
        def _(call: Call) -> Any:
            ...

    The call has the arguments that the caller gives. All others have the defaults of schema.py, which a test compares
    with the signature's, or those of `defaults`. `words` maps the schema's words to the function's. Functions over
    ranks (`with_ranks`) read window_size and deterministic themselves (in_words_of_schema), so that all ranks learn of
    a refusal.
    """
    words = words or {}

    def decorate(function: Callable[_P, _Result]) -> Public[_P, _Result]:
        parameters = inspect.signature(function).parameters
        own, schema_words = frozenset(parameters), {theirs: ours for ours, theirs in words.items()}
        has_words = frozenset(schema_words)
        name, names = function.__name__, tuple(schema_words.get(x, x) for x in parameters)
        before = [frozenset(tuple(parameters)[:count]) for count in range(len(parameters) + 1)]
        places = sum(x.kind is not x.KEYWORD_ONLY for x in parameters.values())
        needed = sum(x.default is x.empty for x in parameters.values())
        may_lack_starts = "cu_seqlens_k" in parameters
        base = {"function": name, **({} if layout is None else {"layout": layout}), **defaults}
        run: _Body = _no_body

        @functools.wraps(function)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            count, mine = len(arguments), words
            given = base.copy()
            given.update(zip(names, arguments))  # noqa: B905  strict takes its time
            if named:
                if not own.issuperset(named):
                    named, mine = in_our_words(Call(given, words), own, named)
                if "softcap" in named and named["softcap"] is None:
                    del named["softcap"]
                if has_words.isdisjoint(named):
                    given.update(named)
                else:
                    for word, x in named.items():
                        given[schema_words.get(word, word)] = x
            if may_lack_starts and "cu_seqlens_k" not in given and given.get("seqused_k") is not None:
                given["cu_seqlens_k"] = named["cu_seqlens_k"] = None  # lengths say enough
            if not needed <= count <= places or (named and not before[count].isdisjoint(named)):
                function(*arguments, **named)  # raises a TypeError, unless all is well
            if ("window_size" in given or "deterministic" in given) and not with_ranks:
                _translate(given)
            call = Call(given, mine)
            try:
                return run(call)
            except (TypeError, ValueError) as error:
                add_hint(call, error)
                raise

        def body(of: _Body) -> _Body:
            nonlocal run
            run = of
            return of

        wrapper.body = body  # type: ignore[attr-defined]
        return cast("Public[_P, _Result]", wrapper)

    return decorate


def _translate(given: dict[str, Any]) -> None:
    if "window_size" in given:
        given["window_left"], given["window_right"] = window(given["function"], given.pop("window_size"))
    if "deterministic" in given:  # the backward pass always is
        flag(given["function"], "deterministic", given.pop("deterministic"))


def in_words_of_schema(call: Call) -> Call:
    """Replaces window_size by its two sides and drops deterministic, as ``public`` does for other functions."""
    given = call.arguments.copy()
    _translate(given)
    return Call(given, call.words)


def _no_body(call: Call) -> Any:
    raise NotImplementedError(f"{call.function}: a body must follow the signature, got none")
