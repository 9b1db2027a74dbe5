"""Cases of a language model's head: its loss, log-probabilities, the largest logits, and calls with one thing wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from arrays import DTYPES, from_array
from memory import Array
from products.heads import IGNORED, Head, check_loss, check_top_k, logits, sizes

from .case import Case, way_of
from .draw import Draw
from .invalid import INF, NAN, Mutation, again, wrong_numbers, wrong_products

TYPES = ("bf16", "fp32", "fp16")
NARROW = 1
ROWS = (0, 1, 1, 2, 3, 5, 8, 9, 16, 17, 33, 64, 65, 70)
VOCABULARIES = (1, 2, 3, 15, 16, 17, 31, 33, 63, 64, 65, 100, 129, 200, 257, 300)
FEATURES = (1, 2, 3, 8, 15, 16, 17, 24, 31, 32, 33, 40, 48, 64, 65, 96, 100)
NARROW_ROWS, NARROW_VOCABULARIES, NARROW_FEATURES = (0, 1, 3, 20), (1, 17, 64, 130), (31, 32, 48, 64, 96)
CHANGES = {"softcap": (0.0, None, 3.0, 30.0, 0.5), "logit_scale": (1.0, None, 0.25, -2.0, 1, 0.0)}
LEARNED = ("input", "linear_weight", "linear_bias")
WORKSPACE = 64 * 4 * 384  # bytes of 64 rows of logits, of any of these vocabularies


def leading(draw: Draw, rows: int) -> tuple[int, ...]:
    """Of rows with up to three axes."""
    return draw.of((rows,), (rows,), (rows,), (1, rows), (rows, 1), (2, rows), (rows, 1, 3), (1, rows, 2), ())


def draw_head(draw: Draw, changes: tuple[str, ...] = tuple(CHANGES)) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays of a head, and what changes its logits."""
    dtype = DTYPES[draw.random.choice(TYPES[: NARROW if draw.width == "narrow" else None])]
    narrow = draw.on_gpu and draw.width != "wide"
    vocabulary = draw.of(*(NARROW_VOCABULARIES if narrow else VOCABULARIES))
    features = draw.of(*(NARROW_FEATURES if narrow else FEATURES))
    if draw.kind == "usm":
        features = draw.of(32, 64, 96)
    lead = leading(draw, draw.of(*(NARROW_ROWS if narrow else ROWS)))
    # Of USM arrays rows that lie otherwise would be copied.
    packed = draw.kind.startswith("usm") and len(lead) > 1
    if draw.chance(0.15):  # of which many logits are equal
        x, w = (torch.randint(-2, 3, n, generator=draw.generator) for n in ((*lead, features), (vocabulary, features)))
    else:
        x, w = draw.numbers(*lead, features) * features**-0.5, draw.numbers(vocabulary, features)
    arrays: dict[str, Any] = {
        "input": draw.array(x.to(dtype), packed=packed),
        "linear_weight": draw.array(w.to(dtype)),
    }
    if draw.chance(0.4):
        arrays["linear_bias"] = draw.array(draw.normal(vocabulary).to(dtype))
    return arrays, {name: draw.of(*CHANGES[name]) for name in changes if draw.chance(0.4)}


def draw_target(draw: Draw, arrays: dict[str, Any], ignored: int | None) -> Array:
    """Tokens, some of which are ignored."""
    lead, vocabulary = arrays["input"].shape[:-1], arrays["linear_weight"].shape[0]
    integers = draw.of(torch.int64, torch.int32)
    target = torch.randint(vocabulary, lead, generator=draw.generator)
    if ignored is not None:
        target[torch.rand(lead, generator=draw.generator) < draw.of(0, 0.3, 0.3, 1)] = ignored
    return draw.array(target.to(integers), packed=draw.kind.startswith("usm"))


def draw_losses(draw: Draw) -> dict[str, Any]:
    """What makes losses of logits."""
    choices: dict[str, tuple[Any, ...]] = {
        "reduction": ("mean", "sum", "none"),
        "ignore_index": (None, -100, -1, 0, 5, 1000, -(2**31)),
        "label_smoothing": (0.0, 0.1, 0.3, 1.0, 1),
        "z_loss": (0.0, 1e-3, 0.1),
    }
    return {name: draw.of(*values) for name, values in choices.items() if draw.chance(0.5)}


def head_of(draw: Draw, arguments: dict[str, Any]) -> Head:
    """What is asked for, in the words of tests/products/heads.py."""
    x, w = arguments["input"], arguments["linear_weight"]
    divisor = arguments.get("divisor")
    scale = arguments.get("logit_scale")
    return Head(
        str(x.dtype), math.prod(x.shape[:-1]), *w.shape, "linear_bias" in arguments, arguments.get("softcap") or 0.0,
        1.0 if scale is None else scale, arguments.get("label_smoothing", 0.0), arguments.get("z_loss", 0.0),
        arguments.get("reduction", "mean"), kind="gpu" if draw.on_gpu else "torch",
        divisor=float(divisor.values()) if isinstance(divisor, Array) else divisor or 0.0, drawn=True,
    )  # fmt: skip


def rows_of(arguments: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Values of input, in rows, of the weight and of the bias."""
    x, bias = arguments["input"].values(), arguments.get("linear_bias")
    return x.reshape(-1, x.shape[-1]), arguments["linear_weight"].values(), None if bias is None else bias.values()


def targets_of(arguments: dict[str, Any]) -> torch.Tensor:
    """Those of rows, IGNORED where they are."""
    ignored = arguments.get("ignore_index")
    target = arguments["target"].values().reshape(-1).long()
    return target.masked_fill(target == (IGNORED if ignored is None else ignored), IGNORED)


def for_way(arguments: dict[str, Any], way: str) -> dict[str, Any]:
    """Torch's operators have defaults in the place of None."""
    return {name: x for name, x in arguments.items() if x is not None} if way == "operator" else arguments


# ---- losses -------------------------------------------------------------------------------------


def linear_cross_entropy(draw: Draw) -> Case:
    arrays, words = draw_head(draw)
    words |= draw_losses(draw)
    ignored = words.get("ignore_index")
    arguments = arrays | {"target": draw_target(draw, arrays, IGNORED if ignored is None else ignored)} | words
    if words.get("reduction", "mean") == "mean" and draw.chance(0.3):
        divisor = draw.of(7, 2.5, None)
        if draw.kind in ("numpy", "torch", "xpu") and not draw.mixed and draw.chance(0.5):
            one = torch.full(draw.of((), (1,)), 2.5)
            divisor = draw.array(one, packed=True)
        arguments["divisor"] = divisor
    if draw.chance(0.1):  # which nothing is kept in, without gradients
        arguments["workspace"] = draw.of(WORKSPACE, None)
    if want_lse := draw.chance(0.5):
        arguments["return_lse"] = True
    way = way_of(draw, arguments, not isinstance(arguments.get("divisor"), Array))
    arguments = for_way(arguments, way)
    head, lead = head_of(draw, arguments), arrays["input"].shape[:-1]

    def check(result: Any) -> None:
        loss, lse = result if want_lse else (result, None)
        loss, lse = (None if x is None else from_array(x, arrays["input"].kind) for x in (loss, lse))
        assert loss.shape == (lead if head.reduction == "none" else ()), f"the loss has shape {list(loss.shape)}"
        assert lse is None or lse.shape == lead, f"the LSE has shape {list(lse.shape)}"
        target = targets_of(arguments)
        if head.reduction == "mean" and not head.divisor and not bool((target != IGNORED).any()):
            assert bool(loss.isnan()), f"the mean of no rows is {float(loss)}"
        elif not head.rows:
            assert not loss.any(), f"the sum of no rows is {loss}"
        else:
            x, w, bias = rows_of(arguments)
            loss = loss.reshape(-1) if head.reduction == "none" else loss
            check_loss(head, loss, None if lse is None else lse.reshape(-1), x, w, target, bias)

    return Case("linear_cross_entropy", arguments, check, way, first=True)


def linear_log_prob(draw: Draw) -> Case:
    arrays, words = draw_head(draw)
    arguments = arrays | {"target": draw_target(draw, arrays, None)} | words
    way = way_of(draw, arguments)
    arguments = for_way(arguments, way)
    head, lead = head_of(draw, arguments)._replace(reduction="none"), arrays["input"].shape[:-1]

    def check(result: Any) -> None:
        found = from_array(result, arrays["input"].kind)
        assert found.shape == lead, f"the result has shape {list(found.shape)}"
        if head.rows:
            x, w, bias = rows_of(arguments)
            check_loss(head, -found.reshape(-1), None, x, w, targets_of(arguments | {"ignore_index": -1}), bias)

    return Case("linear_log_prob", arguments, check, way, first=True)


# ---- the largest logits -------------------------------------------------------------------------


def linear_top_k(draw: Draw) -> Case:
    arrays, words = draw_largest(draw)
    most = min(64, arrays["linear_weight"].shape[0])
    k = min(most, draw.of(1, 2, 7, 16, 33, 64, draw.random.randint(1, most)))
    arguments = arrays | {"k": k} | words
    way = way_of(draw, arguments)
    arguments = for_way(arguments, way)
    head = head_of(draw, arguments)

    def check(result: Any) -> None:
        values, tokens = (from_array(x, arrays["input"].kind) for x in result)
        wanted = (*arrays["input"].shape[:-1], k)
        assert values.shape == tokens.shape == wanted, f"{list(values.shape)}, {list(tokens.shape)}"
        if head.rows:
            judge_tokens(head, values.reshape(-1, k), tokens.reshape(-1, k), arguments)

    return Case("linear_top_k", arguments, check, way, first=True)


def linear_argmax(draw: Draw) -> Case:
    arrays, words = draw_largest(draw)
    arguments = arrays | words
    way = way_of(draw, arguments)
    arguments = for_way(arguments, way)
    head = head_of(draw, arguments)

    def check(result: Any) -> None:
        tokens = from_array(result, arrays["input"].kind)
        assert tokens.shape == arrays["input"].shape[:-1], f"the result has shape {list(tokens.shape)}"
        if head.rows:
            judge_tokens(head, None, tokens.reshape(-1, 1), arguments)

    return Case("linear_argmax", arguments, check, way, first=True)


def draw_largest(draw: Draw) -> tuple[dict[str, Any], dict[str, Any]]:
    """A head, some tokens of which are hidden, perhaps."""
    arrays, words = draw_head(draw)
    if "linear_bias" in arrays and words.get("logit_scale") in (None, 1, 0.25) and draw.chance(0.3):
        bias = arrays["linear_bias"].values()
        hidden = torch.rand(bias.shape, generator=draw.generator) < draw.of(0.1, 0.9, 1.0)
        words.pop("softcap", None)  # that of -inf is a number
        arrays["linear_bias"] = draw.array(bias.masked_fill(hidden, draw.of(-torch.inf, torch.nan)))
    return arrays, words


def judge_tokens(head: Head, values: torch.Tensor | None, tokens: torch.Tensor, arguments: dict[str, Any]) -> None:
    x, w, bias = rows_of(arguments)
    check_top_k(head, values, tokens, x, w, bias)
    if values is not None:
        assert not bool((values.diff(dim=1) > 0).any()), "values rise"
        equal = values.diff(dim=1) == 0
        assert bool((tokens.diff(dim=1)[equal] > 0).all()), "of equal values the lower token does not come first"
    whole = all(bool((t == t.round()).all()) for t in (x, w, bias) if t is not None)
    if whole and not head.softcap and head.scale in (0.25, 1, -2) and float(sizes(head, x, w, bias).max()) < 2**20:
        z = logits(head, x, w, bias)  # which fp32 has, too
        order = z.sort(dim=1, descending=True, stable=True).indices[:, : tokens.shape[1]]
        assert torch.equal(tokens, order), "tokens are not in order"


# ---- one thing wrong ----------------------------------------------------------------------------


def mutations(case: Case) -> Iterator[Mutation]:
    arguments, function = case.arguments, case.function
    x, w = arguments["input"], arguments["linear_weight"]
    loss, largest = "target" in arguments, function in ("linear_top_k", "linear_argmax")
    required = ("input", "linear_weight", *(["target"] if loss else []))
    learned = () if largest else LEARNED
    # The shape of a target follows from that of the input.
    names = ("linear_weight", "target", "linear_bias")
    arrays = {name: array for name, array in arguments.items() if name != "divisor"}
    yield from wrong_products(
        Case(function, arrays, case.check, case.way), required, learned, ("input",), ("target",), names
    )
    yield from wrong_numbers(softcap=(-1.0, NAN, INF, 1e39, "text", [1.0], 1j))
    yield from wrong_numbers(logit_scale=(NAN, INF, -INF, 1e39, "text", [1.0], 1j))
    yield from wrong_sizes(case)
    if function == "linear_top_k":
        yield from wrong_numbers(k=(0, -1, 65, w.shape[0] + 1, 2**31, 2**63, 2.0, NAN, "text", None, [1]))
    if loss:
        yield from wrong_targets(case)
    if function == "linear_cross_entropy":
        yield from wrong_losses(case)
    other = torch.float16 if x.dtype is torch.float32 else torch.float32
    if not x.kind.startswith("usm"):
        for name in ("linear_weight", "linear_bias"):
            if name in arguments:
                wrong = torch.zeros(arguments[name].shape).to(other)
                yield Mutation(name, f"is {other}, unlike input", lambda n=name, t=wrong: again(arguments[n], t))


def wrong_sizes(case: Case) -> Iterator[Mutation]:
    arguments = case.arguments

    def resized(name: str, axis: int, n: int) -> Array:
        shape = list(arguments[name].shape)
        shape[axis] = n
        return again(arguments[name], torch.zeros(shape).to(arguments[name].dtype))

    features, vocabulary = arguments["input"].shape[-1], arguments["linear_weight"].shape[0]
    yield Mutation("input", "has a feature more", lambda: resized("input", -1, features + 1), ("linear_weight",))
    yield Mutation("linear_weight", "has a feature more", lambda: resized("linear_weight", 1, features + 1))
    yield Mutation("linear_weight", "has no rows", lambda: resized("linear_weight", 0, 0))
    none = resized("linear_weight", 1, 0)
    yield Mutation("input", "has no features", lambda: resized("input", -1, 0), also=(("linear_weight", none),))
    if "linear_bias" in arguments:
        wrong = resized("linear_bias", 0, vocabulary + 1)
        yield Mutation("linear_bias", "has a token more", lambda: wrong)
    for axis, n in enumerate(arguments["target"].shape if "target" in arguments else ()):
        yield Mutation("target", f"is longer in axis {axis}", lambda i=axis, m=n: resized("target", i, m + 1))


def wrong_targets(case: Case) -> Iterator[Mutation]:
    target, vocabulary = case.arguments["target"], case.arguments["linear_weight"].shape[0]
    if not target.kind.startswith("usm"):
        yield Mutation("target", "is of probabilities", lambda: again(target, torch.zeros(target.shape)))
    if target.kind in ("usm", "xpu") or not math.prod(target.shape):
        return  # nobody waits for a GPU's
    values = target.values()
    ignored = case.arguments.get("ignore_index", IGNORED)
    for token in (vocabulary, -1, -2, 2**31 - 1, *((2**32, 2**62) if target.dtype is torch.int64 else ())):
        if token != (IGNORED if ignored is None else ignored) or case.function == "linear_log_prob":
            changed = values.clone()
            changed.view(-1)[-1] = token
            yield Mutation("target", f"has {token}", lambda t=changed: again(target, t))


def wrong_losses(case: Case) -> Iterator[Mutation]:
    yield from wrong_numbers("divisor", reduction=("max", "", 0, True))
    yield from wrong_numbers(
        ignore_index=(1.5, NAN, "text", [1], 2**63),
        label_smoothing=(-0.1, 1.5, NAN, INF, "text", [1.0]),
        z_loss=(-1.0, NAN, INF, 1e39, "text", [1.0]),
        workspace=(2.5, NAN, "text", [1]),
        return_lse=("text", 1, [1]),
    )
    if case.way != "operator":  # which has no weight, and other defaults
        yield from wrong_numbers(weight=(3, "text", [1.0]))
        yield from wrong_numbers(divisor=(0, -2.0, NAN, INF, 1e39, "text", [1.0]))
        yield from wrong_numbers(workspace=(0, -1))
    if isinstance(array := case.arguments.get("divisor"), Array):
        yield Mutation("divisor", "is of two", lambda: again(array, torch.ones(2)))
        yield Mutation("divisor", "is given for a sum", lambda: array, also=(("reduction", "sum"),))
        if array.kind in ("torch", "xpu"):
            yield Mutation("divisor", "requires grad", lambda: torch.ones(()).requires_grad_(), ("grad",))
    elif case.arguments.get("reduction", "mean") != "mean":
        yield from wrong_numbers(divisor=(2.5, 3))
