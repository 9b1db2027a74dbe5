"""The loss of a language model's head: values and gradients against float64, operators, refusals."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import xeflash
from arrays import DTYPES, from_array, to_array
from cover import few
from heads import IGNORED, Head, check_gradients, check_loss, make, name_of
from pairwise import pairwise
from xeflash import _core

GPU_TESTS = ("test_gpu", "test_on_xpu")

X, W, Y = torch.zeros(4, 8), torch.zeros(5, 8), torch.tensor([0, 4, IGNORED, 1])
NESTED = torch.nested.nested_tensor([torch.ones(1)])
LOSS = torch.ops.xeflash.linear_cross_entropy.default
ROWS, VOCABULARIES, FEATURES = (1, 23, 127, 1000), (1, 17, 1000, 32003), (1, 48, 129, 512)
OTHERS = {
    "dtype": list(DTYPES),
    "bias": [False, True],
    "softcap": [0.0, 3.0],
    "scale": [1.0, 0.25, -2.0],
    "smoothing": [0.0, 0.1, 1.0],
    "z_loss": [0.0, 1e-3],
    "reduction": ["mean", "sum", "none"],
    "layout": ["packed", "sliced", "turned"],
    "kind": ["torch", "numpy"],
}


def sample():
    """Every pair of choices, with sizes of which the product is small."""
    shapes = [(r, v, f) for r in ROWS for v in VOCABULARIES for f in FEATURES if r * v * (f + 64) <= 3e7]
    random.Random(0).shuffle(shapes)
    rows = list(pairwise(OTHERS, lambda _: True))
    return [
        Head(**row, **dict(zip(("rows", "vocabulary", "features"), shapes[i % len(shapes)], strict=True)))
        for i, row in enumerate(rows)
    ]


def run(head, spread=1.0):
    x, w, target, bias = make(head, spread)
    if head.reduction == "mean" and not bool((target != IGNORED).any()):
        return
    given = [to_array(t, head.kind) for t in (x, w, target, bias)]
    found = xeflash.linear_cross_entropy(*given[:3], linear_bias=given[3], return_lse=True, **head.loss_options)
    check_loss(head, *(from_array(t, head.kind) for t in found), x, w, target, bias)


@pytest.mark.parametrize("head", sample(), ids=name_of)
def test_matches_reference(head):
    run(head)


@pytest.mark.wide
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("rows", ROWS)
def test_all_sizes_match_reference(rows, vocabulary, dtype):
    run(Head(dtype, rows, vocabulary, 64, bias=True, smoothing=0.1))


@pytest.mark.wide
def test_a_large_vocabulary_matches_reference():
    run(Head("bf16", 65, 151936, 64))


# ---- extremes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_large_logits_stay_finite(dtype, smoothing):
    run(Head(dtype, vocabulary=3000, smoothing=smoothing, reduction="none"), spread=1e4)


def test_a_loss_is_that_of_differences_of_logits():
    """Also where all of them are so large that their sum with log l would round to a multiple of 8."""
    x, w = torch.full((5, 1), 1e8), torch.ones(50, 1)
    target = torch.arange(5)
    loss, lse = xeflash.linear_cross_entropy(x, w, target, reduction="none", return_lse=True, label_smoothing=0.1)
    torch.testing.assert_close(loss, torch.full((5,), float(np.log(50))), rtol=1e-6, atol=0)
    assert torch.equal(lse, torch.full((5,), 1e8))
    x.requires_grad_()
    xeflash.linear_cross_entropy(x, w * torch.linspace(1, 2, 50)[:, None], target, reduction="sum").backward()
    torch.testing.assert_close(x.grad[:, 0], 2 - torch.linspace(1, 2, 50)[:5], rtol=1e-5, atol=1e-6)


def test_a_loss_is_never_negative():
    w = torch.zeros(300, 1)
    w[7] = 1
    for dtype in DTYPES.values():
        for size in (1.0, 10.0, 17.0, 30.0):
            x = torch.full((3, 1), size, dtype=dtype)
            loss = xeflash.linear_cross_entropy(x, w.to(dtype), torch.full((3,), 7), reduction="none")
            want = F.cross_entropy(x.double() @ w.double().mT, torch.full((3,), 7))
            assert bool((loss >= 0).all())
            # Terms that are small beside the largest one are rounded as they join its sum, up to 48 in a row.
            torch.testing.assert_close(loss.double(), want.expand(3), rtol=1e-3, atol=48 * 2.0**-24)


def test_tokens_that_are_hidden_by_a_bias_count_for_nothing():
    x, w, target, _ = make(Head(vocabulary=150))
    bias = torch.zeros(150)
    bias[100:] = -torch.inf
    target[target >= 100] = 3
    got = xeflash.linear_cross_entropy(x, w, target, linear_bias=bias)
    torch.testing.assert_close(got, xeflash.linear_cross_entropy(x, w[:100].contiguous(), target))
    target[0] = 149
    assert xeflash.linear_cross_entropy(x, w, target, linear_bias=bias, reduction="sum") == torch.inf


def test_rows_that_count_for_nothing():
    x, w, target, _ = make(Head())
    for t in (x, w):
        t.requires_grad_()
    target.fill_(IGNORED)
    assert bool(xeflash.linear_cross_entropy(x, w, target).isnan())  # as torch's
    assert xeflash.linear_cross_entropy(x, w, target, reduction="sum") == 0
    loss = xeflash.linear_cross_entropy(x, w, target, reduction="none")
    assert torch.equal(loss, torch.zeros(23))
    loss.sum().backward()
    assert not bool(x.grad.any()) and not bool(w.grad.any())


def test_no_rows():
    x, w = torch.zeros(0, 8, requires_grad=True), torch.zeros(5, 8, requires_grad=True)
    target = torch.zeros(0, dtype=torch.long)
    assert bool(xeflash.linear_cross_entropy(x, w, target).isnan())
    assert xeflash.linear_cross_entropy(x, w, target, reduction="none").shape == (0,)
    xeflash.linear_cross_entropy(x, w, target, reduction="sum").backward()
    assert x.grad.shape == (0, 8) and torch.equal(w.grad, torch.zeros(5, 8))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("integers", [torch.int64, torch.int32])
def test_rows_have_any_shape(shape, integers):
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(*shape, 16, generator=generator), torch.randn(40, 16, generator=generator)
    target = torch.randint(40, shape, generator=generator)
    loss, lse = xeflash.linear_cross_entropy(x, w, target.to(integers), reduction="none", return_lse=True)
    z = F.linear(x, w)
    assert loss.shape == lse.shape == shape
    torch.testing.assert_close(lse, z.logsumexp(-1))
    want = F.cross_entropy(z.reshape(-1, 40), target.reshape(-1), reduction="none")
    torch.testing.assert_close(loss, want.view(shape))


def test_rows_do_not_depend_on_others():
    x, w, target, _ = make(Head(rows=130, vocabulary=3000))
    every = xeflash.linear_cross_entropy(x, w, target, reduction="none")
    for rows in (slice(0, 1), slice(5, 30), slice(64, 130)):
        some = xeflash.linear_cross_entropy(x[rows], w, target[rows], reduction="none")
        assert torch.equal(some, every[rows])


@pytest.mark.parametrize("divisor", [7, 2.5, torch.tensor(7), torch.tensor([2.5])])
def test_a_divisor_takes_the_place_of_the_rows_that_count(divisor):
    x, w, target, _ = make(Head())
    results = []
    for more in ({"divisor": divisor}, {"reduction": "sum"}):
        x.requires_grad_().grad = None
        loss = xeflash.linear_cross_entropy(x, w, target, **more)
        loss.backward()
        results.append((loss.detach(), x.grad.clone()))
    for got, total in zip(*results, strict=True):
        torch.testing.assert_close(got, total / float(divisor))


def test_targets_of_log_probabilities_are_tokens():
    for token in (-100, -1, 200, -(2**63), -(2**63) + 1):
        with pytest.raises(ValueError, match=f"^linear_log_prob: target must be 0 to 199, got {token}"):
            xeflash.linear_log_prob(*make(Head())[:2], torch.full((23,), token))


@pytest.mark.parametrize("wants", [False, True])
@pytest.mark.parametrize("change", [{"input": X[:0]}, {}], ids=["no row", "rows"])
def test_heads_without_tokens_or_features_are_refused_with_a_workspace(change, wants):
    given = dict(input=X, target=Y, workspace=2**20) | change
    given["target"] = Y[: len(given["input"])]
    given["input"] = given["input"].clone().requires_grad_(wants)
    with pytest.raises(ValueError, match="^linear_cross_entropy: linear_weight must have rows"):
        xeflash.linear_cross_entropy(**given, linear_weight=W[:0])
    given["input"] = given["input"][:, :0]
    with pytest.raises(ValueError, match="^linear_cross_entropy: input must have features, got 0"):
        xeflash.linear_cross_entropy(**given, linear_weight=W[:, :0])


def test_a_loss_of_numpy_is_an_array():
    x, w, target, _ = (None if t is None else t.numpy() for t in make(Head()))
    want = xeflash.linear_cross_entropy(x, w, target, divisor=2.5)
    for divisor in (np.float32(2.5), np.array(2.5), np.array([2.5], np.float32)):
        got = xeflash.linear_cross_entropy(x, w, target, divisor=divisor)
        assert isinstance(got, np.ndarray) and got.dtype == np.float32 and got.shape == ()
        np.testing.assert_allclose(got, want, rtol=1e-6)


# ---- refusals -----------------------------------------------------------------------------------

REFUSED = [
    (dict(input=X.int()), TypeError, "input must be float32, float16 or bfloat16, got int32"),
    (dict(linear_weight=W.half()), TypeError, r"linear_weight must have the dtype of input \(float32\), got float16"),
    (dict(linear_weight=torch.zeros(5, 9)), ValueError, "linear_weight must have the 8 features of input"),
    (dict(linear_weight=torch.zeros(5, 2, 8)), ValueError, "linear_weight must have 2 dimensions, got 3"),
    (dict(linear_weight=torch.zeros(0, 8)), ValueError, "linear_weight must have rows"),
    (dict(input=torch.zeros(4, 0), linear_weight=torch.zeros(5, 0)), ValueError, "input must have features, got 0"),
    (dict(linear_bias=torch.zeros(4)), ValueError, r"linear_bias must have the shape \[5\], got \[4\]"),
    (dict(linear_bias=torch.zeros(5).half()), TypeError, "linear_bias must have the dtype of input"),
    (dict(target=torch.tensor([0, 5, 1, 1])), ValueError, "target must be 0 to 4, or -100 to be ignored, got 5"),
    (dict(target=torch.tensor([0, -1, 1, 1])), ValueError, "target must be 0 to 4, or -100 to be ignored, got -1"),
    (dict(target=torch.tensor([0, 2**32, 1, 1])), ValueError, "target must be 0 to 4, or -100 to be ignored, got 42"),
    (dict(ignore_index=-1), ValueError, "target must be 0 to 4, or -1 to be ignored, got -100"),
    (dict(target=torch.zeros(4, 5)), NotImplementedError, "target must be tokens, as probabilities are not supported"),
    (dict(target=Y.short()), TypeError, "target must be int64 or int32, got int16"),
    (dict(target=Y[:3]), ValueError, r"target must have the shape \[4\] of the rows of input, got \[3\]"),
    (dict(target=[0, 1, 2, 3]), TypeError, "target must be a"),
    (dict(weight=torch.ones(5)), NotImplementedError, "weight must be None, as weights of tokens are not supported"),
    (dict(reduction="max"), ValueError, 'reduction must be "none", "mean" or "sum", got "max"'),
    (dict(reduction=0), TypeError, "reduction must be a string"),
    (dict(label_smoothing=1.5), ValueError, "label_smoothing must be 0 to 1, got 1.5"),
    (dict(softcap=-1.0), ValueError, "softcap must be 0 or positive, and finite, in float32, got -1.0"),
    (dict(logit_scale=float("inf")), ValueError, "logit_scale must be finite in float32, got inf"),
    (dict(z_loss=float("nan")), ValueError, "z_loss must be 0 or positive, and finite in float32, got nan"),
    (dict(divisor=0), ValueError, "divisor must be positive and finite in float32, got 0"),
    (dict(divisor=-2.0), ValueError, "divisor must be positive and finite in float32, got -2.0"),
    (dict(divisor=2, reduction="sum"), ValueError, 'divisor must be None but for reduction = "mean", got 2.0'),
    (dict(divisor=torch.tensor(2), reduction="none"), ValueError, "divisor must be None but for reduction"),
    (dict(divisor=np.float64("nan")), ValueError, "divisor must be positive and finite in float32, got nan"),
    (dict(divisor=np.int64(-1)), ValueError, "divisor must be positive and finite in float32, got -1.0"),
    (dict(divisor=torch.tensor(3 + 0j)), TypeError, "divisor must be a number, or a dense array of real numbers, got torch.complex64"),
    (dict(divisor=torch.tensor(True)), TypeError, "divisor must be a number, or a dense array of real numbers, got torch.bool"),
    (dict(divisor=torch.ones(1).to_sparse()), TypeError, "divisor must be a number, or a dense array of real numbers"),
    (dict(divisor=10**400), TypeError, "divisor must be a number, got 1000"),
    (dict(divisor=np.ones(1)), TypeError, "divisor must be a number, or an array of the library of input, got ndarray"),
    (dict(softcap=1j), TypeError, "softcap must be a number, got 1j"),
    (dict(target=None), TypeError, "target must be a "),
    (dict(divisor=NESTED), TypeError, "divisor must be a torch tensor, a numpy array"),
    (dict(divisor=torch.ones(2)), ValueError, r"divisor must be a number, or an array of one, got shape \[2\]"),
    (dict(return_lse=1), TypeError, "return_lse must be True or False, got 1"),
    (dict(ignore_index=1.5), TypeError, "ignore_index must be an integer"),
]  # fmt: skip


@pytest.mark.parametrize("wants", [False, True])  # the extension, or an operator
@pytest.mark.parametrize(("change", "error", "message"), REFUSED, ids=[m[:40] for _, _, m in REFUSED])
def test_refused_by_name(change, error, message, wants):
    given = dict(input=X, linear_weight=W, target=Y) | change
    if wants:
        if not given["input"].is_floating_point():
            return
        given["input"] = given["input"].clone().requires_grad_()
    with pytest.raises(error, match="^linear_cross_entropy: " + message.split(", got" if wants else "\0")[0]):
        xeflash.linear_cross_entropy(**given)


# ---- GPUs ---------------------------------------------------------------------------------------

GPU_CASES = [
    Head("bf16", 33, 300, 64, reduction="none"),
    Head("bf16", 7, 1001, 96, bias=True, smoothing=0.1, layout="sliced"),
    Head("fp16", 150, 130, 160, softcap=3.0, scale=0.5, z_loss=1e-3, reduction="sum"),
    Head("fp32", 33, 65, 64, bias=True, softcap=2.0, smoothing=0.1),
    Head("fp32", 9, 700, 96, z_loss=1e-3, layout="sliced", reduction="none"),
]


@pytest.mark.gpu
@pytest.mark.parametrize("head", few(GPU_CASES, GPU_CASES[0]), ids=name_of)
def test_gpu_matches_reference(head, gpu):
    run(head._replace(kind="usm"))


@pytest.mark.parametrize("shape", [(2, 3), (2, 1, 3), (1, 23)], ids=str)
@pytest.mark.parametrize("features", [40, 64])
def test_on_xpu_rows_lie_in_batches(features, shape, device):
    """Inputs of three dimensions and more, whose features are filled up."""
    x, w = torch.randn(*shape, features), torch.randn(70, features)
    target = torch.randint(0, 70, shape)
    z = x.cpu().double() @ w.cpu().double().mT
    want = z.log_softmax(-1).gather(-1, target.cpu()[..., None])[..., 0]
    close = {"atol": 1e-5, "rtol": 1e-5}
    got = xeflash.linear_log_prob(x, w, target)
    torch.testing.assert_close(got.cpu().double(), want, **close)
    values, tokens = xeflash.linear_top_k(x, w, 3)
    torch.testing.assert_close(values.cpu().double(), z.topk(3).values, **close)
    assert torch.equal(tokens.cpu(), z.topk(3).indices)
    assert torch.equal(xeflash.linear_argmax(x, w).cpu(), z.argmax(-1))
    wide = [t.cpu().double().requires_grad_() for t in (x, w)]
    loss = F.cross_entropy((wide[0] @ wide[1].mT).view(-1, 70), target.cpu().view(-1))
    leaves = [t.requires_grad_() for t in (x, w)]
    found = torch.autograd.grad(xeflash.linear_cross_entropy(x, w, target), leaves)
    for got, exact in zip(found, torch.autograd.grad(loss, wide), strict=True):
        torch.testing.assert_close(got.cpu().double(), exact, **close)


@pytest.mark.gpu
def test_gpu_gives_nan_for_a_target_that_is_none(gpu):
    head = Head("bf16", 20, 70, 32, reduction="none", kind="usm")
    x, w, target, _ = make(head)
    want = from_array(
        xeflash.linear_cross_entropy(*(to_array(t, "usm") for t in (x, w, target)), reduction="none"), "usm"
    )
    for row, token in ((0, 70), (3, -1), (4, 2**32 + 1), (19, 2**62)):
        target[row] = token
    got = from_array(
        xeflash.linear_cross_entropy(*(to_array(t, "usm") for t in (x, w, target)), reduction="none"), "usm"
    )
    assert got.isnan().nonzero()[:, 0].tolist() == [0, 3, 4, 19]
    others = ~got.isnan()
    assert torch.equal(got[others], want[others])


def row_factors(head, target, vocabulary):
    """What each row's gradient is made of, of a sum of losses."""
    g = (target != IGNORED).float()
    return g, g * (1 - head.smoothing), g * (head.smoothing / vocabulary)


def parts_of(head, logits=None):
    """Arrays of a case, as a forward pass of the extension and its backward pass get them, and what both share."""
    x, w, target, bias = make(head)
    names = ("input", "linear_weight", "target", "linear_bias")
    given = {name: to_array(t, "usm") for name, t in zip(names, (x, w, target, bias), strict=True) if t is not None}
    given |= {"function": "linear_cross_entropy"} | ({"logits": logits} if logits is not None else {})
    state = _core.linear_cross_entropy(**given, **head.loss_options)[2]
    names = ("of_p", "of_target", "of_all")
    factors = dict(zip(names, (to_array(t, "usm") for t in row_factors(head, target, len(w))), strict=True))
    return (x, w, target, bias), given | factors | {"state": state} | head.changes


@pytest.mark.gpu
@pytest.mark.parametrize("head", few(GPU_CASES, GPU_CASES[0], GPU_CASES[3]), ids=name_of)
def test_gpu_gradients_match_float64(head, gpu):
    head = head._replace(reduction="sum", z_loss=0.0, kind="usm")
    case, given = parts_of(head)
    found = _core.linear_cross_entropy_backward(**given)
    check_gradients(head, [None if t is None else from_array(t, "usm") for t in found], *case)


@pytest.mark.gpu
@pytest.mark.wide
@pytest.mark.parametrize("head", GPU_CASES[:2], ids=name_of)
def test_gpu_gradients_of_kept_logits_match_float64(head, gpu):
    head = head._replace(reduction="sum", z_loss=0.0, kind="usm")
    logits = to_array(torch.zeros(head.rows, -(-head.vocabulary // 384) * 384), "usm")
    case, given = parts_of(head, logits)
    shapes = {"dinput": (head.rows, 128), "dweight": (head.vocabulary, 128), "dbias": (1024,)}
    sums = {name: to_array(torch.zeros(shape), "usm") for name, shape in shapes.items()}
    for _ in range(2):  # the second time those of weight and bias are added to the first ones
        _core.linear_cross_entropy_backward(**given, **sums, adds=True)
    dinput, dweight, dbias = (from_array(x, "usm") for x in sums.values())
    found = [dinput[:, : head.features], dweight[:, : head.features] / 2, dbias[: head.vocabulary] / 2]
    dtype = case[0].dtype
    check_gradients(head, [x.to(dtype) for x in found[: 3 if head.bias else 2]], *case)
