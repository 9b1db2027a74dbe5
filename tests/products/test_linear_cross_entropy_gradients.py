"""Gradients of a head's loss: each against float64, by autograd, compiled, and what has none."""

import pytest
import torch
import torch.nn.functional as F
import xeflash
from heads import IGNORED, Head, check_gradients, make, name_of

LOSS = torch.ops.xeflash.linear_cross_entropy.default


def gradients(head, x, w, target, bias, dloss=None, dlse=None):
    inputs = [t.detach().requires_grad_() for t in (x, w, bias) if t is not None]
    loss, lse = xeflash.linear_cross_entropy(
        inputs[0], inputs[1], target, linear_bias=inputs[2] if bias is not None else None,
        return_lse=True, **head.loss_options,
    )  # fmt: skip
    dloss = torch.ones_like(loss) if dloss is None else dloss
    outputs, grads = ((loss,), (dloss,)) if dlse is None else ((loss, lse), (dloss, dlse))
    return torch.autograd.grad(outputs, inputs, grads)


CASES = [
    *(
        Head(dtype, rows, vocabulary)
        for dtype in ("fp32", "bf16")
        for rows in (1, 23, 127)
        for vocabulary in (17, 1000)
    ),
    Head("fp32", 1, 1, 1),
    Head("fp32", 130, 3001, 129, bias=True, smoothing=0.1),
    Head("fp32", softcap=3.0, scale=0.5, bias=True, z_loss=1e-2),
    Head("fp32", softcap=2.0, scale=-1.5, smoothing=0.3, reduction="sum"),
    Head("fp16", 60, 500, 40, bias=True, softcap=5.0, smoothing=0.1, reduction="sum"),
    Head("bf16", 60, 500, 40, bias=True, z_loss=1e-3, layout="sliced"),
    Head("fp32", layout="turned", bias=True),
    Head("fp32", 2100, 100, 24, bias=True),  # more rows than a block of slopes has
    Head("bf16", 2100, 100, 24, bias=True),
]


@pytest.mark.parametrize("head", CASES, ids=name_of)
def test_gradients_match_float64(head):
    x, w, target, bias = make(head)
    check_gradients(head, gradients(head, x, w, target, bias), x, w, target, bias)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_each_row_has_a_gradient_of_its_own(dtype):
    head = Head(dtype, reduction="none", smoothing=0.1, z_loss=1e-2, softcap=4.0)
    x, w, target, bias = make(head)
    dloss, dlse = torch.randn(23), torch.randn(23)
    check_gradients(head, gradients(head, x, w, target, bias, dloss), x, w, target, bias, dloss)
    check_gradients(head, gradients(head, x, w, target, bias, dloss, dlse), x, w, target, bias, dloss, dlse)
    check_gradients(head, gradients(head, x, w, target, bias, 0 * dloss, dlse), x, w, target, bias, 0.0, dlse)


def test_the_target_is_taken_off_before_slopes_are_rounded():
    """P of the target is near 1: as a number of 8 bits it would be 1, and the gradient 0."""
    head = Head("bf16", 4, 100, 1, reduction="sum")
    w = torch.zeros(100, 1, dtype=torch.bfloat16)
    w[7] = 1
    x, target = torch.full((4, 1), 11.0, dtype=torch.bfloat16), torch.full((4,), 7)
    check_gradients(head, gradients(head, x, w, target, None), x, w, target, None)
    found = gradients(head, x, w, target, None)
    assert bool((found[0] < 0).all())


@pytest.mark.parametrize("wanted", range(1, 8))
def test_only_what_is_asked_for_is_computed(wanted, monkeypatch):
    from xeflash import _core

    calls = []
    backward = _core.linear_cross_entropy_backward

    def seen(**given):
        calls.append(tuple(given.get(name, True) for name in ("wants_input", "wants_weight", "wants_bias")))
        return backward(**given)

    monkeypatch.setattr(_core, "linear_cross_entropy_backward", seen)
    head = Head(bias=True)
    x, w, target, bias = make(head)
    want = gradients(head, x, w, target, bias)
    asked = tuple(bool(wanted & bit) for bit in (1, 2, 4))
    for t, wants in zip((x, w, bias), asked, strict=True):
        t.requires_grad_(wants)
    xeflash.linear_cross_entropy(x, w, target, linear_bias=bias).backward()
    assert calls == [(True, True, True), asked]
    for t, full, wants in zip((x, w, bias), want, asked, strict=True):
        assert torch.equal(t.grad, full) if wants else t.grad is None


def test_a_tied_weight_has_the_sum_of_both_gradients():
    _, w, target, _ = make(Head(vocabulary=60))
    tokens = torch.arange(23)
    grads = []
    for loss in (
        lambda w: xeflash.linear_cross_entropy(F.embedding(tokens, w), w, target),
        lambda w: F.cross_entropy(F.linear(F.embedding(tokens, w), w), target),
    ):
        one = w.clone().requires_grad_()
        grads.append(torch.autograd.grad(loss(one), one)[0])
    torch.testing.assert_close(*grads)


def test_gradients_are_the_same_each_time():
    head = Head(rows=200, vocabulary=2000, bias=True)
    given = make(head)
    first, second = gradients(head, *given), gradients(head, *given)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_graph_that_is_kept_gives_gradients_again():
    x, w, target, _ = make(Head())
    x.requires_grad_()
    loss = xeflash.linear_cross_entropy(x, w, target)
    first = torch.autograd.grad(loss, x, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(loss, x)[0], first)


def test_what_has_no_gradients_is_refused():
    x, w, target, _ = make(Head())
    x.requires_grad_()
    with pytest.raises(NotImplementedError, match="^linear_cross_entropy: gradients of gradients must not be asked"):
        torch.autograd.grad(xeflash.linear_cross_entropy(x, w, target), x, create_graph=True)
    with pytest.raises(
        NotImplementedError, match=r"^linear_cross_entropy: gradients must not be asked for by torch\.func"
    ):
        torch.func.grad(lambda x: xeflash.linear_cross_entropy(x, w, target))(x.detach())
    with pytest.raises(NotImplementedError, match="^linear_cross_entropy: divisor must not require grad"):
        xeflash.linear_cross_entropy(x, w, target, divisor=torch.tensor(2.0, requires_grad=True))


# ---- gradients in the forward pass ----------------------------------------------------------------

BYTES = 4 * 384  # of a row of logits, up to 384 tokens


def in_forward(head, x, w, target, bias, dloss, workspace, wanted=(True, True, True)):
    given = [t.detach().requires_grad_(wants) for t, wants in zip((x, w, bias), wanted, strict=True) if t is not None]
    loss, lse = xeflash.linear_cross_entropy(
        given[0], given[1], target, linear_bias=given[2] if bias is not None else None, return_lse=True,
        workspace=workspace, **head.loss_options,
    )  # fmt: skip
    loss.backward(torch.as_tensor(dloss), retain_graph=True)
    first = [t.grad for t in given]
    for t in given:
        t.grad = None
    loss.backward(torch.as_tensor(dloss))
    assert all(a is b.grad or torch.equal(a, b.grad) for a, b in zip(first, given, strict=True))
    return loss.detach(), lse.detach(), first


@pytest.mark.parametrize("rows", [64, 130, 200])  # of a workspace: three blocks, two, or one
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_gradients_of_the_forward_pass_match_float64(dtype, reduction, rows):
    head = Head(dtype, 150, 300, 40, bias=True, smoothing=0.1, softcap=4.0, z_loss=1e-3, reduction=reduction)
    x, w, target, bias = make(head)
    loss, lse, found = in_forward(head, x, w, target, bias, 3.0, rows * BYTES)
    check_gradients(head, found, x, w, target, bias, 3.0)
    want = xeflash.linear_cross_entropy(x, w, target, linear_bias=bias, return_lse=True, **head.loss_options)
    torch.testing.assert_close(loss, want[0], rtol=1e-6, atol=0)
    assert torch.equal(lse, want[1])


def test_small_gradients_of_the_forward_pass_do_not_vanish():
    """As numbers of fp16 they would, before a scaled loss reaches them."""
    head = Head("fp16", 64, 384, 8)
    x, w, target, bias = make(head)
    w = w * 2.0**-10
    found = in_forward(head, x, w, target, bias, 2.0**16, 64 * BYTES)[2]
    assert bool(found[0].any())
    check_gradients(head, found, x, w, target, bias, 2.0**16)


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, False), (False, False, True)])
def test_the_forward_pass_makes_only_what_is_wanted(wanted):
    head = Head(bias=True)
    given = make(head)
    every, some = (in_forward(head, *given, 1.0, 64 * BYTES, w)[2] for w in ((True, True, True), wanted))
    for one, full, wants in zip(some, every, wanted, strict=True):
        assert torch.equal(one, full) if wants else one is None


def test_a_workspace_compiles_without_a_break():
    x, w, target, bias = make(Head(bias=True))
    x.requires_grad_()

    def step(x, w, target, bias):
        return 2 * xeflash.linear_cross_entropy(x + 1, w, target, linear_bias=bias, workspace=64 * BYTES)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    want, got = step(x, w, target, bias), compiled(x, w, target, bias)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(*(torch.autograd.grad(t, x)[0] for t in (got, want)))


def test_a_workspace_is_refused_where_it_cannot_serve():
    x, w, target, _ = make(Head(rows=100))
    x.requires_grad_()
    with pytest.raises(
        ValueError, match="^linear_cross_entropy: workspace must be at least 98304 bytes, of the logits"
    ):
        xeflash.linear_cross_entropy(x, w, target, workspace=64 * BYTES - 1)
    with pytest.raises(ValueError, match='^linear_cross_entropy: workspace must be None with reduction = "none"'):
        xeflash.linear_cross_entropy(x, w, target, workspace=1 << 20, reduction="none")
    with pytest.raises(ValueError, match="^linear_cross_entropy: workspace must be positive, or None, got 0"):
        xeflash.linear_cross_entropy(x, w, target, workspace=0)
    loss, lse = xeflash.linear_cross_entropy(x, w, target, workspace=1 << 20, return_lse=True)
    with pytest.raises(NotImplementedError, match="^linear_cross_entropy: the LSE must not be differentiated"):
        (loss + lse.sum()).backward()


# ---- what torch does with it --------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"reduction": "none", "label_smoothing": 0.1, "z_loss": 1e-3}])
def test_operator_passes_opcheck(more):
    x, w, target, bias = make(Head(bias=True))
    for t in (x, w, bias):
        t.requires_grad_()
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(LOSS, (x, w, target, bias), more, test_utils=tests)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_without_a_break(dynamic):
    x, w, target, bias = make(Head(bias=True))
    x.requires_grad_()

    def step(x, w, target, bias):
        loss, lse = xeflash.linear_cross_entropy(x + 1, w, target, linear_bias=bias, softcap=3.0, return_lse=True)
        return 2 * loss + lse.square().sum() + xeflash.linear_log_prob(x, w, target.clamp(min=0)).sum()

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    want, got = step(x, w, target, bias), compiled(x, w, target, bias)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(*(torch.autograd.grad(t, x)[0] for t in (got, want)))


def test_autocast_casts_floating_inputs():
    x, w, target, _ = make(Head())
    with torch.autocast("cpu", torch.bfloat16):
        got = xeflash.linear_cross_entropy(x, w, target)
    assert torch.equal(got, xeflash.linear_cross_entropy(x.bfloat16(), w.bfloat16(), target))


def test_a_log_probability_is_a_loss_less_its_sign():
    x, w, target, bias = make(Head(bias=True, rows=40))
    target = target.clamp(min=0)
    x.requires_grad_()
    got = xeflash.linear_log_prob(x, w, target, linear_bias=bias, softcap=3.0)
    loss = xeflash.linear_cross_entropy(x, w, target, linear_bias=bias, softcap=3.0, reduction="none")
    assert torch.equal(got, -loss)
    dout = torch.randn(40)
    assert torch.equal(torch.autograd.grad(got, x, dout)[0], torch.autograd.grad(loss, x, -dout)[0])
    with pytest.raises(ValueError, match=f"^linear_log_prob: target must be 0 to 199, got {IGNORED}"):
        xeflash.linear_log_prob(x.detach(), w, torch.full((40,), IGNORED))
