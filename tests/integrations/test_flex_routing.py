"""Calls of torch's own flex_attention, eager and compiled, are xeflash's while its switch is on."""

import threading

import pytest
import torch
from cover import few_rows
from test_flex import blocks_of, inputs
from torch.nn.attention.flex_attention import AuxRequest, flex_attention
from xeflash.integrations import flex

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
LENGTHS = (37, 53), (41, 77), (130, 60)
RUNS = [("aot_eager", "one", "torch's"), ("inductor", "many", "torch's")]
RUNS += [(backend, "many", whose) for backend in ("eager", "aot_eager") for whose in ("torch's", "ours")]
RUNS += [("inductor", "many", "ours")]


@pytest.fixture(autouse=True)
def compiled_anew():
    torch._dynamo.reset()


@pytest.fixture
def counted():
    """Returns how many calls xeflash and torch have run since the test began."""
    before = flex.calls()
    return lambda: tuple(now - then for now, then in zip(flex.calls(), before, strict=True))


def erf(score, b, h, q_idx, kv_idx):
    return torch.erf(score)


def test_eager_calls_come_here(counted):
    q, k, v, score_mod, mask_mod = inputs(grad=True)
    blocks = blocks_of(q, k, mask_mod)
    want = flex.flex_attention(q, k, v, score_mod, blocks, enable_gqa=True, return_lse=True)
    with flex.use_xeflash():
        out, aux = flex_attention(q, k, v, score_mod, blocks, enable_gqa=True, return_aux=AuxRequest(lse=True))
    assert counted() == (1, 0)
    assert torch.equal(out, want[0]) and out.stride() == q.stride()
    torch.testing.assert_close(aux.lse, want[1])  # torch has it in base 2 on its way
    flex_attention(q.detach(), k.detach(), v.detach(), enable_gqa=True)
    assert counted() == (1, 0)


@pytest.mark.parametrize(("backend", "lengths", "whose"), few_rows(RUNS, RUNS[0], RUNS[1]))
def test_compiled_calls_come_here(counted, backend, lengths, whose):
    """Results and gradients of a compiled graph are those without it; other lengths use the same one."""
    function = flex.flex_attention if whose == "ours" else flex_attention
    dynamic = lengths == "many"

    def attended(q, k, v, score_mod, blocks):
        return function(q, k, v, score_mod, blocks, enable_gqa=True)

    compiled = torch.compile(attended, backend=backend, dynamic=dynamic, fullgraph=True)
    for rows, keys in LENGTHS if dynamic else LENGTHS[:1]:
        q, k, v, score_mod, mask_mod = inputs(grad=True, rows=rows, keys=keys)
        x = [t.detach().requires_grad_() for t in (q, k, v)]
        blocks = blocks_of(q, k, mask_mod)
        want = flex.flex_attention(*x, score_mod, blocks, enable_gqa=True)
        wanted = torch.autograd.grad(want.square().sum(), x)
        with flex.use_xeflash():
            got = compiled(*x, score_mod, blocks)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(torch.autograd.grad(got.square().sum(), x), wanted)
    ours, torchs = counted()
    assert ours > 0
    assert torchs == 0


def test_what_is_refused_goes_on_to_torch(counted):
    q, k, v, *_ = inputs()
    want = flex_attention(q, k, v, erf, enable_gqa=True)
    with flex.use_xeflash():
        assert torch.equal(flex_attention(q, k, v, erf, enable_gqa=True), want)
        assert counted() == (0, 1)
        with pytest.raises(flex.Refused, match="erf of what depends on the score .* in 'erf'"):
            flex.flex_attention(q, k, v, erf, enable_gqa=True)
        for t in (q, k, v):
            t.requires_grad_()
        with pytest.raises(Exception, match="does not support backward on CPU"):
            flex_attention(q, k, v, erf, enable_gqa=True)
    with pytest.raises(Exception, match="does not support backward on CPU"):
        flex_attention(q, k, v, enable_gqa=True)
    assert counted()[0] == 0


def test_other_threads_stay_torchs(counted):
    q, k, v, *_ = inputs()
    thread = threading.Thread(target=flex_attention, args=(q, k, v), kwargs={"enable_gqa": True})
    with flex.use_xeflash():
        thread.start()
        thread.join()
        assert counted() == (0, 0)
    flex.enable()
    try:
        thread = threading.Thread(target=flex_attention, args=(q, k, v), kwargs={"enable_gqa": True})
        thread.start()
        thread.join()
        assert counted() == (1, 0)
    finally:
        flex.disable()


def test_a_graph_of_one_way_is_not_found_by_the_other():
    """torch's caches on disk know an operator by its name alone."""
    from torch._higher_order_ops.flex_attention import flex_attention as operator

    assert not operator.cacheable()
