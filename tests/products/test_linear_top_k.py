"""The largest logits of a head: values and tokens against float64, ties, refusals."""

import contextlib
from itertools import product

import numpy as np
import pytest
import torch
import xeflash
from arrays import from_array, to_array
from fuzz.case import passing_mode
from heads import Head, check_top_k, make, name_of

GPU_TESTS = ("test_gpu",)


def run(head, k):
    x, w, _, bias = make(head)
    given = [to_array(t, head.kind) for t in (x, w, bias)]
    found = xeflash.linear_top_k(*given[:2], k, linear_bias=given[2], **head.changes)
    values, tokens = (from_array(t, head.kind) for t in found)
    assert values.shape == tokens.shape == (head.rows, k)
    check_top_k(head, values, tokens, x, w, bias)
    best = xeflash.linear_argmax(*given[:2], linear_bias=given[2], **head.changes)
    assert torch.equal(from_array(best, head.kind), tokens[:, 0])


CASES = [
    (Head(dtype, rows, vocabulary, 40, bias=rows == 23), k)
    for dtype, rows, vocabulary, k in product(("fp32", "bf16"), (1, 23, 127), (1, 17, 1000, 5003), (1, 7, 64))
    if k <= vocabulary
]
CASES += [
    (Head("fp16", 33, 2500, 100, softcap=4.0, scale=-0.5, layout="sliced"), 16),
    (Head("fp32", 33, 2500, 100, kind="numpy", layout="turned"), 5),
]


@pytest.mark.parametrize(("head", "k"), CASES, ids=lambda x: name_of(x) if isinstance(x, Head) else f"k{x}")
def test_matches_reference(head, k):
    run(head, k)


def check_ties(kind):
    """Logits of few values: of equal ones the lower token comes first, wherever blocks and parts end."""
    generator = torch.Generator().manual_seed(0)
    w = torch.randint(3, (2600, 1), generator=generator).float() * torch.ones(1, 32)
    x = torch.ones(5, 32) * torch.tensor([1.0, -1.0, 0.0, 2.0, 0.5])[:, None]
    order = (x @ w.mT).sort(dim=1, descending=True, stable=True).indices
    for k in (1, 20, 64):
        tokens = xeflash.linear_top_k(to_array(x, kind), to_array(w, kind), k)[1]
        assert torch.equal(from_array(tokens, kind), order[:, :k])


def test_of_equal_logits_the_lower_token_comes_first():
    check_ties("torch")


def test_hidden_tokens_come_last():
    bias = torch.full((100,), -torch.inf)
    bias[[7, 90]] = 0.0
    values, tokens = xeflash.linear_top_k(torch.ones(2, 8), torch.ones(100, 8), 4, linear_bias=bias)
    assert tokens.tolist() == [[7, 90, 0, 1]] * 2
    assert values.tolist() == [[8.0, 8.0, -torch.inf, -torch.inf]] * 2


def test_what_is_no_number_comes_last():
    w = torch.ones(50, 8)
    w[[0, 30]] = torch.nan
    w[49] = 2.0
    assert xeflash.linear_top_k(torch.ones(1, 8), w, 3)[1].tolist() == [[49, 1, 2]]


def test_rows_have_any_shape():
    w = torch.randn(30, 8, generator=torch.Generator().manual_seed(0))
    for shape in ((), (2, 3), (0,)):
        x = torch.ones(*shape, 8)
        assert xeflash.linear_argmax(x, w).shape == shape
        assert xeflash.linear_top_k(x, w, 4)[0].shape == (*shape, 4)


def test_few_rows_have_weights_in_any_order():
    """Those that `linear` takes, by which the largest of few rows is found, and others."""
    x, w = torch.randn(3, 64), torch.randn(64, 50)
    numpy = w.mT.contiguous().numpy()
    for weight in (w.mT, w.mT[:1].expand(50, 64), numpy[::-1], numpy[:, ::-1], np.repeat(numpy, 2, axis=1)[:, ::2]):
        given = torch.from_numpy(weight.copy()) if isinstance(weight, np.ndarray) else weight
        got = xeflash.linear_argmax(x.numpy() if isinstance(weight, np.ndarray) else x, weight)
        assert torch.equal(torch.as_tensor(got), (x @ given.mT).argmax(-1))


def test_compiles_without_a_break():
    x, w, _, _ = make(Head())

    def step(x, w):
        values, tokens = xeflash.linear_top_k(x, w, 5)
        return values.sum(), tokens, xeflash.linear_argmax(x, w)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for got, want in zip(compiled(x, w), step(x, w), strict=True):
        assert torch.equal(got, want)
    torch.library.opcheck(torch.ops.xeflash.linear_top_k.default, (x, w, 5))


REFUSED = [
    (dict(k=0), ValueError, "k must be 1 to 64, got 0"),
    (dict(k=65), ValueError, "k must be 1 to 64, got 65"),
    (dict(k=6), ValueError, "k must be at most the 5 rows of linear_weight, got 6"),
    (dict(k=2.0), TypeError, "k must be an integer, got 2.0"),
    (dict(k=None), TypeError, "k must be an integer, got None"),
    (dict(softcap=1j), TypeError, "softcap must be a number, got 1j"),
    (dict(linear_weight=None), TypeError, "linear_weight must be a .*, got NoneType"),
    (dict(input=torch.zeros(4, 8, requires_grad=True)), NotImplementedError, "input must not require grad"),
    (dict(linear_weight=torch.zeros(5, 9)), ValueError, "linear_weight must have the 8 features of input"),
]


@pytest.mark.parametrize("mode", [contextlib.nullcontext, passing_mode], ids=["direct", "mode"])
@pytest.mark.parametrize(("change", "error", "message"), REFUSED, ids=[m for _, _, m in REFUSED])
def test_refused_by_name(change, error, message, mode):
    with pytest.raises(error, match="^linear_top_k: " + message), mode():
        xeflash.linear_top_k(**(dict(input=torch.zeros(4, 8), linear_weight=torch.zeros(5, 8), k=2) | change))


# ---- GPUs ---------------------------------------------------------------------------------------

GPU_CASES = [
    (Head("bf16", 20, 700, 64, bias=True, softcap=4.0), 5),
    (Head("fp16", 3, 530, 64, layout="sliced"), 40),
    (Head("fp32", 9, 300, 32), 64),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("head", "k"), GPU_CASES, ids=lambda x: name_of(x) if isinstance(x, Head) else f"k{x}")
def test_gpu_matches_reference(head, k, gpu):
    run(head._replace(kind="usm"), k)


@pytest.mark.gpu
def test_gpu_of_equal_logits_the_lower_token_comes_first(gpu):
    check_ties("usm")
