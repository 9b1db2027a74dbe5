"""xeflash.linear against float64: weights of every kind, odd sizes, gradients, other ways to call it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import xeflash
from arrays import DTYPES, from_array, to_array
from products.weights import GROUPS, Stored, stored, type_of_scales
from tolerance import assert_close

SIZES = [
    (1, 64, 128),
    (2, 96, 1000),
    (3, 63, 40),
    (7, 33, 257),
    (8, 1, 64),
    (16, 100, 136),
    (33, 63, 43),
    (64, 1000, 63),
]
SIZES += [(1000, 97, 384), (1, 32001, 72), (5, 17, 1)]
FORMATS = [("same", 0, False), *(("int4", g, z) for g in GROUPS for z in (False, True))]
FORMATS += [("int8", g, g in (32, 0)) for g in GROUPS] + [("e4m3", 0, False), ("e5m2", 128, False)]
CASES = [(dtype, format, size) for dtype in DTYPES for format in FORMATS for size in SIZES]
GPU_TESTS = ("on_a_gpu", "lie_anywhere", "leading", "order")
# By default bf16 and fp32 have each kind but e5m2, and plain weights of fp32 have each size. Scales are of one type for each, by
# which kernels differ, too: (group, type) that other tests ask for, where they do.
SCALED = {
    "fp32": {
        "int4": {32: "fp16", 0: "fp32"},
        "int8": {32: "fp32", 0: "fp32"},
        "e4m3": {0: "fp32"},
        "e5m2": {},
    },
    "bf16": {"int4": {128: "bf16"}, "int8": {0: "bf16"}, "e4m3": {0: "bf16"}, "e5m2": {}},
    "fp16": {"int4": {32: "fp16"}, "int8": {}, "e4m3": {}, "e5m2": {}},
}


def default_sizes(dtype: str, format: tuple[str, int, bool]) -> list[tuple[int, int, int]]:
    kind, group, _ = format
    if kind == "same":
        fitting = SIZES
    else:
        fitting = [size for size in SIZES if DTYPES.get(SCALED[dtype][kind].get(group)) == type_of_scales(size[0])]
    return fitting if (dtype, kind) == ("fp32", "same") else fitting[FORMATS.index(format) % max(len(fitting), 1) :][:1]


DEFAULT = [(dtype, format, size) for dtype in DTYPES for format in FORMATS for size in default_sizes(dtype, format)]
ON_GPU = [("fp16", FORMATS[0], SIZES[0]), ("bf16", FORMATS[5], SIZES[1]), ("fp32", FORMATS[2], SIZES[3])]
ON_GPU += [("fp16", FORMATS[12], SIZES[5])]


def dealt(cases: list[Any], default: list[Any]) -> list[Any]:
    """Some by default, one in eight in the wide set, and the rest in the long one."""

    def marks(i: int) -> Any:
        return () if cases[i] in default else pytest.mark.wide if i % 8 == 3 else pytest.mark.long

    def name(dtype: str, format: tuple[str, int, bool], size: tuple[int, int, int]) -> str:
        kind, group, zeros = format
        return "-".join([dtype, f"{kind}{group or ''}{'z' if zeros else ''}", "x".join(map(str, size))])

    return [pytest.param(*case, marks=marks(i), id=name(*case)) for i, case in enumerate(cases)]


def inputs_of(rows: int, inputs: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows + inputs)).to(dtype)


def put(x: Any, device: str) -> Any:
    return x.to(device) if isinstance(x, torch.Tensor) else x


def judge(got: torch.Tensor, x: torch.Tensor, weights: Stored, bias: torch.Tensor | None, dtype: str) -> None:
    """By the rule of tolerance: the other one multiplies in fp32 and rounds its result."""
    added = 0.0 if bias is None else bias.double()
    want = (x.double() @ weights.numbers.mT + added).numpy()
    other = (x.float() @ weights.numbers.float().mT + (0.0 if bias is None else bias.float())).to(got.dtype)
    size = float((x.double().abs() @ weights.numbers.mT.abs()).max()) if x.numel() else 0.0
    assert_close("out", got.cpu(), want, other.double().numpy(), size)


@pytest.mark.parametrize(("dtype", "format", "size"), dealt(CASES, DEFAULT))
def test_linear_is_a_product(dtype: str, format: tuple[str, int, bool], size: tuple[int, int, int]):
    rows, outputs, inputs = size
    kind, group, zeros = format
    x = inputs_of(rows, inputs, DTYPES[dtype])
    weights = stored(kind, outputs, inputs, x.dtype, group, zeros, seed=rows)
    bias = None if rows % 2 else torch.randn(outputs).to(x.dtype)
    judge(xeflash.linear(x, bias=bias, **weights.arguments), x, weights, bias, dtype)


@pytest.mark.gpu
@pytest.mark.xpu
@pytest.mark.parametrize(("dtype", "format", "size"), dealt(
    [(d, f, s) for d in DTYPES for f in FORMATS for s in SIZES if s[0] * s[1] * s[2] < 2e6], ON_GPU,
))  # fmt: skip
def test_linear_on_a_gpu(xpu: str, dtype: str, format: tuple[str, int, bool], size: tuple[int, int, int]):
    rows, outputs, inputs = size
    kind, group, zeros = format
    x = inputs_of(rows, inputs, DTYPES[dtype])
    weights = stored(kind, outputs, inputs, x.dtype, group, zeros, seed=rows)
    bias = None if rows % 2 else torch.randn(outputs).to(x.dtype)
    arguments = {name: put(value, "xpu") for name, value in weights.arguments.items()}
    judge(xeflash.linear(x.to("xpu"), bias=put(bias, "xpu"), **arguments), x, weights, bias, dtype)


# ---- memory --------------------------------------------------------------------------------------


def around(x: torch.Tensor, left: int, right: int) -> torch.Tensor:
    """The same values in columns of a larger matrix of NaN."""
    wide = torch.full((x.shape[0] + 2, x.shape[1] + left + right), float("nan"), dtype=x.dtype)
    inside = wide[1:-1, left : left + x.shape[1]]
    return inside.copy_(x)


@pytest.mark.parametrize(("left", "right"), [(0, 0), (1, 0), (3, 6), (8, 8), (32, 0)])
def test_rows_lie_anywhere(device: str, left: int, right: int):
    with torch.device("cpu"):
        x, weights = inputs_of(3, 72, torch.float16), stored("same", 40, 72, torch.float16)
        views = around(x, left, right), around(weights.arguments["weight"], right, left)
        on_device = []
        for view in views:  # the same strides there
            base = view._base.to(device)
            on_device.append(base.as_strided(view.shape, view.stride(), view.storage_offset()))
        judge(xeflash.linear(*on_device), x, weights, None, "fp16")


@pytest.mark.wide
@pytest.mark.gpu
@pytest.mark.parametrize("inputs", [1, 2, 3, 8, 16, 17, 31, 40, 65, 129, 257])
@pytest.mark.parametrize("format", [("same", 0, False), ("int4", 32, True), ("int8", 0, False)], ids=str)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_nothing_beside_the_arrays_is_touched_on_a_gpu(
    gpu: str, dtype: str, format: tuple[str, int, bool], inputs: int
):
    """Each fills an allocation, beyond which the simulator knows no memory."""
    kind, group, zeros = format
    for rows, outputs in ((1, 63), (9, 17)):
        x, bias = inputs_of(rows, inputs, DTYPES[dtype]), torch.randn(outputs).to(DTYPES[dtype])
        weights = stored(kind, outputs, inputs, x.dtype, group, zeros, seed=3)
        arguments = {name: to_array(value, "usm") for name, value in weights.arguments.items()}
        got = xeflash.linear(to_array(x, "usm"), bias=to_array(bias, "usm"), **arguments)
        judge(from_array(got, "usm"), x, weights, bias, dtype)


def test_leading_dimensions_are_rows(device: str):
    x = torch.randn(2, 3, 5, 64)
    weight = torch.randn(32, 64)
    want = torch.nn.functional.linear(x, weight)
    for some in (
        x,
        x.transpose(0, 1).contiguous().transpose(0, 1),
        x[:, :1],
        x[0, 0, 0],
        x[:0],
        x.expand(4, 2, 3, 5, 64),
    ):
        got = xeflash.linear(some, weight)
        assert got.shape == (*some.shape[:-1], 32)
        torch.testing.assert_close(got, torch.nn.functional.linear(some, weight), atol=1e-5, rtol=1e-5)
    assert xeflash.linear(x, weight[:0]).shape == (2, 3, 5, 0)
    assert want.shape == xeflash.linear(x, weight).shape


def test_numpy_and_scales_of_all_shapes():
    x = np.random.default_rng(0).standard_normal((4, 96), np.float32)
    q = np.arange(-48, 48, dtype=np.int8)[None].repeat(7, 0)
    want = x @ (q.astype(np.float32) * 0.5).T
    for scales in (
        np.float32(0.5) * np.ones((1, 7), np.float32),
        np.full(7, 0.5, np.float32),
        np.array(0.5, np.float32),
    ):
        np.testing.assert_allclose(xeflash.linear(x, q, scales=scales), want, rtol=1e-5, atol=1e-4)


def test_order_is_that_of_the_inputs(device: str):
    x, weight = torch.randn(3, 64), torch.randn(8, 64)
    order = torch.randperm(64, device="cpu").to(device)
    torch.testing.assert_close(
        xeflash.linear(x, weight[:, order], order=order), xeflash.linear(x, weight), atol=1e-4, rtol=1e-4
    )
    with pytest.raises(ValueError, match=r"^linear: order must have the shape \[64\] of the inputs of x, got \[3\]"):
        xeflash.linear(x, weight, order=order[:3])
    for wrong in (order + 1, order.float(), order.cpu().numpy() + 0.5):
        with pytest.raises(ValueError, match="^linear: order must be an array of integers"):
            xeflash.linear(x, weight, order=wrong)
    with pytest.raises(ValueError, match="^linear: order must be on the device of x"):
        xeflash.linear(x, weight, order=order.to("meta"))
    with pytest.raises(ValueError, match="^linear: order must be an array of integers"):
        xeflash.linear(x.cpu().numpy(), weight.cpu().numpy(), order=order.cpu().numpy() + 1)
    compiled = torch.compile(lambda x: xeflash.linear(x, weight, order=order), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), xeflash.linear(x, weight, order=order))


def test_what_is_not_finite_stays_where_it_is():
    x, weight = torch.ones(2, 40), torch.ones(3, 40)
    x[0, 5], weight[2, 39] = float("inf"), float("nan")
    got = xeflash.linear(x, weight)
    assert got[0, :2].isposinf().all() and got[:, 2].isnan().all() and (got[1, :2] == 40).all()


# ---- gradients, and other ways to call it --------------------------------------------------------


@pytest.mark.parametrize("format", [("same", 0, False), ("int4", 32, True), ("int8", 0, False)], ids=str)
def test_gradients_are_those_of_float64(device: str, format: tuple[str, int, bool]):
    kind, group, zeros = format
    with torch.device("cpu"):
        x, bias, dout = torch.randn(2, 3, 96), torch.randn(1100), torch.randn(2, 3, 1100)
        weights = stored(kind, 1100, 96, x.dtype, group, zeros)
        leaves = [x, bias, *([weights.arguments["weight"]] if kind == "same" else [])]
        wide = [t.double().requires_grad_() for t in (x, bias, weights.numbers)]
        want = torch.autograd.grad(wide[0] @ wide[2].mT + wide[1], wide, dout.double())
    leaves = [put(t, device).requires_grad_() for t in leaves]
    arguments = {name: put(t, device) for name, t in weights.arguments.items()}
    if kind == "same":
        arguments["weight"] = leaves[2]
    out = xeflash.linear(leaves[0], bias=leaves[1], **arguments)
    got = torch.autograd.grad(out, leaves, put(dout, device))
    for found, wanted in zip(got, want, strict=False):
        torch.testing.assert_close(found.cpu().double(), wanted, atol=2e-4, rtol=2e-5)


def test_the_operator_is_one_of_torch():
    x, weights = torch.randn(3, 96, requires_grad=True), stored("int4", 32, 96, torch.float32, 32, True, seed=1)
    arguments = weights.arguments
    weight = arguments.pop("weight")
    torch.library.opcheck(torch.ops.xeflash.linear.default, (x, weight), arguments)
    torch.library.opcheck(torch.ops.xeflash.linear.default, (x, torch.randn(8, 96, requires_grad=True), torch.randn(8)))

    def call(x: torch.Tensor) -> torch.Tensor:
        return xeflash.linear(x, weight, **arguments).tanh()

    torch.testing.assert_close(torch.compile(call, fullgraph=True)(x), call(x))
    with torch.autocast("cpu", torch.float16):
        assert xeflash.linear(x, weight, **arguments).dtype == torch.float16
        assert xeflash.linear(x, torch.randn(8, 96), torch.randn(8)).dtype == torch.float16
    for wrong, error in ((float("nan"), TypeError), (True, TypeError), (2**63, ValueError)):
        with pytest.raises(error, match="^linear: group must be "):  # where torch's operators run the call
            xeflash.linear(x, weight, **arguments | {"group": wrong})
    (first,) = torch.autograd.grad(xeflash.linear(x, torch.randn(8, 96)).sum(), x)
    assert first.shape == x.shape


@pytest.mark.parametrize("zero", [-128, -17, -1, 16, 17, 40, 127])
@pytest.mark.parametrize("rows", [1, 2, 20])
def test_zeros_of_4_bits_are_any_number_of_8(rows: int, zero: int):
    weights = stored("int4", 63, 40, torch.float32, 32, seed=1)
    q = weights.numbers / weights.arguments["scales"].double().mT[:, torch.arange(40) // 32] + 8
    for dtype in (torch.float32, torch.float16):
        x = inputs_of(rows, 40, dtype)
        arguments = weights.arguments | {"zeros": torch.full((2, 63), zero, dtype=torch.int8)}
        numbers = (q - zero) * weights.arguments["scales"].double().mT[:, torch.arange(40) // 32]
        judge(xeflash.linear(x, **arguments), x, Stored(numbers), None, str(dtype))


@pytest.mark.parametrize("shape", [(0, 8, 5), (3, 8, 0), (3, 0, 5), (0, 0, 0)], ids=str)
def test_gradients_of_nothing_have_a_shape(shape: tuple[int, int, int]):
    rows, inputs, outputs = shape
    leaves = torch.ones(2, rows, inputs), torch.ones(outputs, inputs), torch.ones(outputs)
    for x in leaves:
        x.requires_grad_()
    found = torch.autograd.grad(xeflash.linear(*leaves).sum(), leaves)
    want = torch.autograd.grad(torch.nn.functional.linear(*leaves).sum(), leaves)
    for got, wanted in zip(found, want, strict=True):
        assert torch.equal(got, wanted)


def test_gradients_are_differentiated_once():
    x, weight = torch.randn(2, 64, requires_grad=True), torch.randn(32, 64)
    (dx,) = torch.autograd.grad(xeflash.linear(x, weight).square().sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="^linear: gradients must not be differentiated again"):
        dx.sum().backward()


X, W = torch.randn(2, 96), torch.randn(8, 96)
Q, S = torch.zeros(8, 96, dtype=torch.int8), torch.ones(3, 8)
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"x": X.double()}, TypeError, "x must be float32, float16 or bfloat16, got float64"),
    ({"x": torch.tensor(1.0)}, ValueError, "x must have at least 1 dimension, got 0"),
    ({"weight": W.half()}, TypeError, r"weight must have the dtype of x \(float32\), or be float8_e4m3fn"),
    ({"weight": W[0]}, ValueError, "weight must have 2 dimensions, got 1"),
    ({"weight": W[:, :95]}, ValueError, "weight must have the 96 inputs of x, got 95"),
    ({"weight": torch.zeros(8, 48, dtype=torch.uint8), "scales": S, "group": 32}, ValueError,
     "weight must have rows of 64 bytes, as pack_int4 makes them for the 96 inputs of x, got 48"),
    ({"weight": torch.randn(96, 8).mT}, ValueError, "weight must have a last dimension of stride 1, got"),
    ({"weight": W[:1].expand(8, 96)}, ValueError, "weight must have rows that lie apart, got"),
    ({"weight": Q}, ValueError, "scales must be given with a weight of int8, got None"),
    ({"scales": S}, ValueError, "scales must not be given with a weight of float32, which stands for itself, got one"),
    ({"group": 32}, ValueError, "group must not be given with a weight of float32"),
    ({"weight": Q, "scales": S, "group": 48}, ValueError, "group must be 32, 64, 128, or None for all inputs, got 48"),
    ({"weight": Q, "scales": S, "group": np.array(0)}, ValueError, "group must be 32, 64, 128, or None for all inputs, got 0"),
    ({"weight": Q, "scales": S, "group": 0}, ValueError, "group must be 32, 64, 128, or None for all inputs, got 0"),
    ({"weight": Q, "scales": S, "group": 64}, ValueError, r"scales must have the shape \[2, 8\] of groups"),
    ({"weight": Q, "scales": S.double(), "group": 32}, TypeError, "scales must be float32, float16 or bfloat16"),
    ({"weight": Q, "scales": S, "group": 32, "zeros": S}, TypeError, "zeros must be int8, got float32"),
    ({"weight": Q, "scales": S, "group": 32, "zeros": Q[:2, :8]}, ValueError, "zeros must have the shape"),
    ({"weight": Q, "scales": S, "group": True}, TypeError, "group must be an integer, got True"),
    ({"bias": torch.randn(7)}, ValueError, r"bias must have the shape \[8\], got \[7\]"),
    ({"bias": torch.randn(8).half()}, TypeError, r"bias must have the dtype of x \(float32\), got float16"),
    ({"weight": "w"}, TypeError, "weight must be a torch tensor, a numpy array"),
    ({"weight": Q, "scales": S.clone().requires_grad_(), "group": 32}, NotImplementedError, "scales must not require grad"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "error", "text"), REFUSED, ids=[text[:40] for _, _, text in REFUSED])
def test_what_cannot_work_is_refused_by_name(change: dict[str, Any], error: type[Exception], text: str):
    with pytest.raises(error, match=f"^linear: {text}"):
        xeflash.linear(**({"x": X, "weight": W} | change))
