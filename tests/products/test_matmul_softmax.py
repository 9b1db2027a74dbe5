"""softmax(scale A B^T + bias): values against float64 by the rule of tolerance.py, gradients, operators, refusals."""

import random
from itertools import cycle, product
from typing import NamedTuple

import numpy as np
import pytest
import torch
import xeflash
from arrays import DTYPES, from_array, to_array
from cover import few
from fuzz.case import passing_mode
from memory import lay_out
from pairwise import pairwise
from softmaxes import check, reference
from tolerance import assert_close

GPU_TESTS = ("test_gpu", "test_on_xpu")

ROWS, COLUMNS, INPUTS = (1, 7, 33, 1000), (1, 63, 1000, 32001), (1, 16, 40, 64, 128, 1024)
BIASES = ("none", "row", "column", "full", "full32", "one")
# How a and b lie: packed, rows apart at odd addresses, or turned, with the inputs outside.
LAYOUTS = ("packed", "sliced", "turned")
# Batches of a and b.
BATCHES = (((), ()), ((3,), ()), ((2, 1), (1, 3)), ((), (2,)), ((2, 3), (2, 3)))


class Case(NamedTuple):
    dtype: str = "fp32"
    rows: int = 33
    columns: int = 63
    inputs: int = 64
    bias: str = "none"
    log: bool = False
    layout: str = "packed"
    b_layout: str = "nk"
    batch: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    scale: float = 1.0
    kind: str = "torch"


def make(case, spread=1.0):
    """a, b and bias of a case, b as its layout has it."""
    generator = torch.Generator().manual_seed(case.rows + case.columns + case.inputs)
    dtype = DTYPES[case.dtype]

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    a = (normal(*case.batch[0], case.rows, case.inputs) * (spread * case.inputs**-0.5)).to(dtype)
    b = normal(*case.batch[1], case.columns, case.inputs).to(dtype)
    batch = torch.broadcast_shapes(*case.batch)
    shapes = {"row": (case.columns,), "column": (case.rows, 1), "one": ()}
    bias = None
    if case.bias != "none":
        bias = normal(*shapes.get(case.bias, (*batch, case.rows, case.columns)))
        bias = bias if case.bias == "full32" else bias.to(dtype)
    b = b.mT if case.b_layout == "kn" else b
    layout = {"sliced": "odd"}.get(case.layout, case.layout)
    return lay_out(a, layout), lay_out(b, layout), bias


def run(case, spread=1.0):
    a, b, bias = make(case, spread)
    given = [to_array(x, case.kind) for x in (a, b, bias)]
    got = xeflash.matmul_softmax(*given[:2], bias=given[2], scale=case.scale, b_layout=case.b_layout, log=case.log)
    check(case, from_array(got, case.kind), a, b, bias)


OTHERS = {
    "dtype": list(DTYPES),
    "bias": list(BIASES),
    "log": [False, True],
    "layout": list(LAYOUTS),
    "b_layout": ["nk", "kn"],
    "batch": list(BATCHES),
    "scale": [1.0, 0.3, -2.0, 0.0],
    "kind": ["torch", "numpy"],
}


def is_small(case, most):
    matrices = int(np.prod(torch.broadcast_shapes(*case.batch)))
    return matrices * case.rows * case.columns * (case.inputs + 64) <= most


def sample():
    """Every pair of choices, with sizes of which the product is small."""
    sizes = [size for size in product(ROWS, COLUMNS, INPUTS) if size[0] * size[1] * (size[2] + 64) <= 2e7]
    random.Random(0).shuffle(sizes)
    sizes = cycle(sizes)
    cases = []
    for row in pairwise(OTHERS, lambda _: True):
        for _ in range(100):
            case = Case(**row, **dict(zip(("rows", "columns", "inputs"), next(sizes), strict=True)))
            if is_small(case, 4e7):
                cases.append(case)
                break
    return cases


def name_of(case):
    batch = "x".join(str(n) for part in case.batch for n in part) or "one"
    words = [case.dtype, f"{case.rows}x{case.columns}x{case.inputs}", case.bias, "log" if case.log else "softmax"]
    return "-".join([*words, case.layout, case.b_layout, f"b{batch}", f"s{case.scale}", case.kind])


@pytest.mark.parametrize("case", sample(), ids=name_of)
def test_matches_reference(case):
    run(case)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("rows", ROWS)
def test_all_sizes_match_reference(rows, columns, inputs, dtype):
    case = Case(dtype, rows, columns, inputs, bias="row")
    if not is_small(case, 2e9):  # whose float64 reference takes gigabytes
        case = case._replace(rows=65)
    run(case)
    run(case._replace(log=True, bias="none"))


def views(x):
    """The last two dimensions of one row each: of a matrix, of single rows in a batch, and of both."""
    return x.expand(33, -1), x.expand(33, 1, -1), x.expand(2, 33, -1), x[0].expand(2, 33, 1, -1)


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_rows_may_be_one_row(kind):
    """Their strides are 0."""
    a, b, _ = make(Case())
    bias = torch.randn(63)
    for rows in views(a[:1]):
        given = [to_array(x, kind) for x in (rows, b, bias)]
        check(Case(), from_array(xeflash.matmul_softmax(*given[:2], bias=given[2]), kind), rows, b, bias)
    columns = b[:1].expand(63, -1)
    got = xeflash.matmul_softmax(to_array(a, kind), to_array(columns, kind))
    check(Case(), from_array(got, kind), a, columns, None)


# ---- extremes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("spread", [1e3, 1e15, 1e30])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_large_scores_stay_finite(dtype, spread, log):
    run(Case(dtype, 33, 200, 64, log=log), spread)


@pytest.mark.parametrize("log", [False, True])
def test_a_row_with_no_finite_score_is_empty(log):
    a, b, _ = make(Case())
    bias = torch.zeros(33, 63)
    bias[:, ::2] = -torch.inf
    bias[[0, 7, 32]] = -torch.inf
    got = xeflash.matmul_softmax(a, b, bias=bias, log=log)
    empty = torch.full((63,), -torch.inf if log else 0.0)
    for row in (0, 7, 32):
        assert torch.equal(got[row], empty)
    want = reference(Case(log=log), a, b, bias)[0]
    others = [row for row in range(33) if row not in (0, 7, 32)]
    torch.testing.assert_close(got[others].double(), want[others], atol=1e-6, rtol=1e-5)
    assert not bool(got.isnan().any())


def test_a_logarithm_is_never_above_zero():
    """Also where one column has nearly all, and in types for which the softmax needs a coarse exponential only."""
    for dtype in DTYPES.values():
        a = torch.full((17, 1), 30.0, dtype=dtype)
        b = torch.zeros(50, 1, dtype=dtype)
        b[3] = 1
        got = xeflash.matmul_softmax(a, b, log=True)
        assert float(got.max()) <= 0
        assert float(got[:, 3].min()) > -1e-6


# ---- what torch does with it --------------------------------------------------------------------


def gradients(case, a, b, bias, dout):
    inputs = [x.clone().requires_grad_() for x in (a, b) if x is not None]
    inputs += [] if bias is None else [bias.clone().requires_grad_()]
    out = xeflash.matmul_softmax(
        inputs[0], inputs[1], bias=inputs[2] if bias is not None else None, scale=case.scale,
        b_layout=case.b_layout, log=case.log,
    )  # fmt: skip
    return torch.autograd.grad(out, inputs, dout)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_gradients_match_float64(dtype, bias, log):
    batch, b_layout = (((2, 1), (1, 3)), "kn") if bias in ("full", "row") else (((), ()), "nk")
    case = Case(dtype, 9, 40, 24, bias=bias, log=log, batch=batch, b_layout=b_layout, scale=0.7)
    a, b, bias = make(case)
    wide = [x.double().requires_grad_() for x in (a, b, bias) if x is not None]
    out, scores = reference(case, wide[0], wide[1], wide[2] if bias is not None else None)
    dout = torch.randn(out.shape, dtype=a.dtype)
    want = torch.autograd.grad(out, wide, dout.double(), retain_graph=True)
    ds = torch.autograd.grad(out, scores, dout.double())[0].abs()
    # Of sums before cancellation.
    rows = (b.mT if case.b_layout == "kn" else b).double().abs()
    sizes = [(ds @ rows).sum_to_size(a.shape), (ds.mT @ a.double().abs()).sum_to_size(rows.shape)]
    sizes += [] if bias is None else [ds.sum_to_size(bias.shape)]
    # torch's own, in the same type
    same = [x.clone().requires_grad_() for x in (a, b, bias) if x is not None]
    theirs, _ = reference(case, same[0], same[1], same[2] if bias is not None else None, a.dtype)
    torchs = torch.autograd.grad(theirs.to(a.dtype), same, dout)
    found = gradients(case, a, b, bias, dout)
    for name, got, exact, other, size in zip(("a", "b", "bias"), found, want, torchs, sizes, strict=False):
        # P and dS are rounded to the type of a before they are summed.
        rounding = float(size.max()) * torch.finfo(a.dtype).eps
        assert_close(f"d{name}", got, exact.numpy(), other.double().numpy(), scores=rounding)


def test_gradients_of_an_empty_row_are_zero():
    a, b, _ = make(Case(rows=3))
    bias = torch.zeros(3, 63)
    bias[1] = -torch.inf
    da, _, dbias = gradients(Case(), a, b, bias, torch.randn(3, 63))
    assert torch.equal(da[1], torch.zeros(64))
    assert torch.equal(dbias[1], torch.zeros(63))
    assert bool(da[[0, 2]].any())


@pytest.mark.parametrize("b_layout", ["nk", "kn"])
def test_operator_passes_opcheck(b_layout):
    a, b, bias = make(Case(rows=5, columns=20, inputs=16, bias="row", b_layout=b_layout, batch=((2,), ())))
    for x in (a, b, bias):
        x.requires_grad_()
    for more in ({}, {"log": True, "scale": 0.5}):
        torch.library.opcheck(torch.ops.xeflash.matmul_softmax.default, (a, b, bias), {"b_layout": b_layout, **more})


def test_compiles_without_a_break():
    a, b, bias = make(Case(bias="row"))
    a.requires_grad_()

    def step(a, b, bias):
        return (2 * xeflash.matmul_softmax(a + 1, b, bias=bias, scale=0.5)).square().sum()

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    want, got = step(a, b, bias), compiled(a, b, bias)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(*(torch.autograd.grad(x, a)[0] for x in (got, want)))


def test_autocast_casts_a_and_b():
    a, b, bias = make(Case(bias="full32"))
    with torch.autocast("cpu", torch.bfloat16):
        got = xeflash.matmul_softmax(a, b, bias=bias)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, xeflash.matmul_softmax(a.bfloat16(), b.bfloat16(), bias=bias))


# ---- where the result goes ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_out_is_written(kind):
    a, b, _ = make(Case(columns=130, batch=((2,), ())))  # more than a tile has
    around = torch.full((2, 40, 140), 7.0)
    out = around[:, 2:35, 3:133]
    given = [to_array(x, kind) for x in (a, b, out)]
    got = xeflash.matmul_softmax(given[0], given[1], out=given[2])
    assert got is given[2]
    assert torch.equal(out, xeflash.matmul_softmax(a, b))
    out.fill_(7.0)
    assert bool((around == 7.0).all())


def test_out_is_written_where_torch_sees_the_call():
    a, b, _ = make(Case())
    out = torch.empty(33, 63)
    with torch.autocast("cpu", torch.bfloat16):
        assert xeflash.matmul_softmax(a, b, out=out) is out
    torch.testing.assert_close(out, xeflash.matmul_softmax(a, b), atol=1e-2, rtol=1e-2)
    with pytest.raises(ValueError, match=r"matmul_softmax: out must have the shape \[33, 63\], got \[33, 62\]"):
        xeflash.matmul_softmax(a.requires_grad_(), b, out=torch.empty(33, 62))


def test_autograd_notices_that_out_is_written():
    a, b, _ = make(Case())
    out, weight = torch.ones(33, 63), torch.ones(33, 63, requires_grad=True)
    keeps_out = (out * weight).sum()
    xeflash.matmul_softmax(a, b, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        keeps_out.backward()


def test_gradients_are_differentiated_once():
    a, b, _ = make(Case())
    a.requires_grad_()
    (da,) = torch.autograd.grad(xeflash.matmul_softmax(a, b).square().sum(), a, create_graph=True)
    with pytest.raises(NotImplementedError, match="^matmul_softmax: gradients must not be differentiated again"):
        da.sum().backward()


def test_empty_results_have_a_shape():
    assert xeflash.matmul_softmax(torch.zeros(0, 8), torch.zeros(5, 8)).shape == (0, 5)
    assert xeflash.matmul_softmax(torch.zeros(0, 4, 8), torch.zeros(5, 8)).shape == (0, 4, 5)


A, B = torch.zeros(4, 8), torch.zeros(5, 8)
REFUSED = [
    (dict(a=torch.zeros(8)), ValueError, "a must have at least 2 dimensions, got 1"),
    (dict(b=None), TypeError, "b must be a .*, got NoneType"),
    (dict(scale=1j), TypeError, "scale must be a number, got 1j"),
    (dict(b=torch.zeros(8)), ValueError, "b must have at least 2 dimensions, got 1"),
    (dict(a=A.int()), TypeError, "a must be float32, float16 or bfloat16, got int32"),
    (dict(b=B.half()), TypeError, r"b must have the dtype of a \(float32\), got float16"),
    (dict(b=torch.zeros(5, 9)), ValueError, "b must have the 8 inputs of a in its last dimension, got 9"),
    (dict(b_layout="kn"), ValueError, "b must have the 8 inputs of a in its last but one dimension, got 5"),
    (dict(b_layout="nm"), ValueError, 'b_layout must be "nk" or "kn", got "nm"'),
    (dict(b_layout=3), TypeError, "b_layout must be a string, got 3"),
    (dict(b=torch.zeros(0, 8)), ValueError, "b must have columns"),
    (dict(a=torch.zeros(4, 0), b=torch.zeros(5, 0)), ValueError, "a must have inputs, got 0"),
    (dict(a=torch.zeros(2, 4, 8), b=torch.zeros(3, 5, 8)), ValueError, "b must have batches that broadcast"),
    (dict(bias=torch.zeros(4, 4)), ValueError, r"bias must broadcast to the shape \[4, 5\] of the result"),
    (dict(bias=torch.zeros(1, 4, 5)), ValueError, "bias must broadcast to the shape"),
    (dict(bias=torch.zeros(5).half()), TypeError, r"bias must have the dtype of a \(float32\) or be float32"),
    (dict(scale=float("nan")), ValueError, "scale must be finite in float32, got nan"),
    (dict(scale=1e39), ValueError, "scale must be finite in float32, got 1e"),
    (dict(scale="1"), TypeError, "scale must be a number, got '1'"),
    (dict(log=1), TypeError, "log must be True or False, got 1"),
    (dict(out=torch.zeros(4, 6)), ValueError, r"out must have the shape \[4, 5\], got \[4, 6\]"),
    (dict(out=torch.zeros(4, 5).half()), TypeError, r"out must have the dtype of a \(float32\), got float16"),
    (dict(out=torch.zeros(5, 4).mT), ValueError, "out must have a contiguous last dimension"),
    (dict(out=torch.zeros(5).expand(4, 5)), ValueError, "out must not have elements in one place"),
    (dict(b=np.zeros((5, 8), np.float64)), TypeError, "b must have the dtype of a"),
]


@pytest.mark.parametrize(("change", "error", "message"), REFUSED, ids=[m[:40] for _, _, m in REFUSED])
def test_refused_by_name(change, error, message):
    with pytest.raises(error, match="^matmul_softmax: " + message):
        xeflash.matmul_softmax(**(dict(a=A, b=B) | change))


@pytest.mark.parametrize("change", [{"b": None}, {"scale": 1j}, {"scale": "1"}, {"log": 1}, {"b_layout": 3}], ids=str)
def test_types_are_refused_by_name_where_torch_sees_the_call(change):
    with pytest.raises(TypeError, match=f"^matmul_softmax: {next(iter(change))} must be (a|True)"), passing_mode():
        xeflash.matmul_softmax(**(dict(a=A, b=B) | change))


@pytest.mark.parametrize("name", ["a", "b", "bias"])
def test_out_must_not_be_an_input(name):
    memory = torch.zeros(200)
    given = dict(a=A, b=B, bias=torch.zeros(4, 5))
    given[name] = memory[: given[name].numel()].view(given[name].shape)
    with pytest.raises(ValueError, match=f"^matmul_softmax: out must not share memory with {name}"):
        xeflash.matmul_softmax(**given, out=memory[10:30].view(4, 5))


# ---- GPUs ---------------------------------------------------------------------------------------

GPU_CASES = [
    Case("bf16", 33, 200, 64),
    Case("bf16", 40, 1001, 96, bias="row", layout="sliced"),
    Case("bf16", 7, 63, 256, bias="full", log=True),
    Case("fp16", 20, 130, 1024, bias="full32", batch=((2, 1), (1, 3))),
    Case("fp16", 16, 16, 32),
    Case("fp32", 33, 65, 64, bias="column", log=True),
    Case("fp32", 7, 200, 160, scale=-2.0, batch=((3,), ())),
    Case("fp32", 9, 17, 16, bias="one", layout="sliced"),
]


@pytest.mark.gpu
@pytest.mark.parametrize("case", few(GPU_CASES, *GPU_CASES[2:4], GPU_CASES[5]), ids=name_of)
def test_gpu_matches_reference(case, gpu):
    run(case._replace(kind="usm"))


@pytest.mark.gpu
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("columns", [16, 150])  # scores that are kept, and that are made twice
def test_gpu_row_with_no_finite_score_is_empty(columns, log, gpu):
    a, b, _ = make(Case("bf16", 9, columns, 32))
    bias = torch.zeros(9, columns)
    bias[[0, 5]] = -torch.inf
    given = [to_array(x, "usm") for x in (a, b, bias)]
    got = from_array(xeflash.matmul_softmax(*given[:2], bias=given[2], log=log), "usm")
    assert torch.equal(got[[0, 5]].float(), torch.full((2, columns), -torch.inf if log else 0.0))
    assert bool(torch.isfinite(got[[1, 2, 3, 4, 6, 7, 8]]).all())


ON_GPU = list(product(DTYPES, (31, 64, 150), (16, 32, 96, 128, 320), (False, True), BIASES))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "columns", "inputs", "log", "bias"),
    # A kernel each takes seconds: one in 37 in the wide set, the rest in the long one.
    [pytest.param(*case, marks=() if i % 37 == 5 else pytest.mark.long) for i, case in enumerate(ON_GPU)],
)
def test_sizes_on_a_gpu_match_reference(dtype, columns, inputs, log, bias, gpu):
    run(Case(dtype, 18, columns, inputs, bias=bias, log=log, kind="usm"))


@pytest.mark.parametrize("turned", [False, True])  # B, of which rows are wanted
@pytest.mark.parametrize("rows", ["packed", "one", "one of a batch"])
@pytest.mark.parametrize("inputs", [24, 40, 64])
def test_on_xpu_inputs_are_filled_up(inputs, rows, turned, device):
    a = torch.randn(17, inputs)
    a = a if rows == "packed" else a[0].expand(17, *((1,) if rows != "one" else ()), inputs)
    b = torch.randn(50, inputs).mT if turned else torch.randn(inputs, 50)
    got = xeflash.matmul_softmax(a, b, b_layout="kn", scale=0.2)
    want = (0.2 * (a.cpu().double() @ b.cpu().double())).softmax(-1)
    torch.testing.assert_close(got.cpu().double(), want, atol=1e-6, rtol=1e-5)
