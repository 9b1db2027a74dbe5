"""torch.ops.xeflash.*, and the public functions where torch traces, casts or transforms: equal to what they are outside."""

import subprocess
import sys

import pytest
import torch
import xeflash
import xeflash.torch_ops
from cover import few
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

ops = torch.ops.xeflash
pytestmark = pytest.mark.usefixtures("device")
# The others run on xpu in the wide set: a simulated GPU takes seconds for a call.
GPU_TESTS = ("registered", "attention[xpu-dtype1", "errors")


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()


def heads_first(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """(B, H, S, D) in memory of (B, S, H, D)."""
    batch, heads, rows, dim = shape
    return torch.randn(batch, rows, heads, dim, dtype=dtype).transpose(1, 2)


def dense(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    """q, k, v of (B, S, H, D)."""
    return tuple(torch.randn(*shape, dtype=dtype) for shape in ((2, 7, 6, 64), (2, 23, 2, 64), (2, 23, 2, 64)))


def starts_of_q() -> torch.Tensor:
    return torch.tensor([0, 5, 5, 9], dtype=torch.int32)


def starts_of_k() -> torch.Tensor:
    return torch.tensor([0, 11, 30, 47], dtype=torch.int32)


def packed() -> tuple[torch.Tensor, ...]:
    shapes = ((9, 6, 64), (47, 2, 64), (47, 2, 64))
    return (*(torch.randn(*shape) for shape in shapes), starts_of_q(), starts_of_k(), 5, 19)


def cached(rows: int = 1, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    q, new = torch.randn(2, rows, 6, 64, dtype=dtype), torch.randn(2, 2, rows, 2, 64, dtype=dtype)
    k_cache, v_cache = torch.randn(2, 2, 50, 2, 64)
    lengths = torch.tensor([30, 0], dtype=torch.int32)
    return dict(q=q, k_cache=k_cache, v_cache=v_cache, k=new[0], v=new[1], cache_seqlens=lengths)


def in_eight_bits(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    arguments = cached(dtype=dtype)
    for side in "kv":
        arguments[f"{side}_cache"] = torch.zeros(2, 50, 2, 64, dtype=torch.int8)
        arguments[f"{side}_scale"] = torch.ones(2, 50, 2)
    return arguments


def attention_inputs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    return tuple(heads_first(*shape, dtype=dtype) for shape in ((2, 6, 7, 64), (2, 2, 23, 64), (2, 2, 23, 64)))


def states() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    parts = [xeflash.flash_attn_func(*dense(), return_attn_probs=True) for _ in range(3)]
    return [part[0] for part in parts], [part[1] for part in parts]


def slopes() -> torch.Tensor:
    return torch.rand(6)


def snippet() -> dict[str, object]:
    return dict(
        score_mod="s * a + near[k_idx / n]",
        capture_names=["near", "a", "n"],
        capture_arrays=[torch.rand(9)],
        capture_numbers=[0.5, 3],
    )


CASES = {
    "attention": lambda: (ops.attention, attention_inputs(), dict(enable_gqa=True)),
    "attention-all": lambda: (
        ops.attention,
        (*attention_inputs(), torch.rand(1, 1, 7, 23) > 0.3, 0.0, True, 0.2, True),
        dict(bottom_right=True, window_left=9, sinks=slopes(), seed=-1, offset=5, return_lse=True),
    ),
    "attention-bias": lambda: (ops.attention, (*attention_inputs(torch.float32)[:1] * 3, torch.rand(23 - 16)), {}),
    "attention-score-mod": lambda: (ops.attention, attention_inputs(), dict(enable_gqa=True, **snippet())),
    "flash_attn": lambda: (ops.flash_attn, dense(torch.float16), dict(causal=True, return_lse=True)),
    "flash_attn-all": lambda: (
        ops.flash_attn,
        (*dense(), 0.2, 0.1, True, 9, -1),
        dict(alibi_slopes=slopes(), s_aux=slopes(), seed=3, return_lse=True),
    ),
    "varlen": lambda: (ops.flash_attn_varlen, packed(), dict(causal=True, return_lse=True)),
    "varlen-used": lambda: (
        ops.flash_attn_varlen,
        packed(),
        dict(seqused_k=torch.tensor([3, 0, 17], dtype=torch.int32), softcap=2.0),
    ),
    "varlen-paged": lambda: (
        ops.flash_attn_varlen,
        (packed()[0], *torch.randn(2, 5, 16, 2, 64), starts_of_q(), None, 5, 19),
        dict(
            seqused_k=torch.tensor([19, 3, 17], dtype=torch.int32),
            block_table=torch.tensor([[0, 3], [4, 0], [1, 2]], dtype=torch.int32),
        ),
    ),
    "kvcache": lambda: (ops.flash_attn_with_kvcache, (), dict(cached(), causal=True, return_lse=True)),
    "kvcache-rows": lambda: (ops.flash_attn_with_kvcache, (), cached(5)),
    "kvcache-read": lambda: (ops.flash_attn_with_kvcache, tuple(cached().values())[:3], dict(cache_length=17)),
    "kvcache-int8": lambda: (ops.flash_attn_with_kvcache, (), in_eight_bits()),
    "merge_states": lambda: (ops.merge_states, states(), {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_opcheck(case):
    operator, arguments, more = CASES[case]()
    torch.library.opcheck(operator.default, arguments, more)


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
@pytest.mark.parametrize(
    "name", ["attention", "flash_attn", "flash_attn_varlen", "flash_attn_with_kvcache", "merge_states"]
)
def test_operators_are_registered_for_xpu(name):
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"xeflash::{name}", "XPU")
    if name != "merge_states":
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"xeflash::{name}", "AutocastXPU")


# ---- the public functions, traced ---------------------------------------------------------------

FUNCTIONS = {
    "attention": lambda: (
        xeflash.attention,
        attention_inputs(),
        dict(enable_gqa=True, is_causal=True, return_lse=True),
    ),
    "attention-3d": lambda: (xeflash.attention, tuple(x[0] for x in attention_inputs()), dict(enable_gqa=True)),
    "attention-5d": lambda: (
        xeflash.attention,
        tuple(x.contiguous().view(1, 2, *x.shape[1:]) for x in attention_inputs()),
        dict(enable_gqa=True, attn_mask=torch.rand(1, 2, 1, 7, 23) > 0.5, return_lse=True),
    ),
    "attention-rng": lambda: (
        xeflash.attention,
        attention_inputs(),
        dict(enable_gqa=True, dropout_p=0.3, rng=(2**64 - 1, 2**63)),
    ),
    "score-mod": lambda: (
        xeflash.attention,
        attention_inputs(),
        dict(enable_gqa=True, score_mod="s * a + near[k_idx / n]", captures={"near": torch.rand(9), "a": 0.5, "n": 3}),
    ),
    "flash_attn_func": lambda: (
        xeflash.flash_attn_func,
        dense(),
        dict(causal=True, window_size=(5, 0), softcap=3.0, return_attn_probs=True),
    ),
    "qkvpacked": lambda: (xeflash.flash_attn_qkvpacked_func, (torch.randn(2, 7, 3, 4, 64),), {}),
    "kvpacked": lambda: (
        xeflash.flash_attn_kvpacked_func,
        (dense()[0], torch.randn(2, 9, 2, 2, 64)),
        {},
    ),
    "varlen": lambda: (xeflash.flash_attn_varlen_func, packed(), dict(causal=True, s_aux=slopes())),
    "varlen-paged": lambda: (xeflash.flash_attn_varlen_func, *CASES["varlen-paged"]()[1:]),
    "kvcache": lambda: (xeflash.flash_attn_with_kvcache, (), dict(cached(), causal=True, return_softmax_lse=True)),
    "kvcache-int": lambda: (xeflash.flash_attn_with_kvcache, (), dict(cached(), cache_seqlens=21)),
    "kvcache-int8": lambda: (xeflash.flash_attn_with_kvcache, (), in_eight_bits()),
    "kvcache-factors": lambda: (
        xeflash.flash_attn_with_kvcache,
        (),
        dict(in_eight_bits(torch.bfloat16), k_scale=0.1, v_scale=2),
    ),
    "merge_states": lambda: (xeflash.merge_states, tuple(zip(*states(), strict=True)), {}),
}


def tensors(tree):
    return [x for x in torch.utils._pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def assert_same(got, want):
    for a, b in zip(tensors(got), tensors(want), strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        assert torch.equal(a, b)


USUAL = ("attention", "attention-rng", "score-mod", "flash_attn_func", "varlen", "kvcache", "merge_states")


@pytest.mark.parametrize("case", few(FUNCTIONS, *USUAL))
def test_compiled_call_equals_the_direct_one_and_writes_the_same(case):
    function, arguments, more = FUNCTIONS[case]()
    arguments_2, more_2 = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, (arguments, more))
    want = function(*arguments, **more)
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    assert_same(compiled(*arguments_2, **more_2), want)
    assert_same(more_2, more)  # the caches


@pytest.mark.parametrize("case", FUNCTIONS)
def test_fake_results_have_the_sizes_and_strides_of_real_ones(case):
    function, arguments, more = FUNCTIONS[case]()
    want = function(*arguments, **more)
    with FakeTensorMode() as mode:
        fakes = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, (arguments, more))
        got = function(*fakes[0], **fakes[1])
    for a, b in zip(tensors(got), tensors(want), strict=True):
        assert (a.dtype, a.shape, a.stride(), a.device) == (b.dtype, b.shape, b.stride(), b.device)


@pytest.mark.parametrize("device", ["cpu"], indirect=True)  # on xpu inductor wants Triton
def test_inductor_runs_it_between_fused_operations():
    def block(x, k, v):
        return xeflash.attention(x * 2, k, v, is_causal=True, enable_gqa=True).sum(-1)

    inputs = attention_inputs(torch.bfloat16)
    assert_same(torch.compile(block, fullgraph=True, dynamic=True)(*inputs), block(*inputs))


class Graphs:
    """A backend that counts the graphs it gets, each with one operator of ours."""

    def __init__(self):
        self.count = 0

    def __call__(self, graph, _inputs):
        calls = [node for node in graph.graph.nodes if str(node.target).startswith("xeflash.")]
        assert len(calls) == 1, graph.code
        self.count += 1
        return graph.forward


def test_lengths_need_no_new_graph():
    graphs = Graphs()
    step = torch.compile(xeflash.attention, fullgraph=True, dynamic=True, backend=graphs)
    q = heads_first(1, 4, 3, 64)
    for keys in (5, 17, 18, 100, 1000):
        k, v = heads_first(1, 4, keys, 64), heads_first(1, 4, keys, 64)
        assert_same(step(q, k, v), xeflash.attention(q, k, v))
    assert graphs.count == 1


def test_lengths_of_a_cache_need_no_new_graph():
    graphs = Graphs()
    step = torch.compile(xeflash.flash_attn_with_kvcache, fullgraph=True, dynamic=True, backend=graphs)
    arguments = cached()
    for length in (3, 4, 21, 33):
        arguments["cache_seqlens"] = length
        assert_same(step(**arguments), xeflash.flash_attn_with_kvcache(**arguments))
    assert graphs.count <= 1


def test_lengths_of_packed_sequences_need_no_new_graph():
    graphs = Graphs()
    step = torch.compile(xeflash.flash_attn_varlen_func, fullgraph=True, dynamic=True, backend=graphs)
    for tokens in (9, 10, 63, 100):
        q, starts = torch.randn(tokens, 4, 64), torch.tensor([0, 4, tokens], dtype=torch.int32)
        arguments = (q, q, q, starts, starts, tokens, tokens)
        assert_same(step(*arguments), xeflash.flash_attn_varlen_func(*arguments))
    assert graphs.count == 1


def test_compiled_dropout_draws_anew_and_follows_the_seed():
    q, k, v = attention_inputs()
    call = torch.compile(
        lambda: xeflash.attention(q, k, v, dropout_p=0.5, enable_gqa=True), fullgraph=True, backend="aot_eager"
    )
    torch.manual_seed(5)
    first, second = call(), call()
    torch.manual_seed(5)
    assert torch.equal(call(), first) and not torch.equal(first, second)


@pytest.mark.parametrize("dynamic", [False, True])
def test_out_is_written_under_compile(dynamic):
    q, k, v = attention_inputs()
    out = torch.zeros(2, 7, 6, 64).transpose(1, 2)
    call = torch.compile(xeflash.attention, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    want = xeflash.attention(q, k, v, enable_gqa=True, out=torch.empty_like(out))
    assert_same(call(q, k, v, enable_gqa=True, out=out), want)
    assert_same(out, want)


def test_make_fx_and_export_record_the_operator():
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return xeflash.attention(q, k, v, enable_gqa=True)

    inputs = attention_inputs()
    with torch.no_grad():
        programs = [make_fx(Model(), tracing_mode="symbolic")(*inputs), torch.export.export(Model(), inputs).module()]
    for program in programs:
        assert any("xeflash.attention" in str(node.target) for node in program.graph.nodes)
        assert_same(program(*inputs), Model()(*inputs))


def test_dispatch_modes_see_the_operator():
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), more=None):
            seen.append(str(function))
            return function(*arguments, **(more or {}))

    inputs = attention_inputs()
    with Mode():
        got = xeflash.attention(*inputs, enable_gqa=True)
    assert seen == ["xeflash.attention.default"]
    assert_same(got, xeflash.attention(*inputs, enable_gqa=True))


def test_jit_trace_records_the_operator():
    inputs, others = attention_inputs(), attention_inputs()
    with torch.no_grad():
        traced = torch.jit.trace(lambda q, k, v: xeflash.attention(q, k, v, enable_gqa=True), inputs)
    assert_same(traced(*others), xeflash.attention(*others, enable_gqa=True))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", few([torch.bfloat16, torch.float16], torch.bfloat16))
def test_autocast_casts_as_for_torchs_own_attention(device, dtype, compiled):
    inputs = attention_inputs(torch.float32)
    mask = torch.randn(7, 23)  # which stays as it is
    mask = mask > -0.5 if dtype is torch.bfloat16 else mask

    def call(q, k, v):
        with torch.autocast(device, dtype=dtype):
            return xeflash.attention(q, k, v, attn_mask=mask, enable_gqa=True)

    want = xeflash.attention(*(x.to(dtype) for x in inputs), attn_mask=mask, enable_gqa=True)
    run = torch.compile(call, fullgraph=True, backend="aot_eager") if compiled else call
    assert_same(run(*inputs), want)


def test_autocast_leaves_a_cache_in_place(device):
    arguments = {name: x.bfloat16() if x.is_floating_point() else x for name, x in cached().items()}
    want = xeflash.flash_attn_with_kvcache(**{name: x.clone() for name, x in arguments.items()})
    arguments |= {name: arguments[name].float() for name in ("q", "k", "v")}
    with torch.autocast(device, dtype=torch.bfloat16):
        assert_same(xeflash.flash_attn_with_kvcache(**arguments), want)
    assert torch.equal(arguments["k_cache"][0, 30], arguments["k"][0, 0].bfloat16())


def test_autocast_of_packed_sequences(device):
    wide = packed()
    arguments = (*(x.bfloat16() for x in wide[:3]), *wide[3:])
    with torch.autocast(device, dtype=torch.bfloat16):
        assert_same(xeflash.flash_attn_varlen_func(*wide), xeflash.flash_attn_varlen_func(*arguments))
        paged, more = CASES["varlen-paged"]()[1:]
        paged = (*(x.bfloat16() for x in paged[:3]), *paged[3:])
        wide = (paged[0].float(), *paged[1:])
        assert_same(ops.flash_attn_varlen(*wide, **more)[0], ops.flash_attn_varlen(*paged, **more)[0])
        with pytest.raises(TypeError, match="dtype of q"):  # a cache is not cast, that would copy it
            ops.flash_attn_varlen(*(x.float() for x in paged[:3]), *paged[3:], **more)


def test_parameters_and_inference_tensors_are_tensors():
    q, k, v = attention_inputs()
    want = xeflash.attention(q, k, v, enable_gqa=True)
    with torch.no_grad():
        assert_same(xeflash.attention(torch.nn.Parameter(q), k, torch.nn.Parameter(v), enable_gqa=True), want)
    with torch.inference_mode():
        assert_same(xeflash.attention(q * 1, k, v, enable_gqa=True), want)
        assert_same(ops.attention(q * 1, k, v, enable_gqa=True)[0], want)


def test_vmap_is_the_call_of_each():
    q, k, v = (torch.randn(3, 2, 4, 5, 64) for _ in range(3))
    got = torch.func.vmap(xeflash.attention)(q, k, v)
    assert torch.equal(got, torch.stack([xeflash.attention(*x) for x in zip(q, k, v, strict=True)]))


def test_vmap_of_lists_and_of_caches_is_refused_by_name():
    q = torch.randn(3, 1, 7, 2, 64)
    calls = {
        "merge_states": lambda x: xeflash.merge_states((x, x[..., 0].mT), (x, x[..., 0].mT))[0],
        "flash_attn_with_kvcache": lambda x: xeflash.flash_attn_with_kvcache(x, x, x),
    }
    for name, call in calls.items():
        with pytest.raises(NotImplementedError, match=f"^{name}: it must not be called below torch.func.vmap"):
            torch.func.vmap(call)(q)
    with pytest.raises(ValueError, match="^merge_states: outs and lses must be as many, and not none, got 1 and 0"):
        ops.merge_states([q[0]], [])


@pytest.mark.wide
@pytest.mark.parametrize("device", ["cpu"], indirect=True)
@pytest.mark.parametrize("before", ["", "a = numpy.ones((1, 2, 5, 64), numpy.float32); xeflash.attention(a, a, a)"])
def test_the_first_call_with_tensors_may_be_compiled(before):
    code = (
        f"import numpy, xeflash; {before}\n"
        "import torch; q = torch.ones(1, 2, 5, 64)\n"
        "call = torch.compile(lambda q: xeflash.attention(q, q, q), fullgraph=True, backend='eager')\n"
        "assert torch.equal(call(q), q)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("device", ["cpu"], indirect=True)
def test_numpy_needs_no_torch():
    code = (
        "import sys, numpy, xeflash; q = numpy.ones((1, 2, 5, 64), numpy.float32); xeflash.attention(q, q, q);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_arguments_of_another_kind_of_call_are_refused_by_operators():
    q, k, v = attention_inputs()
    at = torch.tensor([0, 3], dtype=torch.int32)
    tokens = torch.randn(3, 2, 64)
    with pytest.raises(ValueError, match="^flash_attn_varlen_func: k_factor must come with a cache of keys"):
        ops.flash_attn_varlen(tokens, tokens, tokens, at, at, 3, 3, k_factor=2.0)
    with pytest.raises(ValueError, match="^flash_attn_varlen_func: k_scale must come with a cache of keys"):
        ops.flash_attn_varlen(tokens, tokens, tokens, at, at, 3, 3, k_scale=torch.ones(3, 2))
    rows, cache = torch.randn(1, 1, 2, 64), torch.randn(1, 9, 2, 64)
    with pytest.raises(ValueError, match="^flash_attn_with_kvcache: cache_length must not be given with cache_seqlens"):
        ops.flash_attn_with_kvcache(rows, cache, cache, cache_seqlens=at[:1], cache_length=3)
    scale = torch.ones(1, 9, 2)
    with pytest.raises(ValueError, match="^flash_attn_with_kvcache: k_factor must not be given with k_scale"):
        ops.flash_attn_with_kvcache(rows, cache, cache, k_scale=scale, k_factor=3.0)
    out, lse, rng, _ = ops.attention(q, k, v, enable_gqa=True, return_lse=True)
    given = {"dout": out, "dlse": None, "q": q, "k": k, "v": v, "out": out, "lse": lse, "rng": rng, "layout": 2}
    for name in ("cu_seqlens_q", "seqused_k"):
        with pytest.raises(ValueError, match=f"^attention_backward: {name} must come with packed sequences"):
            ops.attention_backward(**given, wanted=["q"], enable_gqa=True, **{name: at})
    with pytest.raises(ValueError, match="^attention: capture_names must be a name of its own for each"):
        ops.attention(q, k, v, enable_gqa=True, score_mod="s + near[0]", capture_names=["near"])
    with pytest.raises(
        ValueError, match="^attention: captures are for score_mod and mask_mod, got {'a': 1.0} without one"
    ):
        ops.attention(q, k, v, enable_gqa=True, capture_names=["a"], capture_numbers=[1.0])
    with pytest.raises(ValueError, match="^attention: words must be names and words in turn, got 1 of them"):
        ops.attention(q, k, v, enable_gqa=True, words=["query"])


def test_errors_of_operators_name_the_argument():
    q, k, v = attention_inputs()
    with pytest.raises(ValueError, match=r"attention: key.heads must equal|attention: .*heads"):
        ops.attention(q, k, v)
    with pytest.raises(ValueError, match="^merge_states: outs and lses must be as many, and not none, got 0 and 0"):
        xeflash._core.merge_states([], [])
    with pytest.raises(NotImplementedError, match="dropout_p must be 0 with block_table"):
        arguments, more = CASES["varlen-paged"]()[1:]
        ops.flash_attn_varlen(*arguments, 0.1, **more)
