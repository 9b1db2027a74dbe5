"""Cases of tokens that are drawn from logits, or from those of a head, and calls with one thing wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from arrays import DTYPES, from_array
from memory import Array
from products.limits import Case as Limits
from products.limits import kept
from xeflash.selftest.products.heads import exponentials
from xeflash.selftest.tolerance import GPU_MATH, SCORES

from . import linear
from .case import Case, call_of, given, way_of
from .draw import Draw
from .heads import NARROW, NARROW_ROWS, NARROW_VOCABULARIES, ROWS, TYPES, VOCABULARIES, for_way, leading
from .invalid import INF, NAN, Mutation, again, wrong_numbers, wrong_products

GREEDY = 1e-5  # temperatures below are 0
OF_ROWS = {
    "seed": torch.int64, "position": torch.int64, "temperature": torch.float32, "top_k": torch.int32,
    "top_p": torch.float32, "min_p": torch.float32,
}  # fmt: skip
OF_WEIGHT = ("x", "weight", "bias", "scales", "zeros", "group", "order")


def sample(draw: Draw) -> Case:
    dtype = DTYPES[draw.random.choice(TYPES[: NARROW if draw.width == "narrow" else None])]
    narrow = draw.on_gpu and draw.width != "wide"
    vocabulary = draw.of(*(NARROW_VOCABULARIES if narrow else VOCABULARIES))
    lead = leading(draw, draw.of(*(NARROW_ROWS if narrow else ROWS)))
    usm = draw.kind.startswith("usm")
    way = way_of(draw, {})
    words = draw_words(draw, lead, vocabulary, way)
    z = draw.numbers(*lead, vocabulary) * draw.of(1, 3)
    if not words.get("softcap"):  # that of -inf is a number
        hidden = torch.rand(z.shape, generator=draw.generator) < draw.of(0, 0, 0.1, 0.9, 1.0)
        z = z.masked_fill(hidden, draw.of(-torch.inf, torch.nan))
    logits = draw.array(z.to(dtype), packed=usm and len(lead) > 1)
    arguments = for_way({"logits": logits, **words}, way)

    def check(result: Any) -> None:
        tokens = from_array(result, logits.kind)
        judge(tokens, logits.values(), arguments, draw.on_gpu)

    return Case("sample", arguments, check, way, first=True)


def linear_sample(draw: Draw) -> Case:
    if draw.kind.startswith("usm"):  # which have no product of their own
        draw.kind = "xpu" if draw.on_gpu else "torch"
    while (inner := linear.linear(draw)).arguments["weight"].shape[0] == 0:
        pass
    lead, vocabulary = inner.arguments["x"].shape[:-1], inner.arguments["weight"].shape[0]
    arguments = for_way(inner.arguments | draw_words(draw, lead, vocabulary, inner.way), inner.way)

    def check(result: Any) -> None:
        tokens = from_array(result, inner.arguments["x"].kind)
        logits = call_of("linear", "direct")(**{name: given(x) for name, x in inner.arguments.items()})
        judge(tokens, from_array(logits, inner.arguments["x"].kind), arguments, draw.on_gpu)

    return Case("linear_sample", arguments, check, inner.way, first=True)


def draw_words(draw: Draw, lead: tuple[int, ...], vocabulary: int, way: str) -> dict[str, Any]:
    """Seeds, positions and limits: numbers, as they are or in arrays without axes, or arrays of one for each row."""
    rows, usm = math.prod(lead), draw.kind.startswith("usm")
    values: dict[str, tuple[Any, ...]] = {
        "seed": (0, 7, -1, -(2**63), 2**63 - 1, 2**32, draw.random.getrandbits(62)),
        "position": (0, 1, 9, 2**32 + 5, -1, 2**62),
        "temperature": (1.0, 0.0, 0.3, 1e-6, 5.0, 1, 0.01),
        "top_k": (0, -1, 1, 2, 7, 50, vocabulary, vocabulary + 3, 2**31 - 1),
        "top_p": (1.0, 0.9, 0.5, 0.0, 1e-6, 0.99),
        "min_p": (0.0, 0.1, 1.0, 0.01, 0.5),
    }
    words: dict[str, Any] = {}
    for name, choices in values.items():
        if name != "seed" and not draw.chance(0.4):
            continue
        words[name] = draw.of(*choices, None) if name != "seed" else draw.of(*choices)
        if draw.chance(0.4):
            wrong_rows = torch.tensor([draw.random.choice(choices) for _ in range(rows)], dtype=OF_ROWS[name])
            shape = lead if lead and draw.chance(0.5) else (rows,)
            words[name] = draw.array(wrong_rows.reshape(shape), packed=usm)
        elif words[name] is not None and not usm and way != "operator" and draw.chance(0.15):
            words[name] = draw.array(torch.tensor(words[name], dtype=OF_ROWS[name]))
    if draw.chance(0.2):
        words["softcap"] = draw.of(0.0, None, 3.0, 30.0)
    if draw.chance(0.2):
        words["logit_scale"] = draw.of(1.0, None, 0.5, 3)
    if draw.chance(0.3):
        words["min_p_last"] = draw.chance(0.5)
    return words


def row_limits(arguments: dict[str, Any], row: int) -> tuple[Limits, int, int]:
    """Its limits, seed and position."""
    words = {}
    for name in (*OF_ROWS, "softcap", "logit_scale", "min_p_last"):
        x = arguments.get(name)
        if isinstance(x, Array):
            words[name] = x.values().reshape(-1)[row if x.shape else 0].item()
        elif x is not None:
            words[name] = x
    seed, position = words.pop("seed"), words.pop("position", 0)
    return Limits(**words), seed, position


def judge(tokens: torch.Tensor, logits: torch.Tensor, arguments: dict[str, Any], on_gpu: bool) -> None:
    """Each token wins the race of those that stay, or nearly; see tests/products/test_sample_tokens.py."""
    assert tokens.dtype == torch.int64, f"tokens are {tokens.dtype}"
    assert tokens.shape == logits.shape[:-1], f"tokens have shape {list(tokens.shape)}"
    vocabulary = logits.shape[-1]
    z = logits.double().reshape(-1, vocabulary).numpy()
    z = np.where(np.isnan(z), -np.inf, z)
    for row, token in enumerate(tokens.reshape(-1).tolist()):
        if not (z[row] > -np.inf).any():
            assert token == -1, f"row {row} has no finite logit, and token {token}"
            continue
        assert 0 <= token < vocabulary, f"row {row}: there is no token {token}"
        limits, seed, position = row_limits(arguments, row)
        if limits.temperature < GREEDY:
            judge_greedy(row, token, z[row], limits, on_gpu)
        else:
            shared = not isinstance(arguments["seed"], Array) or not arguments["seed"].shape
            drawn = exponentials(vocabulary, seed % 2**64, position % 2**64, row if shared else 0)
            judge_drawn(row, token, z[row], limits, drawn, on_gpu)


def slack_of(z: np.ndarray, limits: Limits, on_gpu: bool) -> float:
    """How far roundings move a logit: scaled, capped and divided by the temperature, and its exponential."""
    size = float(np.abs(z[z > -np.inf]).max()) * limits.logit_scale
    softcap_error = GPU_MATH * limits.softcap if on_gpu else 0.0
    return 4 * (SCORES * size + softcap_error + SCORES * limits.softcap) / max(limits.temperature, GREEDY) + GPU_MATH


def judge_greedy(row: int, token: int, z: np.ndarray, limits: Limits, on_gpu: bool) -> None:
    if not limits.softcap and limits.logit_scale == 1:
        assert token == np.argmax(z), f"row {row}: {token} is not the first of the largest, {np.argmax(z)}"
    _, weights = kept(z, limits._replace(temperature=1.0))
    slack = slack_of(z, limits._replace(temperature=1.0), on_gpu)
    assert np.log(weights[token]) >= -slack, f"row {row}: the logit of {token} is not the largest one"


def judge_drawn(row: int, token: int, z: np.ndarray, limits: Limits, drawn: np.ndarray, on_gpu: bool) -> None:
    slack = slack_of(z, limits, on_gpu)
    most, weights = kept(z, limits.wider(1e-4), slack)
    least, _ = kept(z, limits.wider(-1e-4), -slack)
    assert most[token], f"row {row}: token {token} was to be left out by {limits}"
    race = weights / drawn
    if least.any():
        best = int(np.argmax(race * least))
        assert race[token] >= race[best] * (1 - 1e-4 - 2 * slack), f"row {row}: {token} has lost to {best}, by {limits}"


# ---- one thing wrong ----------------------------------------------------------------------------


def mutations(case: Case) -> Iterator[Mutation]:
    if case.function == "linear_sample":
        weight_arguments = {name: x for name, x in case.arguments.items() if name in OF_WEIGHT}
        yield from linear.mutations(replace(case, arguments=weight_arguments))
        weight = case.arguments["weight"]
        none = again(weight, torch.zeros(0, weight.shape[1]).to(weight.dtype))
        if not {"bias", "scales"} & set(weight_arguments):
            yield Mutation("weight", "has no rows", lambda: none)
    else:
        arrays = {"logits": case.arguments["logits"]}
        names = (*OF_ROWS, *(f"{name}s" for name in OF_ROWS))
        yield from wrong_products(replace(case, arguments=arrays), ("logits",), (), ("logits",), (), names)
        shape = (*arrays["logits"].shape[:-1], 0)
        empty = again(arrays["logits"], torch.zeros(shape).to(arrays["logits"].dtype))
        yield Mutation("logits", "has no tokens", lambda: empty)
    integers, share = (2.5, NAN, "text", [1], 1j), (-0.1, 1.5, NAN, INF, "text", [1.0])
    yield from wrong_numbers(
        seed=(*integers, None, 2**63, -(2**63) - 1), position=(*integers, 2**63), top_k=(*integers, 2**63),
        temperature=(-1.0, NAN, INF, 1e39, "text", [1.0], 1j), top_p=share, min_p=share,
        softcap=(-1.0, NAN, INF, 1e39, "text", [1.0]), logit_scale=(0.0, -1.0, NAN, INF, 1e39, "text", [1.0]),
        min_p_last=("text", 1, [1]),
    )  # fmt: skip
    yield from wrong_rows(case)


def wrong_rows(case: Case) -> Iterator[Mutation]:
    """Arrays in the place of numbers."""
    like = case.arguments["logits" if case.function == "sample" else "x"]
    rows, usm = math.prod(like.shape[:-1]), like.kind.startswith("usm")
    for name, dtype in OF_ROWS.items():
        names = (f"{name}s",)
        ones = torch.ones(rows, dtype=dtype)
        more = torch.ones(rows + 2, dtype=dtype)
        yield Mutation(name, f"is of {rows + 2} rows", lambda m=more: again(like, m), names)
        yield Mutation(name, "has more axes", lambda o=ones: again(like, o.reshape(1, 1, 1, 1, rows)), names)
        for other in (torch.int64, torch.int32, torch.float32, torch.float64, torch.bfloat16):
            if other is not dtype and not (usm and other in (torch.float64, torch.bfloat16)):
                yield Mutation(name, f"is of {other}", lambda o=ones, t=other: again(like, o.to(t)), names)
        if like.kind in ("torch", "xpu"):
            yield Mutation(name, "is on meta", lambda o=ones: o.to("meta"), names)
        if like.kind == "xpu":
            yield Mutation(name, "is on the host", lambda o=ones: o, names)
