"""Cases of linear: rows anywhere in memory, weights of every kind, and calls with one thing wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from arrays import DTYPES, from_array
from memory import Array, Layout, place
from products.weights import EIGHT_BITS, GROUPS, stored
from xeflash.selftest.tolerance import compare, limit_of

from .case import Case, way_of
from .draw import Draw
from .invalid import Mutation, again, wrong_products

# dtype, kind of weights, inputs of a group, the seed that chooses the type of scales. Few, as each is compiled.
KERNELS = [
    ("bf16", "same", 0, 0),
    ("bf16", "int4", 128, 2),
    ("fp32", "same", 0, 0),
    ("fp16", "int4", 32, 1),
    ("fp32", "int4", 0, 0),
    ("fp16", "int8", 0, 1),
    ("bf16", "int8", 64, 0),
    ("bf16", "e4m3", 0, 2),
    ("fp16", "e5m2", 128, 0),
]
NARROW = 2
ROWS = (1, 1, 1, 2, 3, 5, 8, 9, 16, 17, 33, 64, 65, 130)
NARROW_ROWS = (1, 1, 3, 20)
OUTPUTS = (1, 2, 15, 16, 17, 31, 33, 48, 63, 64, 100, 257)
INPUTS = (1, 2, 3, 8, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 200, 257, 520)


def linear(draw: Draw) -> Case:
    if draw.width == "wide":
        dtype, kind = draw.of(*DTYPES), draw.of("same", "int4", *EIGHT_BITS)
        group, seed = draw.of(*GROUPS), draw.of(0, 1, 2)
    else:
        dtype, kind, group, seed = draw.random.choice(KERNELS[: NARROW if draw.width == "narrow" else None])
    rows = 0 if draw.chance(0.03) else draw.of(*(NARROW_ROWS if draw.width == "narrow" else ROWS))
    outputs, inputs = 0 if draw.chance(0.02) else draw.of(*OUTPUTS), draw.of(*INPUTS)
    if draw.width == "wide" and draw.chance(0.1):
        outputs = draw.of(1024, 1030)
    lead = draw.of((rows,), (rows,), (rows,), (1, rows), (rows, 1), (2, rows), (rows, 1, 3), ())
    one_stride = draw.kind.startswith("usm") and len(lead) > 1  # rows that lie otherwise would be copied
    lead = (rows,) if one_stride and rows == 0 else lead
    x = draw.array(draw.numbers(*lead, inputs).to(DTYPES[dtype]), packed=one_stride)
    made = stored(kind, outputs, inputs, x.dtype, group, draw.chance(0.5), 3 * draw.random.getrandbits(20) + seed)
    given = made.arguments
    if kind == "int4":  # also behind the inputs
        given["weight"] = torch.randint(0, 256, given["weight"].shape, generator=draw.generator, dtype=torch.uint8)
    weight = draw.array(given["weight"], cached=True, forward=True, distinct=True)
    arguments: dict[str, Any] = {"x": x, "weight": weight}
    for name in ("scales", "zeros"):
        if name in given:
            arguments[name] = draw.array(given[name])
    if kind != "same" and (given["group"] is not None or draw.chance(0.3)):
        arguments["group"] = given["group"]
    if draw.chance(0.4):
        arguments["bias"] = draw.array(draw.normal(outputs).to(x.dtype))
    way = way_of(draw, arguments)
    if way == "operator" and arguments.get("group", 0) is None:
        del arguments["group"]
    order = torch.arange(inputs)
    if x.kind in ("numpy", "torch", "xpu") and way != "operator" and draw.chance(0.2):  # the operator has no order
        order = torch.randperm(inputs, generator=draw.generator)
        arguments["order"] = again(x, order.to(draw.of(torch.int32, torch.int64)))

    def check(result: Any) -> None:
        out = from_array(result, x.kind)
        assert out.shape == (*lead, outputs), f"out has shape {list(out.shape)}"
        assert out.dtype == x.dtype, f"out is {out.dtype}"
        if not out.numel():
            return
        numbers = numbers_of(arguments, kind, inputs)
        added = arguments["bias"].values() if "bias" in arguments else torch.zeros(outputs)
        ordered = x.values()[..., order].reshape(-1, inputs)
        wide = ordered.double()
        want = wide @ numbers.mT + added.double()
        other = (ordered.float() @ numbers.float().mT + added.float()).to(x.dtype)
        # Nobody has looked at the values, and sums of few numbers are lucky now and then.
        size = float((wide.abs() @ numbers.mT.abs() + added.double().abs()).max()) * (1 + math.sqrt(inputs))
        limit = limit_of(want.numpy(), other.double().numpy(), str(x.dtype)[6:], size)
        finding = compare("out", out.double().reshape(want.shape).numpy(), want.numpy(), limit)
        assert finding.ok, str(finding)

    return Case("linear", arguments, check, way, first=True)


def kind_of(arguments: dict[str, Any]) -> str:
    """Of the weights, in the words of numbers_of."""
    if "scales" not in arguments:
        return "same"
    return "int4" if arguments["weight"].dtype is torch.uint8 else "8 bits"


def numbers_of(arguments: dict[str, Any], kind: str, inputs: int) -> torch.Tensor:
    """What the arrays of a weight stand for, as they are in memory: (outputs, inputs) in float64."""
    weight = arguments["weight"].values()
    if kind == "same":
        return weight.double()
    q = unpacked(weight, inputs) if kind == "int4" else weight.double()
    group = arguments.get("group") or inputs
    groups = torch.arange(inputs) // group
    zeros = (
        arguments["zeros"].values().double() if "zeros" in arguments else torch.tensor([[8.0 if kind == "int4" else 0]])
    )
    zeros = zeros.expand(arguments["scales"].shape)
    return (q - zeros.mT[:, groups]) * arguments["scales"].values().double().mT[:, groups]


def unpacked(weight: torch.Tensor, inputs: int) -> torch.Tensor:
    """Numbers 0 to 15 of packed rows: dword d of 64 bytes has inputs 32 m + 2 d in bits 4 m, the next 16 bits above."""
    parts = weight.long().reshape(len(weight), weight.shape[1] // 64, 16, 4)
    dwords = sum(parts[..., i] << 8 * i for i in range(4))
    q = torch.zeros(len(weight), dwords.shape[1] * 128, dtype=torch.float64)
    for at in range(128):
        m, d, odd = at // 32, at % 32 // 2, at % 2
        q[:, at::128] = (dwords[:, :, d] >> (4 * m + 16 * odd) & 15).double()
    return q[:, :inputs]


def mutations(case: Case) -> Iterator[Mutation]:
    """What is wrong with a call of linear, by kind of argument."""
    arguments, usm = case.arguments, case.arguments["x"].kind.startswith("usm")
    quantised = "scales" in arguments
    learned = ("x", "bias", "order") if quantised else ("x", "weight", "bias", "order")
    yield from wrong_products(case, ("x", "weight"), learned, ("x", "order"), ("order",), ("weight", "order"))
    yield from wrong_sizes(case)
    yield from wrong_formats(case, usm)


def wrong_sizes(case: Case) -> Iterator[Mutation]:
    arguments = case.arguments

    def longer(name: str, axis: int, *names: str) -> Iterator[Mutation]:
        if isinstance(array := arguments.get(name), Array):
            shape = list(array.shape)
            shape[axis] += 1
            wrong = f"has {shape[axis]} in the place of {array.shape[axis]} in axis {axis}"
            yield Mutation(name, wrong, lambda: again(array, torch.zeros(shape).to(array.dtype)), names)

    if arguments["weight"].dtype is not torch.uint8:
        yield from longer("x", -1, "weight", "order")
    yield from longer("weight", -1)
    if "scales" in arguments or "bias" in arguments:
        yield from longer("weight", 0, "scales", "zeros", "bias")
    for name in ("scales", "zeros"):
        yield from longer(name, -1)
        yield from longer(name, 0)
    yield from longer("bias", -1)
    yield from longer("order", -1)
    if "order" in arguments:
        far = torch.full((arguments["order"].shape[0],), arguments["order"].shape[0])
        yield Mutation("order", "names inputs that are not there", lambda: again(arguments["order"], far))


def wrong_formats(case: Case, usm: bool) -> Iterator[Mutation]:
    arguments = case.arguments
    x, weight, scales = arguments["x"], arguments["weight"], arguments.get("scales")
    outputs, inputs = weight.shape[0], x.shape[-1]
    for value in (48, 1, -1, 256, 2**31, 2**62):
        if value != inputs:
            yield Mutation("group", f"is {value}", lambda v=value: v)
    for value in (2.5, "text", [1], True, math.nan, 2**63, -(2**63) - 1):
        yield Mutation("group", f"is {value!r}", lambda v=value: v, typed=True)
    if scales is not None:
        yield Mutation("scales", "is None", lambda: None)
        for group in (32, 64, 128):
            if -(-inputs // group) != scales.shape[0] and group != inputs:
                yield Mutation("group", f"is {group}, of which there are not as many", lambda g=group: g, ("scales",))
    else:
        one = torch.ones(1, outputs)
        yield Mutation("scales", "is given without need", lambda: again(x, one.to(x.dtype)))
        yield Mutation("zeros", "is given without need", lambda: again(x, one.to(torch.int8)))
        if not usm:
            other = torch.float16 if x.dtype is torch.float32 else torch.float32
            yield Mutation("weight", f"is {other}, unlike x", lambda: again(x, torch.zeros(weight.shape).to(other)))
    other = torch.float16 if x.dtype is torch.float32 else torch.float32
    if "bias" in arguments:
        yield Mutation("bias", f"is {other}, unlike x", lambda: again(x, torch.zeros(outputs).to(other)))
    if outputs > 1 and weight.shape[1]:
        layout = Layout(expanded=1)
        yield Mutation("weight", "has rows in one place", lambda: place(weight.values(), weight.kind, layout))
    if outputs and weight.shape[1] > 1 and weight.kind in ("numpy", "torch", "xpu"):
        yield Mutation("weight", "has columns apart", lambda: place(weight.values(), weight.kind, Layout(step=2)))
    if usm:
        yield Mutation("order", "is given", lambda: again(x, torch.arange(inputs, dtype=torch.int32)))
