"""Calls of torch's own flex_attention on xeflash, eager and compiled, match the reference, and follow what changes.

Functions are those of test_flex.py, and share its kernels.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from typing import Any

import pytest
import torch
from cover import few_rows
from flex_examples import EXAMPLES, Captures, Sizes
from flex_reference import Case, check
from test_flex import RUN, blocks_of
from torch import nn
from torch._higher_order_ops.flex_attention import flex_attention as operator
from torch.nn.attention.flex_attention import flex_attention  # before anything is switched on
from xeflash.integrations import flex

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:return_lse is deprecated"),
]

LENGTHS = (37, 53), (41, 77), (130, 60)
BACKENDS = [(name, whose) for name in ("inductor", "aot_eager", "eager") for whose in ("torch's", "ours")]


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()


@contextlib.contextmanager
def traced(xeflash: bool):
    """A compiled call, which counts as often as it is traced."""
    before = flex.calls()
    with flex.use_xeflash():
        yield
    after = flex.calls()
    assert (after.xeflash > before.xeflash, after.torch > before.torch) == (xeflash, not xeflash)


@contextlib.contextmanager
def expect(xeflash: int = 0, torch: int = 0, on: bool = True):
    before = flex.calls()
    with flex.use_xeflash() if on else contextlib.nullcontext():
        yield
    after = flex.calls()
    went = after.xeflash - before.xeflash, after.torch - before.torch
    assert went == (xeflash, torch)


def attend(q: Any, k: Any, v: Any, score_mod: Any, mask_mod: Any, by: Any = flex_attention, **more: Any) -> Any:
    blocks = blocks_of(q, k, mask_mod)
    return by(q, k, v, score_mod, blocks, enable_gqa=True, **{"return_lse": True} | more)


def compiled(**more: Any) -> Any:
    return torch.compile(flex_attention, backend="aot_eager", fullgraph=True, **more)


def run(grad: bool, **more: Any) -> None:
    case = Case(EXAMPLES[RUN])
    check(RUN, case, case.by(functools.partial(attend, **more), Captures(grad=grad), grad))


@pytest.mark.parametrize("grad", [False, True])
def test_eager_calls_match_reference(grad):
    with expect(xeflash=1):
        run(grad)


@pytest.mark.parametrize("grad", [False, True])
def test_compiled_calls_match_reference(grad):
    with traced(xeflash=True):
        run(grad, by=compiled())


def test_calls_are_torchs_while_it_is_off():
    with expect(on=False):
        run(False)
    with pytest.raises(NotImplementedError, match="does not support backward on CPU"), expect(on=False):
        run(True)


def inputs(**sizes: int) -> tuple[Any, ...]:
    case = Case(EXAMPLES[RUN], Sizes(**sizes))
    return case.q, case.k, case.v, *case.example(case.z, Captures())


def test_float64_is_torchs():
    q, k, v, score_mod, mask_mod = inputs()
    doubles = [x.double() for x in (q, k, v)]
    want = attend(*doubles, score_mod, mask_mod)
    with expect(torch=1):
        got = attend(*doubles, score_mod, mask_mod)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


def test_calls_with_and_without_blocks_follow_each_other():
    """Then torch makes symbols of their sizes."""
    q, k, v, score_mod, mask_mod = inputs()
    with expect(xeflash=5):
        attend(q, k, v, None, None)
        for block in (128, 64, 32):
            out, _ = flex_attention(
                q, k, v, score_mod, blocks_of(q, k, mask_mod, block), enable_gqa=True, return_lse=True
            )
        longer = attend(q[:, :, :29], k[:, :, :31], v[:, :, :31], score_mod, mask_mod)[0]
    torch.testing.assert_close(out, flex.flex_attention(q, k, v, score_mod, blocks_of(q, k, mask_mod), enable_gqa=True))
    assert longer.shape == (2, 4, 29, 64)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_without_gradients_are_routed(mode):
    q, k, v, score_mod, mask_mod = inputs()
    want = attend(q, k, v, score_mod, mask_mod)[0]
    with mode(), expect(xeflash=1):
        torch.testing.assert_close(attend(q.clone(), k, v, score_mod, mask_mod)[0], want)


class Layer(nn.Module):
    """Attention whose slopes are learned, with a factor of Python's."""

    def __init__(self) -> None:
        super().__init__()
        self.slope, self.factor = nn.Parameter(torch.randn(4, generator=torch.Generator().manual_seed(1))), 0.1

    def change(self, s, b, h, q, k):
        return s + self.slope[h] * (k - q) * self.factor

    def forward(self, q, k, v, blocks):
        return flex_attention(q, k, v, self.change, blocks, enable_gqa=True)


@pytest.mark.parametrize("a_number", [False, pytest.param(True, marks=pytest.mark.wide)])
def test_compiled_layers_follow_what_changes(a_number):
    """Of a number that changes dynamo makes a tensor."""
    q, k, v, _, mask_mod = inputs()
    qkv = [x.requires_grad_() for x in (q, k, v)]
    blocks, layer = blocks_of(q, k, mask_mod), Layer()
    run, found = torch.compile(layer, backend="aot_eager", fullgraph=True), []

    def compare():
        with flex.use_xeflash():
            got = run(*qkv, blocks)
            dslope = torch.autograd.grad(got.square().sum(), [layer.slope, *qkv])[0]
        slope = layer.slope.detach().clone().requires_grad_()
        factor = layer.factor
        want = flex.flex_attention(*qkv, lambda s, b, h, q, k: s + slope[h] * (k - q) * factor, blocks, enable_gqa=True)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(dslope, torch.autograd.grad(want.square().sum(), [slope, *qkv])[0])
        found.append(got)

    compare()
    with torch.no_grad():
        layer.slope.mul_(2)
    compare()
    if a_number:
        layer.factor = 0.3
        compare()
    layer.slope = nn.Parameter(torch.ones(4))
    compare()
    assert not any(torch.allclose(a, b, atol=1e-3) for a, b in itertools.pairwise(found))


@pytest.mark.parametrize(("backend", "whose"), few_rows(BACKENDS, BACKENDS[0]))
def test_graphs_of_varying_lengths(backend, whose):
    """Results and gradients are those of calls that are not compiled."""
    function = flex.flex_attention if whose == "ours" else flex_attention

    def attended(q, k, v, score_mod, blocks):
        return function(q, k, v, score_mod, blocks, enable_gqa=True)

    graph = torch.compile(attended, backend=backend, dynamic=True, fullgraph=True)
    for rows, keys in LENGTHS:
        q, k, v, score_mod, mask_mod = inputs(rows=rows, keys=keys)
        qkv = [x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v)]
        blocks = blocks_of(q, k, mask_mod)
        want = flex.flex_attention(*qkv, score_mod, blocks, enable_gqa=True)
        wanted = torch.autograd.grad(want.square().sum(), qkv)
        with flex.use_xeflash():
            got = graph(*qkv, score_mod, blocks)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride() == qkv[0].stride()
        torch.testing.assert_close(torch.autograd.grad(got.square().sum(), qkv), wanted)
    assert flex.calls().xeflash > 0


def erf(score, b, h, q_idx, kv_idx):
    return torch.erf(score)


def test_what_is_refused_goes_on_to_torch():
    q, k, v, *_ = inputs()
    want = attend(q, k, v, erf, None)
    with expect(torch=1):
        assert torch.equal(attend(q, k, v, erf, None)[0], want[0])
    with pytest.raises(flex.Refused, match="erf of what depends on the score .* in 'erf'"):
        attend(q, k, v, erf, None, by=flex.flex_attention)
    with pytest.raises(Exception, match="does not support backward on CPU"), flex.use_xeflash():
        attend(q.requires_grad_(), k, v, erf, None)


def test_other_threads_stay_torchs():
    q, k, v, *_ = inputs()

    def in_a_thread():
        thread = threading.Thread(target=attend, args=(q, k, v, None, None))
        thread.start()
        thread.join()

    with expect():
        in_a_thread()
    flex.enable()
    try:
        with expect(xeflash=1, on=False):
            in_a_thread()
    finally:
        flex.disable()


def test_a_graph_of_one_way_is_not_found_by_the_other():
    """torch's caches on disk know an operator by its name alone."""
    assert not operator.cacheable()


@pytest.mark.wide
@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("by", ["eager", "compiled"])
def test_examples_match_reference(by, name):
    case, call = Case(EXAMPLES[name]), compiled() if by == "compiled" else flex_attention
    with expect(xeflash=1) if by == "eager" else traced(xeflash=True):
        got = case.by(functools.partial(attend, by=call), Captures(grad=True), True)
    check(name, case, got)
