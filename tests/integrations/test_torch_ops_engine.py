"""torch_ops in the place of the extension: a call through an operator gets all that the direct one gets."""

import contextlib
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
import xeflash
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from xeflash import _core, torch_ops
from xeflash.api.route import run
from xeflash.call.call import Call
from xeflash.call.schema import BHSD

pytestmark = pytest.mark.usefixtures("device")
# The others run on xpu in the wide set: a simulated GPU takes seconds for a call.
GPU_TESTS = ("autocast", "refused", "negated", "below_a_mode")


def paged(dtype, **more):
    """A call on pages, as integrations make it."""
    q, pages = torch.randn(7, 4, 64), torch.randn(2, 6, 16, 2, 64).to(dtype)
    return {
        "function": "paged",
        "layout": 1,
        "q": q,
        "k_cache": pages[0],
        "v_cache": pages[1],
        "block_table": torch.tensor([[0, 2], [5, 1]], dtype=torch.int32),
        "cu_seqlens_q": torch.tensor([0, 3, 7], dtype=torch.int32),
        "max_seqlen_q": 4,
        "max_seqlen_k": 32,
        "seqused_k": torch.tensor([5, 20], dtype=torch.int32),
        **more,
    }


@pytest.mark.parametrize(
    "dtype, more",
    [
        (torch.float32, {"softcap": 5.0}),
        (torch.float8_e4m3fn, {"k_scale": 0.5, "v_scale": 3.0}),
        (torch.float8_e4m3fn, {"k_scale": (6, 16, 2), "v_scale": (6, 16, 2)}),
    ],
    ids=["plain", "factors", "scales"],
)
def test_the_stand_in_passes_all_of_a_paged_call(dtype, more):
    more = {name: torch.rand(x) if isinstance(x, tuple) else x for name, x in more.items()}
    given = paged(dtype, out=torch.full((7, 4, 64), float("nan")), return_lse=True, causal=True, **more)
    out, lse = torch_ops.attend(Call(given))
    assert out is given["out"]
    want, want_lse = _core.forward(**given | {"out": None})
    torch.testing.assert_close(out, want, rtol=0, atol=0)
    torch.testing.assert_close(lse, want_lse, rtol=0, atol=0)


def test_autocast_keeps_the_out_of_a_paged_call(device):
    dtype = torch.float16 if device == "xpu" else torch.bfloat16  # whose kernels other tests have
    given = paged(dtype, out=torch.full((7, 4, 64), float("nan"), dtype=dtype))
    with torch.autocast(device, dtype):
        run(Call(given))
    want, _ = _core.forward(**given | {"q": given["q"].to(dtype), "out": None})
    torch.testing.assert_close(given["out"], want, rtol=0, atol=0)


def test_what_an_operator_does_not_have_is_refused():
    q = torch.randn(1, 3, 2, 64)
    with pytest.raises(RuntimeError, match="num_splits"):
        torch_ops.attend(Call({"function": "f", "layout": BHSD, "q": q, "k": q, "v": q, "num_splits": 2}))


@pytest.mark.parametrize(
    "out, error, rule",
    [
        (lambda: torch.zeros(1, 3, 2, 32), ValueError, r"out must have the shape \[1, 3, 2, 64\], got \[1, 3, 2, 32\]"),
        (
            lambda: torch.zeros(1, 3, 2, 64).half(),
            TypeError,
            r"out must have the dtype of q \(torch.float32\), got torch.float16",
        ),
        (lambda: torch.zeros(1, 3, 1, 64).expand(1, 3, 2, 64), ValueError, "out must not have elements in one place"),
        (
            lambda: torch.zeros(500).as_strided((1, 3, 2, 64), (384, 100, 64, 1)),
            ValueError,
            "out must not have elements in one place",
        ),
    ],
)
def test_the_stand_in_refuses_an_out_that_does_not_fit(out, error, rule):
    q, out = torch.randn(1, 3, 2, 64), out()
    with pytest.raises(error, match=f"^f: {rule}"):
        torch_ops.attend(Call({"function": "f", "layout": 0, "q": q, "k": q, "v": q, "out": out}))
    assert not out.any()


class Seen(TorchDispatchMode):
    """Sends calls through the operators."""

    def __torch_dispatch__(self, function, _types, arguments=(), keywords=None):
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize(
    "name, value, error",
    [
        ("softcap", [1.0], "flash_attn_func: softcap must be a number"),
        ("causal", "yes", "flash_attn_func: causal must be True or False"),
        ("alibi_slopes", "steep", "flash_attn_func: alibi_slopes must be a torch tensor as q is one, got str"),
        ("s_aux", [1.0, 2.0], "flash_attn_func: s_aux must be a torch tensor as q is one, got list"),
    ],
)
def test_types_are_the_extensions_below_a_mode(name, value, error):
    q = torch.randn(1, 3, 2, 64)
    with Seen(), pytest.raises(TypeError, match=f"^{error}"):
        xeflash.flash_attn_func(q, q, q, **{name: value})


@pytest.mark.parametrize(
    "dtype, more",
    [
        (torch.float32, {}),
        (torch.bfloat16, {}),
        (torch.float32, {"causal": True, "softcap": 3.0}),
        (torch.float32, {"score_mod": "s * a + near[k_idx / n]"}),
    ],
    ids=["fp32", "bf16", "causal", "captures"],
)
def test_a_call_that_is_only_recorded_gives_the_bits_of_the_operator(device, dtype, more):
    """Where nothing but autograd has to see it, it does not pass the dispatcher."""
    q, k = torch.randn(1, 2, 2, 64, dtype=dtype), torch.randn(1, 9, 2, 64, dtype=dtype)
    leaves = [x.to(device).requires_grad_() for x in (q, k, k, torch.rand(9), torch.tensor(0.7))]
    if "score_mod" in more:
        more = more | {"captures": {"near": leaves[3], "a": leaves[4], "n": 2}}

    def found():
        out = xeflash.flash_attn_func(*leaves[:3], **more)
        return out, *torch.autograd.grad(out.float().square().sum(), leaves, allow_unused=True)

    directly = found()
    with Seen():
        seen = found()
    assert sum(x is None for x in directly) == (0 if "score_mod" in more else 2)
    for got, want in zip(directly, seen, strict=True):
        assert (got is None and want is None) or torch.equal(got, want)


WRONG = {
    "qkv": (lambda x: xeflash.flash_attn_qkvpacked_func(x[:, :, None].expand(-1, -1, 3, -1, -1).long()), "qkv must be"),
    "sink": (lambda x: xeflash.flash_attn_func(x, x, x, learnable_sink=x[0, 0, :, :9]), "learnable_sink must have"),
    "heads": (lambda x: xeflash.flash_attn_func(x, x[:, :, :1], x), r"v.heads must equal k.heads \(1\), got 2"),
    "keys": (lambda x: xeflash.attention(x, x[:, :, :1], x), r"value.length must equal key.length \(1\), got 2"),
    "dtype": (lambda x: xeflash.flash_attn_func(x, x, x.half()), r"v must have the dtype of q \(float32\)"),
}


@pytest.mark.parametrize("how", ["plain", "operator", "fake", "compiled", "recorded"])
@pytest.mark.parametrize("call, text", WRONG.values(), ids=WRONG)
def test_a_refusal_is_the_same_in_every_way_to_call(how, call, text):
    """It names the arguments as the caller does. Of a call without data q, k and v are looked at, and nothing else."""
    x = torch.ones(1, 4, 2, 64, requires_grad=how == "recorded")
    if how == "fake":
        with FakeTensorMode() as mode:
            if "sink" in text:
                assert call(mode.from_tensor(x)).shape == x.shape
                return
            x = mode.from_tensor(x)
    with Seen() if how == "operator" else contextlib.nullcontext(), pytest.raises(Exception, match=text) as caught:
        (torch.compile(call, backend="aot_eager", fullgraph=True) if how == "compiled" else call)(x)
    is_traced = how == "compiled" and "sink" not in text  # torch has a type of its own for what it meets then
    assert is_traced or type(caught.value) in (ValueError, TypeError)
    assert is_traced or str(caught.value).startswith(
        ("flash_attn_func: ", "flash_attn_qkvpacked_func: ", "attention: ")
    )


@pytest.mark.parametrize(
    "number, wrong",
    [(np.float32(0.5), None), (Fraction(1, 2), None), (10**400, "must be below 2\\^31"), (Decimal(1), "must be")],
    ids=["numpy", "fraction", "large", "decimal"],
)
def test_captured_numbers_are_the_same_by_operators(number, wrong):
    q = torch.randn(1, 2, 2, 64)

    def call(number):
        captures = {"near": torch.ones(9), "a": number, "n": 2}
        return xeflash.flash_attn_func(q, q, q, score_mod="s * a + near[k_idx / n]", captures=captures)

    for mode in (contextlib.nullcontext, Seen):
        with mode():
            if wrong is None:
                assert torch.equal(call(number), call(0.5))
            else:
                with pytest.raises((TypeError, ValueError), match=wrong) as caught:
                    call(number)
                assert str(caught.value).startswith('flash_attn_func: captures["a"] ')


def test_nested_tensors_are_refused_by_name_where_gradients_are_wanted():
    q, nested = torch.randn(2, 3, 2, 64, requires_grad=True), torch.nested.nested_tensor([torch.randn(3, 2, 64)] * 2)
    for arrays, name in (((nested, q, q), "q"), ((q, nested, nested), "k")):
        with pytest.raises(TypeError, match=f"^flash_attn_func: {name} must be a dense tensor, got a nested one"):
            xeflash.flash_attn_func(*arrays)
    with pytest.raises(TypeError, match="^linear: weight must be a dense torch tensor as x is one, got a nested one"):
        xeflash.linear(q, nested)


def test_a_profiler_sees_operators_by_their_names():
    q = torch.randn(1, 2, 2, 64, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        xeflash.flash_attn_func(q, q, q).sum().backward()
    names = {event.name for event in profile.events()}
    assert {"xeflash::flash_attn", "xeflash::attention_backward"} <= names


@pytest.mark.parametrize("mode", [contextlib.nullcontext, Seen], ids=["plain", "operator"])
def test_caches_have_their_names_where_queries_are_packed(mode):
    q, cache = torch.ones(3, 2, 64), torch.ones(1, 16, 2, 64).half()
    packed = {"cu_seqlens_q": torch.tensor([0, 3], dtype=torch.int32), "max_seqlen_q": 3}
    with (
        mode(),
        pytest.raises(TypeError, match=r"^flash_attn_with_kvcache: k_cache must have the dtype of q \(float32\)"),
    ):
        xeflash.flash_attn_with_kvcache(q, cache, cache, **packed)
    pages = {"cu_seqlens_k": None, "seqused_k": torch.tensor([3], dtype=torch.int32), "max_seqlen_k": 16}
    table = torch.zeros(1, 1, dtype=torch.int32)
    with mode(), pytest.raises(TypeError, match=r"^flash_attn_varlen_func: k must have the dtype of q \(float32\)"):
        xeflash.flash_attn_varlen_func(q, cache, cache, **packed, **pages, block_table=table)


def test_sizes_that_vary_are_compiled_once():
    graphs = []
    compiled = torch.compile(
        lambda q, k: xeflash.flash_attn_func(q, k, k, causal=True), fullgraph=True,
        backend=lambda graph, _inputs: graphs.append(graph) or graph,
    )  # fmt: skip
    for rows in (5, 6, 7, 9):
        compiled(torch.randn(1, rows, 2, 64), torch.randn(1, 2 * rows, 2, 64))
    assert len(graphs) == 2  # the first one, and that of sizes that vary


def test_negated_views_are_resolved_before_an_operator_that_writes(device):
    if device != "cpu":
        pytest.skip("torch_xpu copies a negated view without its sign")
    q, cache = torch.randn(1, 1, 2, 64), torch.randn(2, 1, 32, 2, 64)
    want = xeflash.flash_attn_with_kvcache(q, *cache.clone(), q, q, cache_seqlens=3)
    negated = torch._neg_view(-q)
    with Seen():
        got = xeflash.flash_attn_with_kvcache(negated, *cache.clone(), q, negated, cache_seqlens=3)
        with pytest.raises(ValueError, match="^flash_attn_with_kvcache: k_cache must be writable"):
            xeflash.flash_attn_with_kvcache(q, torch._neg_view(cache[0]), cache[1], q, q, cache_seqlens=3)
    operator = torch.ops.xeflash.flash_attn_with_kvcache
    by_operator, _ = operator(negated, *cache.clone(), q, negated, cache_length=3)
    with pytest.raises(ValueError, match="^flash_attn_with_kvcache: v_cache must be writable"):
        operator(q, cache[0], torch._neg_view(cache[1]), q, q, cache_length=3)
    torch.testing.assert_close(by_operator, want, rtol=0, atol=0)
    seen, _ = operator(q, torch._neg_view(-cache[0]), cache[1], cache_length=3)  # nothing is written
    torch.testing.assert_close(seen, xeflash.flash_attn_with_kvcache(q, *cache, cache_seqlens=3), rtol=0, atol=0)
    torch.testing.assert_close(got, want, rtol=0, atol=0)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (
            lambda q: xeflash.attention(q, q, q.numpy()),
            TypeError,
            "attention: value must be a torch tensor as query is",
        ),
        (lambda q: xeflash.attention(q, q, q.to_sparse()), TypeError, "attention: value must be a dense tensor"),
        (lambda q: xeflash.attention(q, q, q, out=q), ValueError, "attention: out must not share memory with query"),
        (
            lambda q: xeflash.attention(q, q, q, score_mod="s", captures=[1]),
            TypeError,
            "attention: captures must be a mapping",
        ),
        (
            lambda q: xeflash.merge_states(q, q[..., 0].mT, q, [1.0]),
            TypeError,
            "merge_states: lse 1 must be a dense torch tensor",
        ),
        (lambda q: xeflash.attention(q, q, q, dropout_p=0.5, rng=5), TypeError, "attention: rng must be two integers"),
    ],
    ids=["numpy", "sparse", "overlap", "captures", "merge", "rng"],
)
def test_refusals_below_a_mode(call, error, text):
    q = torch.randn(1, 3, 2, 64)
    if q.device.type != "cpu":
        pytest.skip("its arrays are on the CPU")
    before = q.clone()
    with Seen(), pytest.raises(error, match=f"^{text}"):
        call(q)
    assert q.equal(before)
