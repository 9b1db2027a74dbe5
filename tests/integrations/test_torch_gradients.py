"""Gradients in PyTorch: every public function and operator, compiled, checkpointed, cast, and what is refused."""

from __future__ import annotations

import functools

import pytest
import torch
import xeflash
import xeflash.torch_ops
from cover import few, few_rows
from torch.utils.checkpoint import checkpoint
from xeflash import _core
from xeflash.bench.memory import peak_of
from xeflash.call import schema
from xeflash.torch_ops.attention.gradients import OPERATORS_WORDS

ops = torch.ops.xeflash
pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()


# The others run on xpu in the wide set: a simulated GPU takes seconds for a call.
GPU_TESTS = ("autocast", "other_devices")


def learned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def heads_first() -> tuple[torch.Tensor, ...]:
    return learned(2, 6, 7, 64), learned(2, 2, 23, 64), learned(2, 2, 23, 64)


def rows_first() -> tuple[torch.Tensor, ...]:
    return learned(2, 7, 6, 64), learned(2, 23, 2, 64), learned(2, 23, 2, 64)


def starts(*lengths: int) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def packed() -> tuple[object, ...]:
    return learned(9, 6, 64), learned(47, 2, 64), learned(47, 2, 64), starts(5, 0, 4), starts(11, 19, 17), 5, 19


def states() -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    return tuple((learned(2, 7, 6, 64), learned(2, 6, 7)) for _ in range(3))


FUNCTIONS = {
    "attention": lambda: (
        xeflash.attention,
        heads_first(),
        dict(enable_gqa=True, is_causal=True, attn_mask=learned(1, 1, 7, 23), sinks=learned(6), return_lse=True),
    ),
    "attention-3d": lambda: (xeflash.attention, tuple(learned(3, 5, 64) for _ in range(3)), {}),
    "attention-5d": lambda: (
        xeflash.attention,
        tuple(learned(2, 1, 3, 5, 64) for _ in range(3)),
        dict(attn_mask=learned(2, 1, 1, 5, 5), return_lse=True),
    ),
    "attention-rng": lambda: (
        xeflash.attention,
        heads_first(),
        dict(enable_gqa=True, dropout_p=0.3, rng=(2**64 - 1, 2**63)),
    ),
    "score-mod": lambda: (
        xeflash.attention,
        heads_first(),
        dict(enable_gqa=True, score_mod="s * a + near[k_idx / n]", captures={"near": torch.rand(9), "a": 0.5, "n": 3}),
    ),
    "flash_attn_func": lambda: (
        xeflash.flash_attn_func,
        rows_first(),
        dict(causal=True, window_size=(5, 0), softcap=3.0, return_attn_probs=True, deterministic=True),
    ),
    "flash_attn_func-slopes": lambda: (
        xeflash.flash_attn_func,
        rows_first(),
        dict(alibi_slopes=learned(2, 6), s_aux=learned(6)),
    ),
    "qkvpacked": lambda: (xeflash.flash_attn_qkvpacked_func, (learned(2, 7, 3, 4, 64),), {}),
    "kvpacked": lambda: (xeflash.flash_attn_kvpacked_func, (learned(2, 7, 4, 64), learned(2, 9, 2, 2, 64)), {}),
    "varlen": lambda: (xeflash.flash_attn_varlen_func, packed(), dict(causal=True, s_aux=learned(6))),
    "varlen-used": lambda: (
        xeflash.flash_attn_varlen_func,
        packed(),
        dict(seqused_k=torch.tensor([3, 0, 17]).int(), return_attn_probs=True),
    ),
    "varlen-qkvpacked": lambda: (
        xeflash.flash_attn_varlen_qkvpacked_func,
        (learned(9, 3, 4, 64), starts(5, 0, 4), 5),
        {},
    ),
    "varlen-kvpacked": lambda: (
        xeflash.flash_attn_varlen_kvpacked_func,
        (learned(9, 4, 64), learned(47, 2, 2, 64), starts(5, 0, 4), starts(11, 19, 17), 5, 19),
        {},
    ),
    "merge_states": lambda: (xeflash.merge_states, states(), {}),
}


def tensors(tree: object) -> list[torch.Tensor]:
    return [x for x in torch.utils._pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def results(call) -> list[torch.Tensor]:
    """What a call gives that can be differentiated."""
    return [x for x in tensors(call()) if x.requires_grad]


def gradients(outs: list[torch.Tensor], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Of a sum in which every element has another weight."""
    for x in inputs:
        x.grad = None
    sum((x.float() * torch.linspace(-1, 1, x.numel()).view(x.shape)).sum() for x in outs).backward()
    return [x.grad for x in inputs]


def assert_same(got, want):
    for a, b in zip(got, want, strict=True):
        assert (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device)
        assert torch.equal(a, b)


@pytest.mark.parametrize("case", FUNCTIONS)
def test_forward_is_that_without_gradients(case):
    function, arguments, more = FUNCTIONS[case]()
    with torch.no_grad():
        want = tensors(function(*arguments, **more))
    got = tensors(function(*arguments, **more))
    assert all(x.requires_grad for x in got)
    assert_same(got, want)


COMPILED = [(case, "aot_eager") for case in FUNCTIONS]
COMPILED += [(case, "inductor") for case in ("attention", "varlen", "flash_attn_func")]
USUAL = [(case, "aot_eager") for case in ("attention", "score-mod", "varlen", "merge_states")]


@pytest.mark.parametrize(("case", "backend"), few_rows(COMPILED, *USUAL, ("attention", "inductor")))
def test_compiled_gradients_are_those_of_eager(device, case, backend):
    if backend == "inductor" and device == "xpu":
        pytest.skip("on xpu inductor wants Triton")
    function, arguments, more = FUNCTIONS[case]()
    inputs = [x for x in tensors((arguments, more)) if x.requires_grad]
    call = functools.partial(function, *arguments, **more)
    want = gradients(results(call), inputs)
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=backend)
    assert_same(gradients(results(lambda: compiled(*arguments, **more)), inputs), want)


def test_lengths_need_no_new_graph():
    graphs = 0

    def backend(graph, inputs):
        nonlocal graphs
        graphs += 1
        return torch._dynamo.backends.debugging.aot_eager(graph, inputs)

    step = torch.compile(xeflash.attention, fullgraph=True, dynamic=True, backend=backend)
    seen = []
    for rows, keys in ((5, 7), (6, 17), (30, 18), (100, 90)):
        q, k, v = learned(1, 4, rows, 64), learned(1, 4, keys, 64), learned(1, 4, keys, 64)
        assert_same(gradients([step(q, k, v)], [q, k, v]), gradients([xeflash.attention(q, k, v)], [q, k, v]))
        seen.append(graphs)
    assert seen[1:] == seen[:-1]  # the first call may try twice


# ---- operators ----------------------------------------------------------------------------------

OPERATORS = {
    "attention": lambda: (ops.attention, heads_first(), dict(enable_gqa=True)),
    "attention-all": lambda: (
        ops.attention,
        (*heads_first(), learned(1, 1, 7, 23), 0.1, True, 0.2, True),
        dict(window_left=9, alibi_slopes=learned(6), sinks=learned(6), seed=-1, offset=5, return_lse=True),
    ),
    "flash_attn": lambda: (ops.flash_attn, rows_first(), dict(causal=True, return_lse=True)),
    "flash_attn_varlen": lambda: (ops.flash_attn_varlen, packed(), dict(softcap=2.0, return_lse=True)),
    "merge_states": lambda: (ops.merge_states, tuple(map(list, zip(*states(), strict=True))), {}),
}


@pytest.mark.parametrize("case", few(OPERATORS, "attention", "flash_attn_varlen"))
def test_opcheck_of_operators_that_need_gradients(case):
    operator, arguments, more = OPERATORS[case]()
    torch.library.opcheck(operator.default, arguments, more)


WANTED = (["q", "k", "v", "s_aux"], ["q"], ["k", "v"], ["q", "k", "v", "attn_mask", "s_aux"])


@pytest.mark.parametrize("wanted", few(WANTED, WANTED[0]))
def test_opcheck_of_the_backward_operator(wanted):
    q, k, v = (x.detach() for x in heads_first())
    mask, sinks = torch.randn(7, 23) if "attn_mask" in wanted else None, torch.randn(6)
    out, lse, rng, _ = ops.attention(
        q, k, v, mask, dropout_p=0.2, enable_gqa=True, sinks=sinks, seed=3, offset=4, return_lse=True
    )
    assert rng.tolist() == [3, 4] and rng.device.type == "cpu"
    arguments = (torch.ones(()).expand(out.shape), torch.randn(2, 6, 7), q, k, v, out, lse, rng, 2, wanted)
    more = dict(dropout_p=0.2, enable_gqa=True, attn_mask=mask, s_aux=sinks)
    torch.library.opcheck(ops.attention_backward.default, arguments, more)


def test_the_state_is_given_with_dropout_only():
    q = torch.randn(1, 2, 5, 64)
    assert ops.attention(q, q, q)[2].numel() == 0
    _, _, state, _ = ops.attention(q, q, q, dropout_p=0.5)
    again = ops.attention(q, q, q, dropout_p=0.5, seed=int(state[0]), offset=int(state[1]))
    assert torch.equal(again[2], state)


def test_an_operator_gives_an_lse_only_if_asked():
    q, k, v = heads_first()
    out, lse, *_ = ops.attention(q, k, v, enable_gqa=True)
    assert out.requires_grad and lse.numel() == 0 and not lse.requires_grad
    with torch.no_grad():
        assert not ops.attention(q, k, v, enable_gqa=True)[0].requires_grad


# ---- what is computed ---------------------------------------------------------------------------


NAMES = ("query", "key", "value", "key value", "attn_mask", "sinks query", "alibi_slopes")


@pytest.mark.parametrize("names", few(NAMES, *NAMES[:-1]))
@pytest.mark.parametrize("compiled", [False, True])
def test_only_what_is_wanted_is_computed(monkeypatch, names, compiled):
    q, k, v = heads_first()
    arguments = dict(query=q, key=k, value=v, attn_mask=learned(7, 23), sinks=learned(6))
    arguments |= {"alibi_slopes": learned(6)} if names == "alibi_slopes" else {}
    everything = list(arguments)
    want = dict(zip(everything, gradients([call_attention(arguments)], list(arguments.values())), strict=True))
    for name in everything:
        arguments[name] = arguments[name].detach().requires_grad_(name in names.split())
    asked = []
    backward = _core.backward

    def recorded(**given):
        asked.append(given["wanted"])
        return backward(**given)

    monkeypatch.setattr(_core, "backward", recorded)
    call = torch.compile(call_attention, backend="aot_eager", fullgraph=True) if compiled else call_attention
    chosen = [name for name in everything if name in names.split()]
    found = gradients([call(arguments)], [arguments[name] for name in chosen])
    assert_same(found, [want[name] for name in chosen])
    in_core = {"query": "q", "key": "k", "value": "v", "sinks": "s_aux"}
    assert [set(names) for names in asked] == [{in_core.get(name, name) for name in chosen}]


def call_attention(arguments):
    return xeflash.attention(**arguments, enable_gqa=True)


def test_the_gradient_of_a_bias_takes_no_more_memory_than_itself(device):
    """Not that of the gradients of all scores which share it."""
    q, k, v = (torch.randn(8, 4, 256, 64, requires_grad=True) for _ in range(3))
    for shape in [(256, 256), (4, 256, 256), (8, 1, 1, 256), (4, 256, 1)]:
        bias = torch.randn(shape, requires_grad=True)
        out = xeflash.attention(q, k, v, bias)
        take = functools.partial(torch.autograd.grad, out, grad_outputs=torch.randn_like(out), retain_graph=True)
        without = peak_of(functools.partial(take, (q, k, v)), device)
        more = peak_of(functools.partial(take, (q, k, v, bias)), device) - without
        assert more <= max(bias.nbytes, 4 * out[..., 0].numel()), f"{shape}: {more} bytes"


def test_the_gradient_of_the_lse_alone():
    q, k, v = heads_first()
    *_, lse = xeflash.attention(q, k, v, enable_gqa=True, return_lse=True)
    keys = k.repeat_interleave(3, 1)
    want = torch.logsumexp(q @ keys.mT / 8, -1)
    torch.testing.assert_close(lse, want)
    for got, expected in zip(gradients([lse], [q, k]), gradients([want], [q, k]), strict=True):
        torch.testing.assert_close(got, expected)
    assert not torch.autograd.grad(xeflash.attention(q, k, v, enable_gqa=True, return_lse=True)[1].sum(), v)[0].any()


def test_gradients_of_parts_merged_are_those_of_the_whole():
    q, k, v = (
        x.detach().requires_grad_() for x in (learned(2, 7, 6, 64), learned(2, 30, 2, 64), learned(2, 30, 2, 64))
    )
    whole, lse, _ = xeflash.flash_attn_func(q, k, v, return_attn_probs=True)
    cuts = (slice(0, 11), slice(11, 12), slice(12, 30))
    parts = [xeflash.flash_attn_func(q, k[:, cut], v[:, cut], return_attn_probs=True)[:2] for cut in cuts]
    merged = xeflash.merge_states(*parts)
    for got, want in zip(gradients(list(merged), [q, k, v]), gradients([whole, lse], [q, k, v]), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_merge_states_are_those_of_the_formula(dtype):
    outs, lses = [learned(9, 6, 64, dtype=dtype) for _ in range(3)], [learned(6, 9) for _ in range(3)]
    with torch.no_grad():
        lses[1][:, 2] = -torch.inf  # no key of this part
        for lse in lses:
            lse[:, 4] = torch.inf  # none at all
    got = gradients(list(xeflash.merge_states(*zip(outs, lses, strict=True))), [*outs, *lses])
    wide = [x.detach().double().requires_grad_() for x in (*outs, *lses)]
    stacked = torch.stack(wide[3:])
    hidden = stacked.detach().isinf()
    total = torch.logsumexp(stacked.masked_fill(hidden, -torch.inf), 0)
    weights = (stacked.masked_fill(hidden, -torch.inf) - total).exp().masked_fill(hidden, 0.0)
    merged = (weights.mT[..., None] * torch.stack(wide[:3])).sum(0)
    seen = ~hidden.all(0)
    loss = (merged * torch.linspace(-1, 1, merged.numel()).view(merged.shape).to(dtype)).sum()
    loss = loss + (total * torch.linspace(-1, 1, total.numel()).view(total.shape))[seen].sum()
    want = torch.autograd.grad(loss, wide)
    for a, b in zip(got, want, strict=True):
        b = torch.where(b.isnan(), 0.0, b)  # of rows without a key
        torch.testing.assert_close(a, b.to(a.dtype), rtol=1e-2 if a.dtype is torch.bfloat16 else 1e-5, atol=1e-5)


@pytest.mark.parametrize("strides", ["expanded", "transposed", "every other"])
def test_incoming_gradients_may_have_any_strides(strides):
    q, k, v = heads_first()
    out = xeflash.attention(q, k, v, enable_gqa=True)
    dout = {
        "expanded": lambda: torch.ones(()).expand(out.shape),
        "transposed": lambda: torch.randn(2, 6, 64, 7).mT,
        "every other": lambda: torch.randn(2, 6, 7, 128)[..., ::2],
    }[strides]()
    got = torch.autograd.grad(out, [q, k, v], dout, retain_graph=True)
    assert_same(got, torch.autograd.grad(out, [q, k, v], dout.contiguous()))


def test_inputs_may_be_views_and_results_are_accumulated():
    whole = learned(2, 7, 18, 64)
    q, k, v = whole.chunk(3, 2)
    xeflash.flash_attn_func(q, k, v).sum().backward()
    parts = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    xeflash.flash_attn_func(*parts).sum().backward()
    assert torch.equal(whole.grad, torch.cat([x.grad for x in parts], 2))
    before = whole.grad.clone()
    xeflash.flash_attn_func(*whole.chunk(3, 2)).sum().backward()
    assert torch.equal(whole.grad, 2 * before)


def test_an_out_that_is_given_carries_the_gradient():
    q, k, v = heads_first()
    out = torch.empty(2, 6, 7, 64)
    assert xeflash.attention(q, k, v, enable_gqa=True, out=out) is out
    assert_same(gradients([out], [q, k, v]), gradients([xeflash.attention(q, k, v, enable_gqa=True)], [q, k, v]))


def test_what_was_kept_must_not_be_changed():
    q, k, v = heads_first()
    out = xeflash.attention(q, k, v, enable_gqa=True)
    with torch.no_grad():
        k += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_gives_gradients_of_the_inputs_types(device, compiled):
    q, k, v = heads_first()

    def call(q, k, v):
        with torch.autocast(device, dtype=torch.bfloat16):
            return xeflash.attention(q, k, v, enable_gqa=True)

    run = torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call
    out = run(q, k, v)
    assert out.dtype is torch.bfloat16
    narrow = [x.detach().bfloat16().requires_grad_() for x in (q, k, v)]
    want = gradients([xeflash.attention(*narrow, enable_gqa=True)], narrow)
    assert_same(gradients([out], [q, k, v]), [x.float() for x in want])


def test_nothing_is_recorded_without_grad_mode():
    q, k, v = heads_first()
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert not xeflash.attention(q, k, v, enable_gqa=True).requires_grad
            assert not ops.attention(q, k, v, enable_gqa=True)[0].requires_grad


def test_saved_tensors_pass_through_hooks():
    q, k, v = heads_first()
    with torch.autograd.graph.save_on_cpu():
        out = xeflash.attention(q, k, v, enable_gqa=True)
    assert_same(gradients([out], [q, k, v]), gradients([xeflash.attention(q, k, v, enable_gqa=True)], [q, k, v]))


# ---- dropout and activation checkpointing -------------------------------------------------------


def with_dropout(q, k, v):
    return xeflash.flash_attn_func(q * 2, k, v, dropout_p=0.4)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_draws_the_same_numbers_again(use_reentrant, compiled):
    if compiled and use_reentrant:
        pytest.skip("torch.compile takes both for the same")
    inputs = list(rows_first())
    found = []
    for kept in (True, False):
        run = with_dropout if kept else functools.partial(checkpoint, with_dropout, use_reentrant=use_reentrant)
        if compiled:
            run = torch.compile(run, fullgraph=True, backend="aot_eager")
        torch.manual_seed(7)
        found.append(gradients([run(*inputs)], inputs))
        torch.manual_seed(7)
        assert_same(gradients([run(*inputs)], inputs), found[-1])
        assert not torch.equal(gradients([run(*inputs)], inputs)[0], found[-1][0])
    assert_same(*found)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_with_manual_seed_is_refused(use_reentrant):
    inputs = list(rows_first())
    xeflash.manual_seed(3)
    first = gradients([with_dropout(*inputs)], inputs)
    xeflash.manual_seed(3)
    assert_same(gradients([with_dropout(*inputs)], inputs), first)
    out = checkpoint(with_dropout, *inputs, use_reentrant=use_reentrant)
    with pytest.raises(NotImplementedError, match="^flash_attn_func: dropout_p must be 0 in a forward pass that is"):
        out.sum().backward()


# ---- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["attention", "flash_attn_func", "varlen"])
def test_double_backward_is_refused_by_name(case):
    function, arguments, more = FUNCTIONS[case]()
    inputs = [x for x in tensors((arguments, more)) if x.requires_grad]
    outs = results(lambda: function(*arguments, **more))
    grads = torch.autograd.grad([x.sum() for x in outs], inputs, create_graph=True)
    assert all(x.requires_grad for x in grads)
    name = "flash_attn_varlen_func" if case == "varlen" else case
    with pytest.raises(NotImplementedError, match=f"^{name}: gradients must not be differentiated again"):
        grads[0].sum().backward()


def test_gradients_of_merge_states_may_be_differentiated_again():
    outs, lses = [learned(1, 2, 64) for _ in range(2)], [learned(2, 1) for _ in range(2)]
    torch.autograd.gradgradcheck(
        lambda *x: xeflash.merge_states(*zip(x[:2], x[2:], strict=True)),
        [*outs, *lses], eps=1e-2, atol=2e-2, rtol=2e-2, nondet_tol=1e-5, fast_mode=True,
    )  # fmt: skip


TRANSFORMS = {
    "grad": lambda f, x: torch.func.grad(lambda x: f(x).sum())(x),
    "vjp": lambda f, x: torch.func.vjp(f, x)[1](torch.ones_like(x)),
    "vmap of grad": lambda f, x: torch.func.vmap(torch.func.grad(lambda x: f(x).sum()))(x[None]),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("call", ["function", "operator", "merge_states"])
def test_transforms_of_torch_func_are_refused(transform, call):
    q = torch.randn(1, 2, 5, 64)
    lse = torch.zeros(1, 5, 2)
    calls = {
        "function": lambda x: xeflash.attention(x, q, q),
        "operator": lambda x: ops.attention(x, q, q)[0],
        "merge_states": lambda x: xeflash.merge_states(x, lse, q, lse)[0],
    }
    name = "merge_states" if call == "merge_states" else "attention"
    with pytest.raises(NotImplementedError, match=f"^{name}: gradients must not be asked for by torch.func's"):
        TRANSFORMS[transform](calls[call], q)


@pytest.mark.parametrize("call", [xeflash.attention, lambda *x: ops.attention(*x)[0]], ids=["function", "operator"])
def test_forward_mode_gradients_are_refused(call):
    q = torch.randn(1, 2, 5, 64)
    with pytest.raises(NotImplementedError, match="must have no tangent, as there are no forward-mode"):
        torch.func.jvp(lambda x: call(x, q, q), (q,), (q,))
    with (
        torch.autograd.forward_ad.dual_level(),
        pytest.raises(NotImplementedError, match="must have no tangent, as there are no forward-mode"),
    ):
        call(q, torch.autograd.forward_ad.make_dual(q, q), q)


def test_vmap_is_the_call_of_each_with_gradients_too():
    q, k, v = (learned(3, 2, 4, 5, 64) for _ in range(3))
    got = torch.func.vmap(xeflash.attention)(q, k, v)
    want = torch.stack([xeflash.attention(*x) for x in zip(q, k, v, strict=True)])
    assert_same(gradients([got], [q, k, v]), gradients([want], [q, k, v]))


def test_batched_gradients_are_refused_by_name():
    q, k, v = heads_first()
    out = xeflash.attention(q, k, v, enable_gqa=True)
    with pytest.raises(NotImplementedError, match="^attention: gradients must not be batched .*below vmap"):
        torch.autograd.grad(out, q, torch.randn(3, *out.shape), is_grads_batched=True)


@pytest.mark.parametrize("function", ["attention", "flash_attn_func"])
def test_keys_of_batch_1_get_the_sum_of_all_gradients(function):
    q, k, v = learned(3, 7, 2, 64), learned(1, 7, 2, 64), learned(1, 7, 2, 64)
    call = getattr(xeflash, function)
    got = call(q, k, v)
    want = call(q, *(x.expand(3, 7, 2, 64).contiguous() for x in (k, v)))
    dout = torch.randn_like(want)
    found = torch.autograd.grad(got, (q, k, v), dout)
    assert [x.shape for x in found] == [x.shape for x in (q, k, v)]
    for x, y in zip(found, torch.autograd.grad(want, (q, k, v), dout), strict=True):
        torch.testing.assert_close(x, y)


def test_the_backward_operator_has_every_keyword_but_those_with_a_reason():
    has = {argument.name for argument in ops.attention_backward.default._schema.arguments}
    for name, row in schema.ROWS.items():
        if row.more.ops and name != "score_mod" and not row.more.forward_only:  # else no operator has it
            assert OPERATORS_WORDS.get(name, name) in has, f"gradients would be those of a call without {name}"


def test_captures_have_gradients_in_every_way_to_call():
    q, near, a = learned(1, 2, 9, 64), learned(9), torch.tensor(0.7, requires_grad=True)
    text = "s * a + near[k_idx / n]"

    def call(near, a):
        return xeflash.attention(q, q, q, score_mod=text, captures={"near": near, "a": a, "n": 2})

    more = dict(capture_names=["near", "a", "n"], capture_arrays=[near, a], capture_numbers=[2])
    operator = ops.attention(q, q, q, score_mod=text, **more)[0]
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    outs = [call(near, a), operator, compiled(near, a), checkpoint(call, near, a, use_reentrant=False)]
    dout = torch.randn(outs[0].shape)
    first, *others = [torch.autograd.grad(out, (near, a), dout) for out in outs]
    assert [x.shape for x in first] == [(9,), ()] and all(x.any() for x in first)
    for other in others:
        assert all(x.equal(y) for x, y in zip(first, other, strict=True))
    alone = torch.autograd.grad(call(near, 0.7), near, dout, create_graph=True)[0]
    assert alone.equal(first[0])
    with pytest.raises(NotImplementedError, match="^attention: gradients must not be differentiated again"):
        torch.autograd.grad(alone.sum(), near)


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("call", [xeflash.flash_attn_varlen_func, ops.flash_attn_varlen], ids=["function", "operator"])
def test_pages_have_no_gradients(call, name):
    pages = torch.randn(2, 5, 16, 2, 64)
    arguments = dict(q=torch.randn(9, 6, 64), k=pages[0], v=pages[1], cu_seqlens_q=starts(5, 4), cu_seqlens_k=None)
    arguments |= dict(max_seqlen_q=5, max_seqlen_k=32, seqused_k=torch.tensor([19, 3]).int())
    arguments |= dict(block_table=torch.tensor([[0, 3], [4, 0]]).int())
    arguments[name] = arguments[name].clone().requires_grad_()
    if call is xeflash.flash_attn_varlen_func:  # which runs, as flash-attn's does
        out = call(**arguments)
        with pytest.raises(NotImplementedError, match="^flash_attn_varlen_func: there must be no gradients with"):
            out.sum().backward()
        return
    with pytest.raises(NotImplementedError, match="^flash_attn_varlen_func: [kqv](_cache)? must not require grad"):
        call(**arguments)


@pytest.mark.parametrize("name", ["q", "k_cache", "v_cache", "k", "s_aux"])
@pytest.mark.parametrize(
    "call", [xeflash.flash_attn_with_kvcache, ops.flash_attn_with_kvcache], ids=["function", "operator"]
)
def test_caches_have_no_gradients(call, name):
    cache = torch.randn(2, 2, 50, 2, 64)
    arguments = dict(q=torch.randn(2, 1, 6, 64), k_cache=cache[0], v_cache=cache[1], k=torch.randn(2, 1, 2, 64))
    arguments |= dict(v=torch.randn(2, 1, 2, 64), cache_seqlens=torch.tensor([3, 4]).int(), s_aux=torch.rand(6))
    arguments[name] = arguments[name].clone().requires_grad_()
    with pytest.raises(NotImplementedError, match=f"^flash_attn_with_kvcache: {name} must not require grad"):
        call(**arguments)


def test_other_devices_are_refused(device):
    q, k, v = heads_first()
    k = k.detach().to("meta" if device == "cpu" else "cpu").requires_grad_()
    with pytest.raises((ValueError, TypeError), match="^attention: key must"):
        xeflash.attention(q, k, v, enable_gqa=True)
