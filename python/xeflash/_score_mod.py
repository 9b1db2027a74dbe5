"""A user's change to scores: an expression of C++ that is compiled into the kernel, with what it captures."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

_ARRAY_ELEMENTS = {"float32": "float", "float16": "f16", "bfloat16": "bf16", "int32": "int32_t", "bool": "uint8_t"}
_TAKEN = {"s", "b", "h", "q_idx", "k_idx", "inf"}


def check(function: str, score_mod: Any, captures: Mapping[str, Any] | None) -> tuple[str, dict[str, Any]] | None:
    """What the extension takes: the snippet and its captures, numbers as Python's own."""
    if score_mod is None:
        if captures:
            raise ValueError(f"{function}: captures are for score_mod, got {captures!r} without one")
        return None
    if not isinstance(score_mod, str):
        raise TypeError(
            f"{function}: score_mod must be a string, an expression in C++ of s, b, h, q_idx, k_idx and captures; "
            f"got {type(score_mod).__name__}"
        )
    if captures is not None and not isinstance(captures, Mapping):
        raise TypeError(f"{function}: captures must be a mapping of names to values, got {type(captures).__name__}")
    captures = dict(captures or {})
    _check_words(function, score_mod, tuple(captures))
    return score_mod, {name: _as_number(value) for name, value in captures.items()}


def _as_number(value: Any) -> Any:
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


@functools.lru_cache
def _check_words(function: str, text: str, names: tuple[str, ...]) -> None:
    if not text.strip():
        raise ValueError(f"{function}: score_mod must not be empty, got {text!r}")
    words = set(re.findall(r"[A-Za-z_]\w*", text))
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z]\w*", name) or name in _TAKEN:
            raise ValueError(f"{function}: captures must have names of C++ other than {sorted(_TAKEN)}, got {name!r}")
        if name not in words:
            raise ValueError(f"{function}: captures[{name!r}] must occur in score_mod, got {text!r}")


@dataclass(frozen=True)
class ScoreMod:
    """A snippet and the names, types and ranks (0: a number) of its captures: what the code of a kernel depends on."""

    text: str
    captures: tuple[tuple[str, str, int], ...] = ()

    def struct(self) -> list[str]:
        """Its lines of a kernel's source (kernels/attention/score_mod.hpp)."""
        arrays = [(name, kind, rank) for name, kind, rank in self.captures if rank]
        numbers = [(name, kind) for name, kind, rank in self.captures if not rank]
        members = [f"Captured<{_ARRAY_ELEMENTS[kind]}, {rank}> {name};" for name, kind, rank in arrays]
        members += [f"{kind} {name};" for name, kind in numbers]
        made = [f"{name}(c.arrays[{i}])" for i, (name, _, _) in enumerate(arrays)]
        field = {"float": "real", "int": "integer"}
        made += [f"{name}(c.numbers[{i}].{field[kind]})" for i, (name, kind) in enumerate(numbers)]
        return [
            "struct Snippet {",
            *(f"  {member}" for member in members),
            "  XF_INLINE explicit Snippet([[maybe_unused]] const Captures& c)",
            f"      {': ' if made else ''}{', '.join(made)} {{}}",
            "  template <class QueryIndex, class KeyIndex>",
            "  XF_INLINE Floats operator()(Floats s, int b, int h, QueryIndex q_idx, KeyIndex k_idx) const {",
            f"    {self.text}" if ";" in self.text else f"    return ({self.text});",
            "  }",
            "};",
        ]

    def digest(self) -> str:
        """A short name."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:8]
