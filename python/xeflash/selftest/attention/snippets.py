"""The C++ of a Spec: each score_mod and mask_mod, what it captures, and the same in numpy or torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from xeflash.selftest.attention.spec import Spec
from xeflash.selftest.reference import to_numpy
from xeflash.selftest.values import Values

Captures: TypeAlias = dict[str, float | None]  # numbers, and arrays, which are None here

PERIOD, TILT, SLANT = 7, 0.75, 0.0625
# The score_mod of each variant that has one, and its captures.
SCORE_MODS: dict[str, tuple[str, Captures]] = {
    "snippet": ("select(kind[(q_idx + k_idx) % period] == 0, -inf, s + tilt * level(h, (k_idx + b) % period))",
                {"kind": None, "level": None, "period": PERIOD, "tilt": TILT}),
    "curve": ("select((q_idx + k_idx) % period == 3, -inf, s + tilt * tanh(s * near[h]) + near[(k_idx + b) % period])",
              {"near": None, "tilt": TILT, "period": PERIOD}),
    "slope": ("s * near[h] - tilt * (q_idx - k_idx) + 0.125f * b", {"near": None, "tilt": SLANT}),
    "gain": ("s * (1 + 0.5 * h)", {}),  # it reads no positions
}  # fmt: skip
# Keys before the row and some behind it, for each head, without some groups of 32, for each sequence.
MASK_MOD = "(k_idx <= q_idx + reach[h]) & (kind[(k_idx / 32 + b) % period] != 0)"
OF_MASK_MOD: Captures = {"reach": None, "kind": None, "period": PERIOD}


def draw_captures(spec: Spec, random: np.random.Generator) -> dict[str, Values]:
    """Draws the arrays that the snippets of a Spec capture."""
    heads, found = spec.heads[0], dict[str, Values]()
    if spec.has("snippet", "mask_mod"):
        found["kind"] = Values.of(random.integers(0, 5, PERIOD), "int32")
    if spec.has("snippet"):
        found["level"] = Values.of(random.standard_normal((max(heads, 1), PERIOD)), "float16")
    if spec.has("curve", "slope"):
        found["near"] = Values.of(random.random(max(heads, PERIOD)) + spec.has("slope"), "float32")
    if spec.has("mask_mod"):
        keys = max([1, *(n for _, n in spec.sequences)])
        found["reach"] = Values.of(random.integers(-keys // 4, keys, max(heads, 1)), "int32")
    return found


def _snippets(spec: Spec) -> dict[str, tuple[str, Captures]]:
    """Returns the snippets of a Spec by their keywords."""
    score_mod = next((snippet for name, snippet in SCORE_MODS.items() if spec.has(name)), None)
    found = {"score_mod": score_mod, "mask_mod": (MASK_MOD, OF_MASK_MOD) if spec.has("mask_mod") else None}
    return {name: snippet for name, snippet in found.items() if snippet}


def snippets_in_words(spec: Spec, said: dict[str, Any]) -> dict[str, Any]:
    """Returns the keywords of snippets and captures; takes the captures' arrays out of what is `said`."""
    snippets = _snippets(spec)
    captures = {name: x for _, captured in snippets.values() for name, x in captured.items()}
    captures = {name: said.pop(name) if x is None else x for name, x in captures.items()}
    return {name: text for name, (text, _) in snippets.items()} | ({"captures": captures} if snippets else {})


def snippets_in_core(spec: Spec, said: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keywords of a call in the extension, where each snippet has its own captures."""
    captures = said.get("captures", {})
    return {name: (text, {x: captures[x] for x in captured}) for name, (text, captured) in _snippets(spec).items()}


def score_mod_of(spec: Spec, given: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Returns a Spec's score_mod as a function of numpy or torch, as its captured arrays are."""

    def snippet(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        hidden = (given["kind"] == 0)[(i + j) % PERIOD]
        return _hide(hidden, s + TILT * given["level"][h, (j + b) % PERIOD])

    def curve(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        near = given["near"]
        bent = s * near[h]
        bent = bent.tanh() if hasattr(bent, "tanh") else np.tanh(bent)
        return _hide((i + j) % PERIOD == 3, s + TILT * bent + near[(j + b) % PERIOD])

    def slope(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s * given["near"][h] - SLANT * (i - j) + 0.125 * b

    def gain(s: Any, _: Any, h: Any, *__: Any) -> Any:
        return s * (1 + 0.5 * h)

    by_name: dict[str, Callable[..., Any]] = {"snippet": snippet, "curve": curve, "slope": slope, "gain": gain}
    return next((mod for name, mod in by_name.items() if spec.has(name)), None)


def mask_mod_of(spec: Spec, given: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Returns a Spec's mask_mod as a function of numpy."""
    if not spec.has("mask_mod"):
        return None
    reach, kind = (to_numpy(given[name]).astype(int) for name in ("reach", "kind"))
    return lambda b, h, i, j: (j <= i + reach[h]) & (kind[(j // 32 + b) % PERIOD] != 0)


def _hide(hidden: Any, s: Any) -> Any:
    """Returns scores of numpy or torch with -inf where they are hidden."""
    return s.masked_fill(hidden, -math.inf) if hasattr(s, "masked_fill") else np.where(hidden, -np.inf, s)
