"""Gradients of torch.nn.attention.varlen by xeflash: against float64, compiled, checkpointed, and what goes to torch."""

from dataclasses import replace

import gradients
import pytest
import torch
from arrays import ArraysOf
from specs import gradient
from test_torch_sdpa import STARTS_K, STARTS_Q, expect
from torch.utils.checkpoint import checkpoint
from xeflash.integrations import torch_sdpa
from xeflash.selftest.attention.drawn import draw

varlen = pytest.importorskip("torch.nn.attention.varlen")
GPU_TESTS = ()  # the wide set has them on xpu

CASES = [
    gradient("fp32", rows=70, keys=90, heads=(8, 2), window="31,5", entry="varlen", dlse=True),
    gradient("bf16", rows=70, keys=90, window="causal", entry="varlen", scale=0.2),
    gradient("fp16", rows=70, keys=90, heads=(8, 2), entry="varlen", dlse=True),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_they_match_float64(device, case):
    with torch.device("cpu"):
        drawn = draw(replace(case, kind="torch" if device == "cpu" else device))
        put = drawn.put(ArraysOf(drawn.spec))

    def call(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, **said):
        starts = (cu_seqlens_q.cpu(), cu_seqlens_k.cpu(), max_seqlen_q, max_seqlen_k)
        more = {"scale": softmax_scale, "enable_gqa": True, "return_aux": varlen.AuxRequest(lse=True)}
        out, lse = varlen.varlen_attn(q, k, v, *starts, window_size=drawn.window, **more)
        return (out, lse) if case.dlse else out

    with expect(xeflash=1):
        found = gradients.gradients_twice(drawn, put, call)
    with torch.device("cpu"):
        gradients.judge(drawn, *found, torch.Generator().manual_seed(0))


def learned(heads_k=2):
    shapes = ((9, 6, 64), (47, heads_k, 64), (47, heads_k, 64))
    return tuple(torch.randn(*shape).requires_grad_() for shape in shapes)


def call(q, k, v):
    return varlen.varlen_attn(q, k, v, STARTS_Q, STARTS_K, 5, 19, window_size=(-1, 0), enable_gqa=True)


def test_compiled_and_checkpointed_they_are_the_same():
    torch._dynamo.reset()
    tensors, dout = learned(), torch.randn(9, 6, 64)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    with torch_sdpa.use_xeflash():
        out = call(*tensors)
        want = torch.autograd.grad(out, tensors, dout)
        ways = (compiled, lambda *given: checkpoint(call, *given, use_reentrant=False))
        for way in ways:
            again = way(*tensors)
            assert torch.equal(again, out)
            for x, y in zip(torch.autograd.grad(again, tensors, dout), want, strict=True):
                assert torch.equal(x, y)


def test_only_what_is_asked_for():
    q, k, v = learned()
    with torch_sdpa.use_xeflash():
        out = call(q.detach(), k.detach(), v)
    out.sum().backward()
    assert q.grad is None and k.grad is None and v.grad.abs().sum() > 0


def test_autocast_casts_nothing_as_with_torch():
    q, k, v = learned()
    with torch_sdpa.use_xeflash(), torch.autocast("cpu", torch.bfloat16):
        out = call(q, k, v)
    assert out.dtype is torch.float32
    out.sum().backward()
    assert q.grad.dtype is torch.float32


def test_without_gradients_it_is_the_same_call():
    tensors = learned()
    with expect(xeflash=3):
        with torch.no_grad():
            out = call(*tensors)
        with torch.inference_mode():
            same = call(*tensors)
        assert not out.requires_grad and torch.equal(out, same) and torch.equal(call(*tensors), out)


@pytest.mark.parametrize("what", ["pages", "used", "off"])
def test_torchs_own_refuses_what_it_refuses(what):
    q, k, v = learned()
    used = torch.tensor([11, 3, 17], dtype=torch.int32)
    more = {"enable_gqa": True}
    if what == "pages":
        table = torch.tensor([[0, 3], [4, 0], [1, 2]], dtype=torch.int32)
        k, v = (torch.randn(5, 16, 2, 64).requires_grad_() for _ in range(2))
        more |= {"seqused_k": used, "block_table": table}
    elif what == "used":
        more["seqused_k"] = used
    if what == "off":
        torch_sdpa.enable()
        torch_sdpa.disable()
        with pytest.raises((NotImplementedError, RuntimeError)):  # torch has it on CUDA only
            call(q, k, v)
        return
    with expect(torch=1), pytest.raises((NotImplementedError, RuntimeError)):
        varlen.varlen_attn(q, k, v, STARTS_Q, STARTS_K, 5, 19, **more)
