"""Cases of matmul_softmax: matrices and batches anywhere in memory, and calls with one thing wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from arrays import DTYPES, from_array
from memory import Array, Layout, place
from products.softmaxes import check as check_softmax

from .case import Case, way_of
from .draw import Draw
from .invalid import INF, NAN, Mutation, again, overlapping, wrong_numbers, wrong_products

# dtype, bias. Few, as each is compiled.
KERNELS = [
    ("bf16", ""),
    ("bf16", "same"),
    ("fp32", ""),
    ("fp16", "same"),
    ("bf16", "fp32"),
    ("fp16", ""),
    ("fp32", "same"),
    ("fp16", "fp32"),
]
NARROW = 2
ROWS = (0, 1, 1, 2, 5, 8, 9, 16, 17, 33, 65)
COLUMNS = (1, 2, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 129, 200, 257)
INPUTS = (1, 2, 3, 8, 15, 16, 17, 24, 31, 32, 33, 40, 48, 64, 65, 96, 100)
# Of GPUs, where each number of columns up to a power of two has a kernel of its own.
NARROW_ROWS, NARROW_COLUMNS, NARROW_INPUTS = (1, 3, 9, 20), (17, 30, 130), (16, 24, 31, 32, 64, 96)


class Softmax(NamedTuple):
    """What a call asks for beside its arrays."""

    scale: float = 1.0
    b_layout: str = "nk"
    log: bool = False
    kind: str = "torch"


def batches(draw: Draw) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Of a and of b: they broadcast."""
    rank = draw.random.choices(range(7), (40, 20, 14, 8, 6, 6, 6))[0]
    lead, left = [], 12
    for _ in range(rank):
        lead.append(draw.of(*(n for n in (1, 1, 2, 3) if n <= left)))
        left //= lead[-1]
    if rank and draw.chance(0.03):
        lead[draw.random.randrange(rank)] = 0

    def some() -> tuple[int, ...]:
        first = draw.random.randint(0, rank) if draw.chance(0.4) else 0
        return tuple(1 if draw.chance(0.25) else n for n in lead[first:])

    return some(), some()


def matrices(draw: Draw, values: torch.Tensor, turned: bool) -> Array:
    """`turned`: the transpose of one whose last axis is the inner one."""
    axes = range(values.dim() - 1)
    alike = draw.of(axes, axes[-1:], axes[:1]) if draw.chance(0.1) else ()
    values = values.mT if turned else values
    array = draw.array(values, alike=tuple(alike))
    return array.turned() if turned else array


def operands(draw: Draw, empty_rows: bool = True) -> tuple[Softmax, dict[str, Any]]:
    """What a call is asked for, and its arrays. `empty_rows`: all of a row may be hidden by the bias."""
    dtype, bias_type = draw.random.choice(KERNELS[: NARROW if draw.width == "narrow" else None])
    narrow = draw.on_gpu and draw.width != "wide"
    rows = draw.of(*(NARROW_ROWS if narrow else ROWS))
    columns = draw.of(*(NARROW_COLUMNS if narrow else COLUMNS))
    usm = draw.kind.startswith("usm")  # whose arrays are not copied
    inputs = draw.of(*(NARROW_INPUTS if narrow else INPUTS))
    if draw.kind == "usm":
        inputs = draw.of(16, 32, 64, 96)
    lead_a, lead_b = batches(draw)
    asked = Softmax(
        draw.of(1.0, 1.0, 0.3, -2.0, 0.0, 1, draw.random.uniform(-1, 1)), draw.of("nk", "kn"), draw.chance(0.5),
        "gpu" if draw.on_gpu else "torch",
    )  # fmt: skip
    kn = asked.b_layout == "kn"
    a = draw.numbers(*lead_a, rows, inputs) * inputs**-0.5
    b = draw.numbers(*lead_b, *((inputs, columns) if kn else (columns, inputs)))
    arguments: dict[str, Any] = {
        "a": matrices(draw, a.to(DTYPES[dtype]), not usm and draw.chance(0.1)),
        "b": matrices(draw, b.to(DTYPES[dtype]), kn if usm else draw.chance(0.5)),
    }
    if bias_type:
        shape = (*torch.broadcast_shapes(lead_a, lead_b), rows, columns)
        rank = draw.random.randint(0, len(shape)) if draw.chance(0.6) else len(shape)
        shape = tuple(1 if draw.chance(0.25) else n for n in shape[len(shape) - rank :])
        bias = (draw.normal(*shape) * draw.of(1, 1, 10)).to(DTYPES[dtype if bias_type == "same" else bias_type])
        hidden = torch.rand(shape, generator=draw.generator) < draw.of(0, 0, 0.1, 0.9, 1.0)
        if not empty_rows and rank:
            hidden[..., 0] = False
        if empty_rows or (rank and shape[-1] == columns):
            bias = bias.masked_fill(hidden, -torch.inf)
        arguments["bias"] = draw.array(bias, distinct=not empty_rows)
    words = asked._asdict()
    del words["kind"]
    return asked, arguments | {
        name: x for name, x in words.items() if x != Softmax()._asdict()[name] or draw.chance(0.2)
    }


def shape_of(arguments: dict[str, Any]) -> tuple[int, ...]:
    """Of the result."""
    a, b = arguments["a"], arguments["b"]
    columns = b.shape[-1 if arguments.get("b_layout") == "kn" else -2]
    return (*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], columns)


def values_of(arguments: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Of a, b and the bias."""
    return arguments["a"].values(), arguments["b"].values(), arguments["bias"].values() if "bias" in arguments else None


def matmul_softmax(draw: Draw) -> Case:
    asked, arguments = operands(draw)
    a, written = arguments["a"], {}
    if draw.chance(0.3):
        arguments["out"] = draw.array(torch.zeros(shape_of(arguments), dtype=a.dtype), written=True)
        written["out"] = ...

    def check(result: Any) -> None:
        if "out" in arguments:
            assert result is arguments["out"].given, "the result is not out"
        out = arguments["out"].values() if "out" in arguments else from_array(result, a.kind)
        check_softmax(asked, out, *values_of(arguments), drawn=True)

    return Case(
        "matmul_softmax", arguments, check, way_of(draw, arguments, "out" not in arguments), written, first=True
    )


# ---- one thing wrong ----------------------------------------------------------------------------


def mutations(case: Case) -> Iterator[Mutation]:
    arguments, a = case.arguments, case.arguments["a"]
    columns = -1 if arguments.get("b_layout") == "kn" else -2
    yield from wrong_products(case, ("a", "b"), ("a", "b", "bias"), ("a", "b", "bias"), names=("b", "bias", "out"))
    yield from wrong_numbers(
        scale=(NAN, INF, -INF, 1e39, "text", [1.0], 1j), b_layout=("nm", "", 3, True), log=("text", 1, [1])
    )
    other = torch.float16 if a.dtype is torch.float32 else torch.float32
    if not a.kind.startswith("usm"):
        for name in ("a", "b"):
            x = arguments[name]
            also = ("b", "bias", "out") if name == "a" else ()
            yield Mutation(
                name, f"is {other}, unlike others", lambda x=x: again(x, torch.zeros(x.shape).to(other)), also
            )
    for name in ("a", "b"):
        x = arguments[name]
        yield Mutation(name, "has one axis", lambda x=x: again(x, torch.zeros(x.shape[-1:]).to(x.dtype)), ("b",))
    yield from wrong_sizes(case, columns)
    if "out" in arguments and math.prod(arguments["out"].shape):
        yield from wrong_results(case)


def wrong_sizes(case: Case, columns: int) -> Iterator[Mutation]:
    arguments = case.arguments
    a, b = arguments["a"], arguments["b"]

    def resized(x: Array, axis: int, n: int) -> Array:
        shape = list(x.shape)
        shape[axis] = n
        return again(x, torch.zeros(shape).to(x.dtype))

    inputs = -3 - columns  # the axis of b
    yield Mutation("a", "has an input more", lambda: resized(a, -1, a.shape[-1] + 1), ("b",))
    yield Mutation("b", "has an input more", lambda: resized(b, inputs, a.shape[-1] + 1))
    yield Mutation("b", "has no columns", lambda: resized(b, columns, 0))
    none = resized(b, inputs, 0)
    yield Mutation("a", "has no inputs", lambda: resized(a, -1, 0), also=(("b", none),))
    for axis in range(2, min(len(a.shape), len(b.shape))):
        if a.shape[~axis] != 1:
            wrong = f"has a batch that does not broadcast in axis {~axis}"
            yield Mutation("b", wrong, lambda i=~axis: resized(b, i, a.shape[i] + 2))
    shape = shape_of(arguments)
    if isinstance(bias := arguments.get("bias"), Array):
        for axis in range(-len(bias.shape), 0):
            wrong = f"has {shape[axis] + 2} in axis {axis} of {shape[axis]}"
            yield Mutation("bias", wrong, lambda i=axis: resized(bias, i, shape[i] + 2))
        yield Mutation("bias", "has more axes", lambda: again(bias, torch.zeros((1, *shape)).to(bias.dtype)))


def wrong_results(case: Case) -> Iterator[Mutation]:
    out = case.arguments["out"]
    zeros = torch.zeros(out.shape).to(out.dtype)
    for axis in range(len(out.shape)):
        shape = [n + (i == axis) for i, n in enumerate(out.shape)]
        yield Mutation("out", f"is longer in axis {axis}", lambda s=shape: again(out, torch.zeros(s).to(out.dtype)))
    if out.kind == "numpy":
        yield Mutation("out", "is read-only", lambda: again(out, zeros, writable=False))
    for wrong in (3, "text", [1.0]):
        yield Mutation("out", f"is {wrong!r}", lambda w=wrong: w)
    for axis, n in enumerate(out.shape[:-1]):
        if n > 1:
            layout = Layout(expanded=1 << axis)
            yield Mutation("out", f"is one element along axis {axis}", lambda x=layout: place(zeros, out.kind, x))
    if out.shape[-1] > 1 and out.kind in ("numpy", "torch", "xpu"):
        yield Mutation("out", "has columns apart", lambda: place(zeros, out.kind, Layout(step=2)))
    for name in ("a", "b", "bias"):
        x = case.arguments.get(name)
        if isinstance(x, Array) and x.kind == out.kind and case.way == "direct" and not x.guise:
            beside = overlapping(x, out.shape, out.dtype)
            if beside is not None:
                yield Mutation("out", f"overlaps {name}", lambda y=beside: y, (name,))
