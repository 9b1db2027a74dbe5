"""What return_attn_probs gives with dropout, flash-attn's S_dmask: probabilities, negative where they were dropped."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import xeflash
from arrays import ArraysOf, from_array
from cover import few
from xeflash.selftest.attention.drawn import draw
from xeflash.selftest.attention.spec import Spec
from xeflash.selftest.reference import formula, per_head

DROPOUT = 0.3
CASES = [
    Spec("fp32", heads=(4, 2), rows=70, keys=133, variant="dropout=0.3"),
    Spec("bf16", heads=(4, 2), rows=133, keys=70, window="-1,0", variant="dropout=0.3"),
    Spec("fp16", 40, 128, (3, 1), 1, 300, window="100,3", variant="alibi+dropout=0.3"),
    Spec("bf16", 256, 256, rows=23, keys=7, variant="dropout=0.3", sinks=True),
    Spec(
        "fp16",
        96,
        96,
        (4, 2),
        (5, 0, 64, 33),
        (17, 9, 0, 100),
        entry="varlen",
        window="-1,0",
        variant="alibi+dropout=0.3",
    ),
]
ON_CPU = [
    Spec("fp32", 59, 111, (4, 2), 23, 99, variant="dropout=0.3"),
    Spec("bf16", 576, 512, (2, 1), 17, 65, variant="dropout=0.3"),
]

GPU_TESTS = ("test_on_gpus",)


def check(case, kind):
    drawn = draw(replace(case, kind=kind))
    out, _, s = drawn.call(drawn.put(ArraysOf(drawn.spec)))
    s, most = from_array(s, kind), [max(side) for side in zip(*case.sequences, strict=True)]
    unit, tiny = torch.finfo(s.dtype).eps, torch.finfo(s.dtype).tiny
    assert list(s.shape) == [len(case.sequences), case.heads[0], *most] and s.dtype == from_array(out, kind).dtype
    out, s = drawn.together(from_array(out, kind)).double().numpy(), s.double().numpy()
    for b, (rows, q, k, v, f) in enumerate(drawn.by_sequence(drawn.numbers())):
        n, m = q.shape[2], k.shape[2]
        assert not s[b, :, n:].any() and not s[b, :, :, m:].any()
        mine, r = s[b, :, :n, :m], formula(q, k, v, f)
        want = np.where(r.kept > 0, r.softmax, -r.softmax)[0]
        # The score's rounding, as a share of the probability, and that of the result.
        assert (np.abs(mine - want) <= (4e-5 + unit) * np.abs(want) + tiny).all()
        kept, values = mine.clip(min=0) / (1 - DROPOUT), per_head(v, q.shape[1])[0]
        size = kept @ np.abs(values)
        assert (np.abs(out[rows].swapaxes(0, 1) - kept @ values) <= 4 * unit * (size + 1e-3) + 1e-5 * size).all()


@pytest.mark.parametrize("case", few(CASES + ON_CPU, *CASES[:2]), ids=lambda case: case.id)
def test_they_are_those_of_the_formula_and_give_the_output(case):
    check(case, "torch")


@pytest.mark.gpu
@pytest.mark.parametrize("spec", few(CASES, CASES[1]), ids=lambda spec: spec.id)
def test_on_gpus(gpu, spec):
    check(spec, "gpu")


def test_numpy_has_them():
    check(CASES[0], "numpy")


def test_gradients_are_those_without_them(device):
    """Made with the same numbers, and S_dmask is a constant."""
    given = [torch.randn(1, rows, 2, 64, requires_grad=True) for rows in (33, 40, 40)]
    xeflash.manual_seed(5)
    want = torch.autograd.grad(xeflash.flash_attn_func(*given, DROPOUT).sum(), given)
    xeflash.manual_seed(5)
    out, lse, s = xeflash.flash_attn_func(*given, DROPOUT, return_attn_probs=True)
    assert out.requires_grad and lse.requires_grad and not s.requires_grad and s.device == out.device
    assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(out.sum(), given), want, strict=True))


def test_none_without_dropout():
    q = np.random.default_rng(0).standard_normal((1, 5, 2, 64), np.float32)
    assert xeflash.flash_attn_func(q, q, q, return_attn_probs=True)[2] is None


def test_return_lse_makes_none(monkeypatch):
    """The keyword of newer flash-attn has no place for them."""

    def probabilities(**given):
        raise AssertionError("they take memory for all scores")

    monkeypatch.setattr(xeflash._core, "probabilities", probabilities)
    q = torch.randn(1, 5, 2, 64)
    xeflash.manual_seed(1)
    out, lse = xeflash.flash_attn_func(q, q, q, dropout_p=0.5, return_lse=True)
    assert out.shape == q.shape and lse.shape == (1, 2, 5)


def test_they_are_in_no_graph():
    q = torch.randn(1, 5, 2, 64)

    def call(q):
        return xeflash.flash_attn_func(q, q, q, 0.5, return_attn_probs=True)[2]

    torch._dynamo.reset()
    with pytest.raises(Exception, match="return_attn_probs with dropout must not be compiled, got dropout_p = 0.5"):
        torch.compile(call, backend="eager", fullgraph=True)(q)
    torch._dynamo.reset()
    xeflash.manual_seed(1)
    got = torch.compile(call, backend="eager")(q)  # beside graphs
    xeflash.manual_seed(1)
    assert torch.equal(got, call(q))
