"""torch's attention functions routed to xeflash: what goes there, what goes on to torch's own, with which results."""

import contextlib
import importlib
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cover import few
from tolerance import check_attention, check_sequences
from torch.nn.attention import SDPBackend, sdpa_kernel
from xeflash.integrations import torch_sdpa
from xeflash.selftest.reference import Features

sdpa = F.scaled_dot_product_attention  # taken before anything is registered
# The others run on xpu in the wide set: a simulated GPU takes seconds for a call.
GPU_TESTS = ("float_mask", "falls_through", "parameters_are_routed", "autocast", "varlen_attn_matches")


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch._dynamo.reset()


@contextlib.contextmanager
def expect(xeflash=0, torch=0):
    before = torch_sdpa.calls()
    with torch_sdpa.use_xeflash():
        yield
    after = torch_sdpa.calls()
    assert (after.xeflash - before.xeflash, after.torch - before.torch) == (xeflash, torch)


def inputs(dtype=torch.bfloat16, heads_k=6, rows=7, keys=23, dim_v=64):
    shapes = ((2, 6, rows, 64), (2, heads_k, keys, 64), (2, heads_k, keys, dim_v))
    return tuple(torch.randn(*shape, dtype=dtype) for shape in shapes)


def padding():
    return torch.arange(23) < torch.tensor([[[[20]]], [[[23]]]])


ROUTED = {
    "plain": (inputs, {}, Features()),
    "fp32": (lambda: inputs(torch.float32), {}, Features()),
    "fp16": (lambda: inputs(torch.float16), {}, Features()),
    "causal": (inputs, dict(is_causal=True), Features(window=(-1, 0), top_left=True)),
    "scale": (inputs, dict(scale=-0.3), Features(scale=-0.3)),
    "gqa": (lambda: inputs(heads_k=2), dict(enable_gqa=True), Features()),
    "padding": (inputs, dict(attn_mask=padding), Features(mask=padding())),
    "dim-v": (lambda: inputs(dim_v=40), {}, Features()),
    "one-row": (lambda: inputs(rows=1), {}, Features()),
}


@pytest.mark.parametrize("case", few(ROUTED, *(case for case in ROUTED if case != "dim-v")))
def test_routed_call_matches_reference(device, case):
    make, more, features = ROUTED[case]
    q, k, v = make()
    with expect(xeflash=1):
        out = sdpa(q, k, v, **{name: x() if callable(x) else x for name, x in more.items()})
    with torch.device("cpu"):
        check_attention(case, q.cpu(), k.cpu(), v.cpu(), features, out.cpu(), gpu=device == "xpu")


def test_float_mask_and_other_ranks(device):
    q, k, v = inputs(torch.float32)
    mask = torch.randn(7, 23)
    want = [sdpa(q, k, v, mask), sdpa(q[0], k[0], v[0]), sdpa(q[0, 0], k[0, 0], v[0, 0])]
    want.append(sdpa(q[None], k[None], v[None], mask))
    with expect(xeflash=4):
        got = [sdpa(q, k, v, mask), sdpa(q[0], k[0], v[0]), sdpa(q[0, 0], k[0, 0], v[0, 0])]
        got.append(sdpa(q[None], k[None], v[None], mask))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_results_have_the_strides_of_torchs_flash_attention():
    q, k, v = inputs()
    for x in (q, q.transpose(1, 2).contiguous().transpose(1, 2)):
        want = sdpa(x, k, v)
        with expect(xeflash=1):
            got = sdpa(x, k, v)
        assert got.stride() == want.stride()
        check_attention("strides", x, k, v, Features(), got)


def tensor(*shape, **more):
    return torch.randn(*shape, **more)


FALLING_THROUGH = {
    "dropout": lambda: ((tensor(1, 2, 5, 64),) * 3, dict(dropout_p=0.4)),
    "dropout-grad": lambda: ((tensor(1, 2, 5, 64).requires_grad_(),) * 3, dict(dropout_p=0.4)),
    "fp64": lambda: ((tensor(1, 2, 5, 64, dtype=torch.float64),) * 3, {}),
    "broadcast-batch": lambda: ((tensor(2, 2, 5, 64), tensor(1, 2, 5, 64), tensor(1, 2, 5, 64)), {}),
    "mask-and-causal": lambda: ((tensor(1, 2, 5, 64),) * 3, dict(attn_mask=tensor(5, 5), is_causal=True)),
    "large-head-dim": lambda: ((tensor(1, 2, 5, 600),) * 3, {}),
}


@pytest.mark.parametrize("case", FALLING_THROUGH)
def test_what_falls_through_is_torchs_own(device, case):
    if (device, case) == ("xpu", "mask-and-causal"):
        pytest.skip("torch itself refuses both on xpu")
    arguments, more = FALLING_THROUGH[case]()
    torch.manual_seed(1)
    want = sdpa(*arguments, **more)
    torch.manual_seed(1)
    with expect(torch=1):
        got = sdpa(*arguments, **more)
    assert torch.equal(got, want) and got.requires_grad == want.requires_grad
    if got.requires_grad:
        got.sum().backward()


@pytest.mark.parametrize(
    "more, error",
    [
        (dict(attn_mask=torch.ones(3, 1, 5, 5)), "broadcast shape"),
        (dict(attn_mask=torch.ones(5, 5, dtype=torch.float16)), "dtype"),
    ],
)
def test_what_torch_refuses_it_refuses(more, error):
    q = tensor(1, 2, 5, 64)
    with expect(torch=1), pytest.raises(RuntimeError, match=error):
        sdpa(q, q, q, **more)


def test_nested_tensors_subclasses_and_transforms_are_torchs():
    q = tensor(1, 2, 5, 64)
    nested = torch.nested.nested_tensor([tensor(3, 2, 64), tensor(5, 2, 64)], layout=torch.jagged).transpose(1, 2)
    with torch_sdpa.use_xeflash():
        before = torch_sdpa.calls().xeflash
        sdpa(nested, nested, nested)
        torch.func.vmap(sdpa)(q[None], q[None], q[None])
        torch.func.grad(lambda x: sdpa(x, q, q).sum())(q)
        with torch.autograd.forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
            x = torch.autograd.forward_ad.make_dual(q, q)
            assert torch.autograd.forward_ad.unpack_dual(sdpa(x, q, q)).tangent is not None
        assert torch_sdpa.calls().xeflash == before


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_a_model_are_those_without_it(compiled):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(128, 2, batch_first=True, dropout=0)
    x = tensor(2, 9, 128)
    layer(x).square().sum().backward()
    want = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    run = torch.compile(layer, fullgraph=True, backend="aot_eager") if compiled else layer
    with torch_sdpa.use_xeflash():
        before = torch_sdpa.calls()
        run(x).square().sum().backward()
        assert torch_sdpa.calls().xeflash > before.xeflash and torch_sdpa.calls().torch == before.torch
    for p, grad in zip(layer.parameters(), want, strict=True):
        torch.testing.assert_close(p.grad, grad, rtol=1e-4, atol=1e-4)


def test_the_gradient_of_a_mask_is_ours():
    def gradient(q, mask):
        mask = mask.detach().requires_grad_()
        return torch.autograd.grad(sdpa(q, q, q, mask).square().sum(), mask)[0]

    q, mask = tensor(1, 2, 5, 64), tensor(5, 5)
    want, by_torch = gradient(q.double(), mask.double()), gradient(q, mask)
    with expect(xeflash=1):
        got = gradient(q, mask)
    assert (got - want).abs().max() <= 2 * (by_torch - want).abs().max()


def test_inference_mode_no_grad_and_parameters_are_routed(device):
    q = tensor(1, 2, 5, 64)
    with expect(xeflash=3):
        with torch.inference_mode():
            sdpa(q * 1, q, q)
        with torch.no_grad():
            sdpa(torch.nn.Parameter(q), q, q)
            sdpa(q.clone().requires_grad_(), q, q)


@pytest.mark.parametrize("padded", [False, True])
def test_layers_of_torch_leave_their_fast_path(padded):  # which they do anyway where a device is the default
    layer = torch.nn.TransformerEncoderLayer(256, 4, 96, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 23, 256)
    hidden = torch.arange(23) >= torch.tensor([[20], [23]]) if padded else None
    with torch.no_grad():
        want = encoder(x, src_key_padding_mask=hidden)
        with expect(xeflash=3):
            got = encoder(x, src_key_padding_mask=hidden)
            layer.self_attn.eval()(x, x, x, need_weights=False)
        torch.testing.assert_close(got[:, :20], want[:, :20], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("before", [False, True])
def test_fast_path_of_torch_comes_back(before):
    enabled = torch.backends.mha.get_fastpath_enabled
    torch.backends.mha.set_fastpath_enabled(before)
    try:
        with torch_sdpa.use_xeflash(), torch_sdpa.use_xeflash():
            torch_sdpa.enable()
            torch_sdpa.enable()
            assert not enabled()
        assert not enabled()
        torch_sdpa.disable()
        torch_sdpa.disable()
        assert enabled() == before
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_autocast_is_seen_first(device):
    q = tensor(1, 2, 5, 64)
    with expect(xeflash=1), torch.autocast(device, dtype=torch.bfloat16):
        assert sdpa(q, q, q).dtype is torch.bfloat16


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_compiled_calls_contain_the_operator(mode):
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    from torch._dynamo.backends.common import aot_autograd

    compiled = torch.compile(lambda q: sdpa(q * 2, q, q, is_causal=True), backend=aot_autograd(fw_compiler=backend))
    with torch_sdpa.use_xeflash(), mode():
        q = tensor(1, 2, 5, 64)
        assert torch.equal(compiled(q), sdpa(q * 2, q, q, is_causal=True))
    assert any("xeflash.attention" in str(node.target) for graph in graphs for node in graph.graph.nodes)


OFF = """
import torch
from torch._dynamo.backends.common import aot_autograd
from xeflash.integrations import torch_sdpa

sdpa = torch.nn.functional.scaled_dot_product_attention

def graph_of(mode, requires_grad):
    graphs = []
    def backend(graph, _inputs):
        graphs.append(graph.print_readable(print_output=False))
        return graph.forward
    torch._dynamo.reset()
    with mode():
        q = torch.ones(1, 2, 5, 64, requires_grad=requires_grad)
        torch.compile(lambda q: sdpa(q * 2, q, q), backend=aot_autograd(fw_compiler=backend))(q)
    return graphs

def results():
    torch.manual_seed(0)
    q = torch.randn(1, 2, 5, 64)
    found = [sdpa(q, q, q, is_causal=True), sdpa(q, q, q, dropout_p=0.5), sdpa(q, q, q, torch.randn(5, 5))]
    with torch.inference_mode():
        found.append(sdpa(q, q, q))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found.append(sdpa(q, q, q))
    q.requires_grad_()
    found.append(torch.autograd.grad(sdpa(q, q, q).sum(), q)[0])
    modes = (torch.enable_grad, False), (torch.no_grad, False), (torch.inference_mode, False), (torch.enable_grad, True)
    return found, [graph_of(*mode) for mode in modes]

never = results()
with torch_sdpa.use_xeflash():
    pass
before = torch_sdpa.calls()
off = results()
assert torch_sdpa.calls() == before
assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(never[0], off[0], strict=True))
assert never[1] == off[1]
with torch_sdpa.use_xeflash():
    on = results()[1]
assert all("xeflash" in graph for graph in on[1] + on[2]), "what was traced before is no obstacle"
"""


def test_off_is_as_if_it_had_never_been_on():
    done = subprocess.run([sys.executable, "-c", OFF], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_contexts_nest_and_enable_is_for_all_threads():
    q, seen = tensor(1, 2, 5, 64), []

    def count():
        before = torch_sdpa.calls().xeflash
        sdpa(q, q, q)
        seen.append(torch_sdpa.calls().xeflash - before)

    def in_a_thread():
        thread = threading.Thread(target=count)
        thread.start()
        thread.join()

    with torch_sdpa.use_xeflash():
        with torch_sdpa.use_xeflash():
            count()
        count()
        in_a_thread()  # it did not enter the context
        torch_sdpa.enable()
        torch_sdpa.enable()
        in_a_thread()
    count()
    torch_sdpa.disable()
    torch_sdpa.disable()
    count()
    assert seen == [1, 1, 0, 1, 1, 0]


def test_threads_may_switch_while_others_call():
    q, errors = tensor(1, 2, 5, 64), []
    want = sdpa(q, q, q)

    def work(routed):
        try:
            for _ in range(200):
                with torch_sdpa.use_xeflash() if routed else contextlib.nullcontext():
                    torch.testing.assert_close(sdpa(q, q, q), want)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


# ---- varlen -------------------------------------------------------------------------------------

varlen = pytest.importorskip("torch.nn.attention.varlen")
STARTS_Q, STARTS_K = (torch.tensor(starts, dtype=torch.int32) for starts in ((0, 5, 5, 9), (0, 11, 30, 47)))


def packed(heads_k=6):
    return tuple(
        torch.randn(*shape, dtype=torch.bfloat16) for shape in ((9, 6, 64), (47, heads_k, 64), (47, heads_k, 64))
    )


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (4, 0), (3, 2)])
def test_varlen_attn_matches_reference(device, window):
    q, k, v = packed(heads_k=2)
    starts = [x.to(device) for x in (STARTS_Q, STARTS_K)]
    with expect(xeflash=1):
        out, lse = varlen.varlen_attn(
            *(q, k, v, *starts, 5, 19),
            window_size=window,
            scale=0.2,
            enable_gqa=True,
            return_aux=varlen.AuxRequest(lse=True),
        )
    q, k, v, out, lse = (x.cpu() for x in (q, k, v, out, lse))
    check_sequences("", (q, k, v), (STARTS_Q, STARTS_K), Features(window=window, scale=0.2), out, lse)


def test_varlen_attn_out_writes_and_equals():
    q, k, v = packed()
    out = torch.full_like(q, np.nan)
    with expect(xeflash=2):
        got = varlen.varlen_attn_out(out, q, k, v, STARTS_Q, STARTS_K, 5, 19)
        assert got is out and torch.equal(out, varlen.varlen_attn(q, k, v, STARTS_Q, STARTS_K, 5, 19))


def test_varlen_attn_on_pages():
    q, k, v = packed()
    table = torch.tensor([[0, 3], [4, 0], [1, 2]], dtype=torch.int32)
    used = torch.tensor([19, 3, 17], dtype=torch.int32)
    pools = torch.randn(2, 5, 16, 6, 64).bfloat16()
    with expect(xeflash=1):
        out, lse = varlen.varlen_attn(
            *(q, *pools, STARTS_Q, None, 5, 32),
            block_table=table,
            seqused_k=used,
            window_size=(-1, 0),
            return_aux=varlen.AuxRequest(lse=True),
        )
    k, v = (pool[table].flatten(0, 2) for pool in pools)
    check_sequences("", (q, k, v), (STARTS_Q, (0, 32, 64, 96)), Features(window=(-1, 0)), out, lse, used)


def test_varlen_attn_under_compile():
    q, k, v = packed()
    call = torch.compile(varlen.varlen_attn, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch_sdpa.use_xeflash():
        before = torch_sdpa.calls().xeflash
        got = call(q, k, v, STARTS_Q, STARTS_K, 5, 19)
        assert torch_sdpa.calls().xeflash > before
        assert torch.equal(got, varlen.varlen_attn(q, k, v, STARTS_Q, STARTS_K, 5, 19))


@pytest.mark.parametrize("what", ["grad", "splits", "fp64"])
def test_varlen_attn_falls_through(what):
    q, k, v = packed()
    more = {}
    if what == "grad":  # of a call that goes to torch for another reason
        q.requires_grad_()
        more["num_splits"] = 1
    elif what == "splits":
        more["num_splits"] = 1
    else:
        q, k, v = (x.double() for x in (q, k, v))
    with expect(torch=1), pytest.raises((NotImplementedError, RuntimeError)):  # torch has it on CUDA only
        varlen.varlen_attn(q, k, v, STARTS_Q, STARTS_K, 5, 19, **more)


def test_examples_run():
    import doctest

    assert doctest.testmod(importlib.import_module("xeflash.integrations.torch_sdpa")).failed == 0


def test_registry_of_torch():
    if not hasattr(torch.nn.attention, "activate_flash_attention_impl"):
        pytest.skip("this torch has no registry of flash attention")
    q, k, v = inputs()

    def goes_to_xeflash():
        before = torch_sdpa.calls().xeflash
        sdpa(q, k, v)
        return torch_sdpa.calls().xeflash > before

    assert "xeflash" in torch.nn.attention.list_flash_attention_impls() and not goes_to_xeflash()
    for _ in range(2):
        torch.nn.attention.activate_flash_attention_impl("xeflash")
        assert torch.nn.attention.current_flash_attention_impl() == "xeflash" and goes_to_xeflash()
    torch.nn.attention.restore_flash_attention_impl()
    assert not goes_to_xeflash()
    torch_sdpa.enable()
    try:
        torch.nn.attention.activate_flash_attention_impl("xeflash")
        torch.nn.attention.restore_flash_attention_impl()
        assert goes_to_xeflash()  # as before
    finally:
        torch_sdpa.disable()
    assert not goes_to_xeflash()
