"""Conversion of a call to the arguments of its operator, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from xeflash.call.call import Call
from xeflash.call.schema import BHSD, OF_ATTENTION, THD
from xeflash.torch_ops.forms import Form

Scalar = int | float
_SNIPPET = ("score_mod", "capture_names", "capture_arrays", "capture_numbers")
_OF_PAGES = {"k_cache": "k", "v_cache": "v"}  # the operator's words for the extension's
_NUMBERS = (("k_scale", "k_factor"), ("v_scale", "v_factor"))


def laid_out(call: Call, form: Form) -> dict[str, Any]:
    """Returns the arguments of a call's operator, without `out`, as an operator returns it."""
    given = with_lists(call)
    given = {form.names.get(name, name): x for name, x in given.items() if name not in ("layout", "out")}
    for name in ("seed", "offset"):
        if given.get(name) is not None:
            given[name] = as_int64(given[name])
    for scale, factor in _NUMBERS:  # a scale that is a number has a name of its own in a schema
        if (number := given.get(scale)) is not None and not isinstance(number, Tensor):
            given[factor] = given.pop(scale)
            if abs(number) >= 2**128:  # a schema's floats hold less than an int
                raise call.refuse(scale, "must be positive and finite in float32", f"{number!s:.40}")
        elif number is not None and number.ndim < 3:  # only scales of rows are written, whatever the schema says
            given[scale] = number.contiguous()
    if "residual" in given:
        given["keep_rest"] = bool(given.pop("residual"))
    if form.letter == "p":
        given.setdefault("cu_seqlens_k", None)  # pages need none, and the schema has no default
        if "k_cache" in given:  # the operator tells pages by their table
            given["k"], given["v"] = given.pop("k_cache"), given.pop("v_cache")
    return given


def reader(form: Form) -> Callable[[tuple[Any, ...], dict[str, Any]], Call]:
    """Returns a function that makes a call of the arguments that the dispatcher has for an operator."""
    schema_words, names = {theirs: ours for ours, theirs in form.names.items()}, form.rows[0]
    base: dict[str, Any] = {"function": form.function, "layout": form.layout, **form.defaults}
    has_pages = form.layout == THD

    def read(arguments: tuple[Any, ...], more: dict[str, Any]) -> Call:
        given = base.copy()
        given.update(zip(names, arguments))  # noqa: B905  strict takes its time
        if more:
            for name, x in more.items():
                given[schema_words.get(name, name)] = x
        paged = has_pages and given.get("block_table") is not None
        words = form.names
        if more:
            put_together(given, paged or form.letter == "c")
            words = take_words(given, words)
        if paged:
            if given.get("dropout_p"):
                got = given["dropout_p"]
                raise NotImplementedError(f"{given['function']}: dropout_p must be 0 with block_table, got {got}")
            given["k_cache"], given["v_cache"] = given.pop("k"), given.pop("v")
        return Call(given, words)

    return read


def put_together(given: dict[str, Any], cached: bool) -> None:
    """Combines arguments that a schema has in several parts."""
    function = given["function"]
    if not given.keys().isdisjoint(_SNIPPET):
        text, *lists = (given.pop(name, None) for name in _SNIPPET)
        if captures := captures_of(function, *lists):
            given["captures"] = captures
        if text is not None:
            given["score_mod"] = text
    for scale, factor in _NUMBERS:
        if (number := given.pop(factor, None)) is not None:
            if not cached:
                raise ValueError(f"{function}: {factor} must come with a cache of keys, got one without")
            if given.get(scale) is not None:
                raise ValueError(f"{function}: {factor} must not be given with {scale}, got {number}")
            given[scale] = number
    if given.get("seed", 0) is None:  # ready() draws one
        del given["seed"]
    for name in {"seed", "offset"} & given.keys():
        given[name] %= 2**64
    if "keep_rest" in given:
        given["residual"] = given.pop("keep_rest") or None


def captures_of(
    function: str,
    names: Sequence[str] | None,
    arrays: Sequence[Tensor] | None,
    numbers: Sequence[Scalar] | None,
) -> dict[str, Any]:
    """Returns captures that are lists as a dict: the names of the arrays come first, then those of the numbers."""
    values = (*(arrays or ()), *(numbers or ()))
    if len(set(names or ())) != len(values) or len(names or ()) != len(values):
        raise ValueError(
            f"{function}: capture_names must be a name of its own for each of capture_arrays and capture_numbers "
            f"({len(values)}), got {list(names or ())}"
        )
    return dict(zip(names or (), values, strict=True))


def with_lists(call: Call) -> dict[str, Any]:
    """Returns a call's arguments in the form that operators take: lists for captures and for the caller's words."""
    given = call.arguments.copy()
    captures = given.pop("captures", None) or {}
    if any(given.get(name) is not None for name in ("score_mod", "mask_mod")):
        arrays = {name: x for name, x in captures.items() if isinstance(x, Tensor)}
        numbers = {name: x for name, x in captures.items() if not isinstance(x, Tensor)}
        given |= {"capture_names": [*arrays, *numbers]}
        given |= {"capture_arrays": list(arrays.values()), "capture_numbers": list(numbers.values())}
    known = {BHSD: OF_ATTENTION, THD: _OF_PAGES}.get(given["layout"], {})
    if words := [(name, word) for name, word in call.words.items() if name in given and known.get(name, name) != word]:
        given["words"] = [x for pair in words for x in pair]
    return given


def take_words(given: dict[str, Any], names: dict[str, str]) -> dict[str, str]:
    """Takes the caller's words out of an operator's arguments, and returns them with the operator's `names`."""
    if not (words := given.pop("words", None)):
        return names
    if len(words) % 2:
        raise ValueError(f"{given['function']}: words must be names and words in turn, got {len(words)} of them")
    return names | dict(zip(words[::2], words[1::2], strict=True))


def as_int64(value: int) -> int:
    """Returns the same bits as a signed number."""
    return value if value < 2**63 else value - 2**64
