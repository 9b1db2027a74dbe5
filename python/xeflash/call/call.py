"""A call of attention on its way from the function to what runs it: one object, which no step changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xeflash.call.schema import BHSD, THD
from xeflash.call.values import shown

_NOTHING: dict[str, str] = {}
_CAPTURED = "captures['{}']"  # the name of one


class Call:
    """One computation in the words of schema.py, with the caller's word for each argument.

    Arguments that the schema does not have, such as gather_kv_indices, are among the others until a rewrite replaces
    them.
    """

    __slots__ = ("arguments", "words")

    def __init__(self, arguments: dict[str, Any], words: dict[str, str] = _NOTHING) -> None:
        self.arguments = arguments  # with the function's name and the layout; what is not given has its default
        self.words = words  # the caller's words, where they differ from the schema's

    @property
    def function(self) -> str:
        """Returns the name of the public function, for messages."""
        name: str = self.arguments["function"]
        return name

    @property
    def layout(self) -> int:
        """Returns BSHD, THD or BHSD."""
        layout: int = self.arguments["layout"]
        return layout

    @property
    def form(self) -> str:
        """Returns the letter of the call's operator, see Keyword.ops."""
        layout = self.arguments["layout"]
        return "a" if layout == BHSD else "p" if layout == THD else "c" if "k_cache" in self.arguments else "d"

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def __contains__(self, name: str) -> bool:
        return name in self.arguments

    def get(self, name: str, default: Any = None) -> Any:
        """Returns an argument, or the default if it is not given."""
        return self.arguments.get(name, default)

    def word(self, name: str) -> str:
        """Returns the caller's word for an argument."""
        return self.words.get(name, name)

    def with_(self, *without: str, words: dict[str, str] = _NOTHING, **changes: Any) -> Call:
        """Returns a copy without some arguments and with changes; `words` has the caller's words for new arguments."""
        arguments = self.arguments.copy()
        for name in without:
            arguments.pop(name, None)
        arguments.update(changes)
        return Call(arguments, {**self.words, **words} if words else self.words)

    def without_none(self, *names: str) -> Call:
        """Returns a copy without those of these arguments that are None, so that their defaults hold."""
        none = [name for name in names if self.arguments.get(name, 0) is None]
        return self.with_(*none) if none else self

    def apart(self, kind: type, **changes: Any) -> tuple[Call, list[str], list[Any]]:
        """Returns a copy without the arguments and captures of a type, and with changes; then names and values."""
        kept: dict[str, Any] = {}
        names, values = [], []
        for name, x in self.arguments.items():
            if isinstance(x, kind):
                names.append(name)
                values.append(x)
            else:
                kept[name] = x
        if captures := kept.get("captures"):
            kept["captures"] = {name: x for name, x in captures.items() if not isinstance(x, kind)}
            captured = {_CAPTURED.format(name): x for name, x in captures.items() if isinstance(x, kind)}
            names += captured
            values += captured.values()
        kept |= changes
        return Call(kept, self.words), names, values

    def joined(self, names: Sequence[str], values: Sequence[Any], *without: str, **changes: Any) -> Call:
        """Returns a copy with the values that apart() took out, without some other arguments, and with changes."""
        given = {**self.arguments}
        for name in without:
            given.pop(name, None)
        given.update(zip(names, values, strict=True))
        if captures := [name for name in names if name.startswith("captures[")]:
            start, end = _CAPTURED.split("{}")
            arrays = {name[len(start) : -len(end)]: given.pop(name) for name in captures}
            given["captures"] = arrays | given["captures"]
        given |= changes
        return Call(given, self.words)

    def refuse(self, name: str, rule: str, got: object, error: type[Exception] = ValueError) -> Exception:
        """Makes the error for an argument: the caller's word for it, the rule, and the value."""
        return error(f"{self.function}: {self.word(name)} {rule}, got {got}")

    def refuse_given(self, name: str, rule: str) -> Exception:
        """Makes the error for an argument that must not be given here."""
        return self.refuse(name, rule, shown(self.arguments[name]), NotImplementedError)
