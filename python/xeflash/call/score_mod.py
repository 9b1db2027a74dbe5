"""Snippets of C++ that change or hide scores: a user's expression and its captures, compiled into the kernel."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, TypeAlias

_Snippet: TypeAlias = tuple[str, dict[str, Any]]
_ARRAY_ELEMENTS = {"float32": "float", "float16": "f16", "bfloat16": "bf16", "int32": "int", "bool": "bool"}
# A number that C++ takes for a double: a snippet's are floats, as not all GPUs have others.
_DOUBLE = re.compile(
    r"(?<![\w.'])(0[xX][\da-fA-F.]+[pP][+-]?\d+|(\d+\.\d*|\.\d+)([eE][+-]?\d+)?|\d+[eE][+-]?\d+)(?![\w.])"
)
_FORMS = {
    "score_mod": "an expression in C++ of s, b, h, q_idx, k_idx and captures",
    "mask_mod": "a condition in C++ of b, h, q_idx, k_idx and captures",
}
_TAKEN = ("s", "b", "h", "q_idx", "k_idx", "inf")
_FUNCTIONS = (
    *("select", "number", "min", "max", "abs", "floor", "whole"),
    *("exp", "exp2", "log", "log2", "sqrt", "tanh", "sin", "cos"),
)
_KEYWORDS = re.compile(
    r"alignas|alignof|and|and_eq|asm|auto|bitand|bitor|bool|break|case|catch|char|char8_t|char16_t|"
    r"char32_t|class|co_await|co_return|co_yield|compl|concept|const|const_cast|consteval|constexpr|"
    r"constinit|continue|decltype|default|delete|do|double|dynamic_cast|else|enum|explicit|export|extern|"
    r"false|float|for|friend|goto|if|inline|int|long|mutable|namespace|new|noexcept|not|not_eq|nullptr|"
    r"operator|or|or_eq|private|protected|public|register|reinterpret_cast|requires|return|short|signed|"
    r"sizeof|static|static_assert|static_cast|struct|switch|template|this|thread_local|throw|true|try|"
    r"typedef|typeid|typename|union|unsigned|using|virtual|void|volatile|wchar_t|while|xor|xor_eq"
)

# The compiler runs in this process, on the caller's stack, and descends into expressions. On 8 MiB, the usual stack,
# it stands 1000 nested brackets and 2000 operators in a row, but not twice as many, which end the process; on
# 2 MiB, a quarter of that.
_MOST_CHARACTERS, _MOST_WORDS, _MOST_BRACKETS = 1 << 16, 500, 64
_BRACKETS = {")": "(", "]": "[", "}": "{"}
# A branch on b, h or a captured number chooses between values that GPUs keep in vectors: IGC makes of some of these
# choices code for the first lane only. Our select() has a form that it gets right.
_BRANCHES = {"if", "else", "?", "switch", "for", "while", "do", "goto", "try"}
_TEXT = r"[\t -\[\]-~]"  # characters of a comment: all that print, except the backslash, which joins lines
_COMMENT = re.compile(rf"//{_TEXT}*|/\*(?:{_TEXT}|[\r\n])*?\*/")
_TYPES = {"const", "float", "int", "bool", "unsigned", "auto", "f16", "bf16"}
_WORD = re.compile(
    rf"[ \t\r\n]+|{_COMMENT.pattern}"
    r"|(?P<other>/\*|\?\?|%:|<%|%>|<:|:>)"  # a comment without end; other spellings of # and of brackets
    r"|(?P<word>[A-Za-z_]\w*|\.?\d(?:[eEpP][+-]|[\w.])*|[-+*/%<>=!&|^~?:.,;()\[\]{}])",
    re.ASCII,
)


def read_snippets(
    function: str, score_mod: Any, mask_mod: Any, captures: Mapping[str, Any] | None
) -> tuple[_Snippet | None, _Snippet | None]:
    """Checks a score_mod, a mask_mod and their captures.

    Returns both for the extension, each with the captures that it names, and numbers as Python's own.
    """
    texts = [(name, text) for name, text in (("score_mod", score_mod), ("mask_mod", mask_mod)) if text is not None]
    if not texts:
        if captures:
            raise ValueError(f"{function}: captures are for score_mod and mask_mod, got {captures!r} without one")
        return None, None
    for name, text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{function}: {name} must be a string, {_FORMS[name]}; got {type(text).__name__}")
    captures = captures or {}
    _check_names(function, tuple(captures), tuple(texts))
    found: dict[str, _Snippet] = {}
    for name, text in texts:
        code, words = _checked(function, name, text)
        found[name] = code, {x: _as_number(value) for x, value in captures.items() if x in words}
    return found.get("score_mod"), found.get("mask_mod")


def _as_number(value: Any) -> Any:
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


@functools.lru_cache
def _checked(function: str, name: str, text: str) -> tuple[str, frozenset[str]]:
    """Checks a snippet; returns it without comments, and its words."""
    words = _words_of(f"{function}: {name}", text)
    if not words:
        raise ValueError(f"{function}: {name} must not be empty, got {_shown(text)}")
    if name == "mask_mod" and "s" in words:
        raise ValueError(f"{function}: mask_mod must not read s, as no score is known yet, got {_shown(text)}")
    return without_comments(text), words


@functools.lru_cache
def _check_names(function: str, names: tuple[str, ...], texts: tuple[tuple[str, str], ...]) -> None:
    """Checks the names of captures, each of which must occur in one of the snippets."""
    words = frozenset[str]().union(*(_checked(function, name, text)[1] for name, text in texts))
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z]\w*", name) or name in _TAKEN:
            raise ValueError(f"{function}: captures must have names of C++ other than {sorted(_TAKEN)}, got {name!r}")
        if _KEYWORDS.fullmatch(name):
            raise ValueError(f"{function}: captures must not have names that are keywords of C++, got {name!r}")
        if name not in words:
            where = " or ".join(snippet for snippet, _ in texts)
            got = " and ".join(_shown(text) for _, text in texts)
            raise ValueError(f"{function}: captures[{name!r}] must occur in {where}, got {got}")


def names_read_by(snippet: str) -> frozenset[str]:
    """Returns the words of the code of a snippet, among which are the captures that it reads."""
    return frozenset(re.findall(r"\w+", without_comments(snippet), re.ASCII))


def without_comments(text: str) -> str:
    """Returns the code of a snippet without its comments."""
    return _COMMENT.sub(" ", text)


def _words_of(subject: str, text: str) -> frozenset[str]:
    """Returns the words of a snippet; raises ValueError unless it can be an expression or statements."""
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"{subject} must have at most {_MOST_CHARACTERS} characters, got {len(text)}")
    words: list[str] = []
    opened: list[str] = []
    statement = depth = 0  # the present statement's first word, and the brackets that are open around it
    place = 0
    while place < len(text):
        found = _WORD.match(text, place)
        if not found or found["other"]:
            raise ValueError(
                f"{subject} must consist of names, numbers, operators and brackets of C++, got "
                f"{found[0] if found else text[place]!r} at {place} in {_shown(text, place)}"
            )
        if word := found["word"]:
            words.append(word)
            if _is_too_large(word):
                raise ValueError(
                    f"{subject} must have numbers that are finite in float32, got {word!r} at {place} in "
                    f"{_shown(text, place)}"
                )
            if word in (";", ",") and len(opened) == depth and _has_no_value(words[statement:-1]):
                raise ValueError(
                    f"{subject} must give each variable a value where it declares it, got none at {place} "
                    f"in {_shown(text, max(0, place - 10))}"
                )
            if word in _BRANCHES:
                raise ValueError(
                    f"{subject} must not branch; select(condition, a, b) chooses, got {word!r} at "
                    f"{place} in {_shown(text, place)}"
                )
            if word in _BRACKETS.values():
                opened.append(word)
            elif word in _BRACKETS and (not opened or opened.pop() != _BRACKETS[word]):
                raise ValueError(
                    f"{subject} must close the brackets that it opens, got {word!r} at {place} in {_shown(text, place)}"
                )
            if word in (";", "{", "}"):
                statement, depth = len(words), len(opened)
            if len(opened) > _MOST_BRACKETS:
                raise ValueError(
                    f"{subject} must have at most {_MOST_BRACKETS} nested brackets, got more at "
                    f"{place} in {_shown(text, place)}"
                )
        place = found.end()
    if opened:
        raise ValueError(f"{subject} must close its brackets, got an open {opened[-1]!r} in {_shown(text)}")
    if len(words) > _MOST_WORDS:
        raise ValueError(
            f"{subject} must have at most {_MOST_WORDS} names, numbers, operators and brackets, got "
            f"{len(words)} in {_shown(text)}"
        )
    return frozenset(words)


def _has_no_value(words: list[str]) -> bool:
    """Returns whether words begin a declaration whose last variable has no value."""
    return len(words) > 1 and words[0] in _TYPES and words[-2] in _TYPES | {","}


def _is_too_large(word: str) -> bool:
    """Returns whether a word is a number beyond float32."""
    if not (word[0].isdigit() or word[0] == ".") or re.match(r"0[xXbB]", word) or not re.search(r"[.eE]", word):
        return False
    try:
        return float(word.rstrip("fF")) >= 2.0**128 * (1 - 2.0**-25)
    except ValueError:  # the compiler says what it is
        return False


def _shown(text: str, place: int = 0) -> str:
    """Returns the part of a text around a place, for an error."""
    start = max(0, place - 30)
    return "..." * (start > 0) + repr(text[start : start + 60]) + "..." * (start + 60 < len(text))


@dataclass(frozen=True)
class ScoreMod:
    """A snippet with the names, types and ranks of its captures, on which the code of a kernel depends."""

    text: str
    captures: tuple[tuple[str, str, int], ...] = ()

    def struct(self, learned: int = 0) -> list[str]:
        """Returns the snippet's lines of a kernel's source (kernels/attention/score_mod.hpp).

        `learned` has a bit for each captured array.
        """
        more = ", const int32_t (&first)[kMaxCapturedArrays], Reads& reads" if learned else ""
        arguments = "Score s, int b, int h, QueryIndex q_idx, KeyIndex k_idx"
        name = "LearnedSnippet" if learned else "Snippet"
        return self._struct(name, more, "class Score, ", f"Score operator()({arguments})", learned)

    def condition(self) -> list[str]:
        """Returns the lines of a snippet that is a condition (kernels/attention/listed.hpp)."""
        params = "XF_INLINE explicit Condition(const FwdParams& p)"
        made = "Condition(static_cast<const ScoreModParams&>(p).mask_captures) {}"
        operator = "auto operator()(int b, int h, QueryIndex q_idx, KeyIndex k_idx)"
        lines = self._struct("Condition", "", "", operator)
        return [*lines[:2], f"  {params} : {made}", *lines[2:]]

    def _struct(self, name: str, more: str, types: str, operator: str, learned: int = 0) -> list[str]:
        arrays = [(name, kind, rank) for name, kind, rank in self.captures if kind in _ARRAY_ELEMENTS]
        numbers = [(name, kind) for name, kind, _ in self.captures if kind not in _ARRAY_ELEMENTS]
        wanted = [bool(learned >> i & 1) for i in range(len(arrays))]
        members = [
            f"{'Learned' if is_wanted else 'Captured'}<{_ARRAY_ELEMENTS[kind]}, {rank}> {name};"
            for (name, kind, rank), is_wanted in zip(arrays, wanted, strict=True)
        ]
        members += [f"{kind} {name};" for name, kind in numbers]
        made = [
            f"{name}(c.arrays[{i}], first[{i}], reads)" if is_wanted else f"{name}(c.arrays[{i}])"
            for i, ((name, _, _), is_wanted) in enumerate(zip(arrays, wanted, strict=True))
        ]
        field = {"float": "real", "int": "integer"}
        made += [f"{name}(c.numbers[{i}].{field[kind]})" for i, (name, kind) in enumerate(numbers)]
        text = _DOUBLE.sub(r"\g<0>f", self.text)
        if learned:
            text = re.sub(r"\bfloat\b", "Real", re.sub(r"\bconstexpr\b", "const", text))
        return [
            "namespace snippet {",
            f"struct {name} {{",
            *(f"  {member}" for member in members),
            f"  XF_INLINE explicit {name}([[maybe_unused]] const Captures& c{more})",
            f"      {': ' if made else ''}{', '.join(made)} {{}}",
            f"  template <{types}class QueryIndex, class KeyIndex>",
            f"  XF_INLINE {operator} const {{",
            *(f"    const auto {name} = this->{name}();" for name, _, rank in arrays if not rank),
            f"    {text}" if ";" in text else f"    return ({text});",
            "  }",
            "};",
            "}  // namespace snippet",
        ]

    def names(self) -> tuple[str, ...]:
        """Returns the names that the text may use."""
        return *_TAKEN, *(name for name, _, _ in self.captures), *_FUNCTIONS

    def digest(self) -> str:
        """Returns a short hash that names the snippet and its captures."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:8]
