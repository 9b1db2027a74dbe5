"""What return_attn_probs gives with dropout, flash-attn's S_dmask: probabilities, negative where they were dropped."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import xeflash
from arrays import DTYPES, from_array, to_array
from cover import few
from xeflash.selftest.reference import Features, weights_of

DROPOUT = 0.3


@dataclass(frozen=True)
class Case:
    dtype: str = "fp32"
    dims: tuple[int, int] = (64, 64)
    heads: tuple[int, int] = (4, 2)
    sizes: tuple[int, int] = (70, 133)
    window: tuple[int, int] = (-1, -1)
    alibi: bool = False
    sinks: bool = False
    lengths: tuple[tuple[int, int], ...] = ()  # of packed sequences, (queries, keys)

    @property
    def id(self):
        parts = [self.dtype, "d{}x{}".format(*self.dims), "h{}-{}".format(*self.heads), "q{}-k{}".format(*self.sizes)]
        parts += ["window{}{}".format(*self.window)] if self.window != (-1, -1) else []
        return "-".join(parts + [name for name in ("alibi", "sinks", "lengths") if getattr(self, name)])


CASES = [
    Case(),
    Case("bf16", window=(-1, 0), sizes=(133, 70)),
    Case("fp16", (40, 128), (3, 1), (1, 300), window=(100, 3), alibi=True),
    Case("bf16", (256, 256), (2, 2), (23, 7), sinks=True),
    Case("fp16", (96, 96), lengths=((5, 17), (0, 9), (64, 0), (33, 100)), window=(-1, 0), alibi=True),
]
ON_CPU = [Case(dims=(59, 111), sizes=(23, 99)), Case("bf16", (576, 512), (2, 1), (17, 65))]


GPU_TESTS = ("test_on_a_gpu",)


def check(case, kind):
    generator = torch.Generator().manual_seed(7)
    (dim, dim_v), (heads, heads_k), (rows, keys) = case.dims, case.heads, case.sizes
    lengths = case.lengths or ((rows, keys), (rows, keys))
    tokens, tokens_k = (sum(each) for each in zip(*lengths, strict=True))
    dtype = DTYPES[case.dtype]
    draw = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)  # noqa: E731
    q, k, v = draw(tokens, heads, dim), draw(tokens_k, heads_k, dim), draw(tokens_k, heads_k, dim_v)
    slopes = torch.rand(heads, generator=generator) if case.alibi else None
    sinks = torch.randn(heads, generator=generator) if case.sinks else None
    there = lambda x: None if x is None else to_array(x, kind)  # noqa: E731
    more = dict(window_size=case.window, return_attn_probs=True, s_aux=there(sinks), alibi_slopes=there(slopes))
    xeflash.manual_seed(3)
    if case.lengths:
        starts = [torch.tensor([0, *each]).cumsum(0).int() for each in zip(*lengths, strict=True)]
        most = [max(each) for each in zip(*lengths, strict=True)]
        packed = [there(x) for x in (q, k, v, *starts)]
        out, _, s = xeflash.flash_attn_varlen_func(*packed, *most, DROPOUT, **more)
    else:
        dense = [there(x.unflatten(0, (len(lengths), -1))) for x in (q, k, v)]
        out, _, s = xeflash.flash_attn_func(*dense, DROPOUT, **more)
        most = [rows, keys]
    out, s = from_array(out, kind).reshape(tokens, heads, dim_v), from_array(s, kind)
    assert s.shape == (len(lengths), heads, *most) and s.dtype == dtype and s.abs().isfinite().all()
    dropped = seen = 0
    unit = torch.finfo(dtype).eps
    for b, (n, m) in enumerate(lengths):
        at, at_k = (sum(each[:b]) for each in zip(*lengths, strict=True))
        mine, rest = s[b, :, :n, :m].double(), s[b].clone()
        rest[:, :n, :m] = 0
        assert not rest.any()
        q_b, k_b = (x.transpose(0, 1)[None] for x in (q[at : at + n], k[at_k : at_k + m]))
        f = Features(window=case.window, alibi=slopes, sinks=sinks)
        want = torch.from_numpy(weights_of(q_b, k_b, f).softmax[0])
        # The score's rounding, as a share of the probability, and that of the result.
        assert ((mine.abs() - want).abs() <= (4e-5 + unit) * want + torch.finfo(dtype).tiny).all()
        values = v[at_k : at_k + m].double().repeat_interleave(heads // heads_k, 1)
        kept = torch.einsum("hqk,khd->qhd", mine.clamp(min=0) / (1 - DROPOUT), values)
        size = torch.einsum("hqk,khd->qhd", mine.clamp(min=0) / (1 - DROPOUT), values.abs())
        assert ((out[at : at + n].double() - kept).abs() <= 4 * unit * (size + 1e-3) + 1e-5 * size).all()
        dropped, seen = dropped + int((mine < 0).sum()), seen + int((mine != 0).sum())
    assert abs(dropped / seen - DROPOUT) < 5 * (DROPOUT * (1 - DROPOUT) / seen) ** 0.5


@pytest.mark.parametrize("case", few(CASES + ON_CPU, *CASES[:2]), ids=lambda case: case.id)
def test_they_are_those_of_the_formula_and_give_the_output(case):
    check(case, "torch")


@pytest.mark.gpu
@pytest.mark.parametrize("case", few(CASES, CASES[1]), ids=lambda case: case.id)
def test_on_a_gpu(gpu, case):
    check(case, "gpu")


def test_numpy_has_them():
    check(Case(), "numpy")


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
