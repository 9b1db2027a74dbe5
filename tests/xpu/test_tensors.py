"""torch tensors on xpu: what a call returns, what it refuses, whose random numbers it draws."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import xeflash
from arrays import to_xpu
from plain import check_rows_first, make_rows_first
from xeflash.integrations import ipex
from xeflash.selftest.reference import Features

pytestmark = [pytest.mark.gpu, pytest.mark.xpu]

CAUSAL = Features(window=(-1, 0), empty_lse=torch.inf)


make = functools.partial(make_rows_first, dtype=torch.bfloat16)
check = functools.partial(check_rows_first, f=CAUSAL, gpu=True)


@pytest.mark.parametrize("strided", [False, True])
def test_lazy_views_keep_their_sign(xpu, strided):
    """As they are read on the host, copied, computed with, and written through."""
    x = torch.randn(2, 4, 6)
    there = x.to("xpu")
    view, host = (torch._neg_view(y.mT if strided else y) for y in (there, x.clone()))
    assert view.is_neg() and torch.equal(view.cpu(), host)
    assert view[1, 2, 3].item() == host[1, 2, 3].item()
    for change in (torch.clone, torch.Tensor.contiguous, torch.exp, lambda y: torch.zeros_like(y).copy_(y)):
        assert torch.equal(change(view).cpu(), change(host))
    number = torch.complex(x, x + 1)
    for part in (torch.conj, lambda y: y.conj().imag):
        assert torch.equal(part(number.to("xpu")).cpu(), part(number))
    view.copy_(x.mT if strided else x)
    assert torch.equal(there.cpu(), -x)


@pytest.fixture
def second_xpu(xpu):
    if torch.xpu.device_count() < 2:
        pytest.skip("torch has one xpu device here")
    return xpu


@pytest.mark.parametrize("rows", [1, 63])
def test_results_are_torchs_own_tensors(xpu, rows):
    arrays = make(rows)
    before = torch.xpu.memory_allocated()
    q, k, v = (to_xpu(x) for x in arrays)
    out, lse, _ = xeflash.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    assert type(out) is torch.Tensor and out.device == q.device and out.dtype == q.dtype
    assert lse.device == q.device and lse.dtype == torch.float32 and not out.requires_grad
    taken = torch.xpu.memory_allocated() - before
    results = sum(x.untyped_storage().nbytes() for x in (q, k, v, out, lse))
    assert results <= taken <= results + 512 * 5  # torch+xpu rounds up
    check("own", arrays, out, lse)


def test_out_is_written_in_place(xpu):
    arrays = make()
    q, k, v = (to_xpu(x.transpose(1, 2)) for x in arrays)
    out = torch.full_like(q, 7)
    assert xeflash.attention(q, k, v, enable_gqa=True, is_causal=True, bottom_right=True, out=out) is out
    check("out", arrays, out.transpose(1, 2))


def test_the_second_device(second_xpu):
    """While the first is the current one."""
    arrays = make()
    out = xeflash.flash_attn_func(*(to_xpu(x, "xpu:1") for x in arrays), causal=True)
    assert out.device == torch.device("xpu:1") and torch.xpu.current_device() == 0
    check("second", arrays, out)


def test_two_devices_in_turn(second_xpu):
    arrays = make()
    there = [[to_xpu(x, device) for x in arrays] for device in ("xpu:0", "xpu:1")]
    for turn in range(4):
        out = xeflash.flash_attn_func(*there[turn % 2], causal=True)
        assert out.device.index == turn % 2
        check(f"turn {turn}", arrays, out)


MIXED = [
    ("xpu:0", "cpu", r"k must be on the device of q \(xpu:0\), got host memory"),
    ("cpu", "xpu:0", r"k must be on the device of q \(host memory\), got xpu:0"),
    ("xpu:0", "xpu:1", r"k must be on the device of q \(xpu:0\), got xpu:1"),
    ("xpu:1", "xpu:0", r"k must be on the device of q \(xpu:1\), got xpu:0"),
]


@pytest.mark.parametrize(("of_q", "of_k", "message"), MIXED)
def test_mixed_devices_are_refused(second_xpu, of_q, of_k, message):
    q, k, v = make()
    with pytest.raises(ValueError, match=rf"^flash_attn_func: {message}; use k\.to\(q\.device\)$"):
        xeflash.flash_attn_func(q.to(of_q), k.to(of_k), v.to(of_q))


def test_other_arguments_on_another_device_are_refused(xpu):
    q, k, v = (to_xpu(x) for x in make(9, 9))
    slopes, starts = torch.rand(4), torch.tensor([0, 4, 9], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"alibi_slopes must be on the device of q \(xpu:0\), got host memory"):
        xeflash.flash_attn_func(q, k, v, alibi_slopes=slopes)
    with pytest.raises(ValueError, match=r"cu_seqlens_q must be on the device of q \(xpu:0\), got host memory"):
        xeflash.flash_attn_varlen_func(q[0], k[0], v[0], starts, starts, 5, 5)
    with pytest.raises(ValueError, match=r"out must be on the device of query \(xpu:0\), got host memory"):
        xeflash.attention(q, q, q, out=torch.empty(q.shape, dtype=q.dtype))


def test_arrays_of_dpctl_beside_tensors_are_refused(xpu):
    usm = pytest.importorskip("usm")
    q, k, v = make()
    with pytest.raises(ValueError, match=r"k must be on the device of q \(xpu:0\), got a SYCL queue of "):
        xeflash.flash_attn_func(to_xpu(q), usm.UsmArray(k, usm.gpu_queue()), to_xpu(v))


def run(program):
    """A program in a process of its own, on the same device."""
    start = "import sys; sys.path.insert(0, sys.argv[1])\nimport torch_xpu; torch_xpu.install()\n"
    start += "import torch, xeflash\nx = torch.ones(1, 40, 2, 64, dtype=torch.float16, device='xpu')\n"
    command = [sys.executable, "-c", start + program, str(Path(__file__).parent.parent)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_stream_without_a_queue_is_refused(xpu):
    done = run(
        "import types\n"
        "torch.xpu.current_stream = lambda device: types.SimpleNamespace(sycl_queue=0)\n"
        "xeflash.flash_attn_func(x, x, x)\n"
    )
    message = "flash_attn_func: q must be on a stream that has a SYCL queue, got none from torch for xpu:0"
    assert f"ValueError: {message}" in done.stderr


# ---- dropout --------------------------------------------------------------------------------------


def dropped(**options):
    q, k, v = (to_xpu(torch.ones(1, n, 2, 64).half()) for n in (16, 64, 64))
    return xeflash.flash_attn_func(q, k, v, dropout_p=0.5, **options).cpu()


def test_dropout_draws_from_the_generator_of_the_device(xpu):
    torch.xpu.manual_seed(7)
    first, second = dropped(), dropped()
    assert not torch.equal(first, second)
    torch.xpu.manual_seed(7)
    assert torch.equal(dropped(), first)
    assert torch.equal(dropped(), second)
    torch.manual_seed(7)  # seeds all devices
    assert torch.equal(dropped(), first)
    state = torch.xpu.get_rng_state()
    torch.rand(3)  # a number of another device
    third = dropped()
    torch.xpu.set_rng_state(state)
    assert torch.equal(dropped(), third)


def test_a_seed_of_xeflash_goes_before_that_of_the_device(xpu, monkeypatch):
    from xeflash.call import random

    monkeypatch.setattr(random, "_seed", None)  # restored, with the seed of this test, at its end
    xeflash.manual_seed(5)
    first = dropped()
    torch.xpu.manual_seed(9)
    xeflash.manual_seed(5)
    assert torch.equal(dropped(), first)


def test_devices_have_generators_of_their_own(second_xpu):
    q = torch.ones(1, 64, 2, 64).half()
    states = [torch.xpu.get_rng_state(i) for i in range(2)]
    xeflash.flash_attn_func(*(to_xpu(q, "xpu:1") for _ in range(3)), dropout_p=0.5)
    assert torch.equal(torch.xpu.get_rng_state(0), states[0])
    assert not torch.equal(torch.xpu.get_rng_state(1), states[1])


def test_ipex_dropout_draws_from_the_generator_of_the_device(xpu):
    x, starts = torch.ones(20, 2, 64, device="xpu").half(), torch.tensor([0, 9, 20], dtype=torch.int32, device="xpu")

    def call(generator=None):
        out = torch.empty_like(x)
        arguments = (x, x, x, out, starts, starts, None, 11, 11, 0.5, 0.125, False, True, False, generator)
        return ipex.VarlenAttention.apply_function(*arguments)

    torch.xpu.manual_seed(3)
    first = call().cpu()
    torch.xpu.manual_seed(3)
    assert torch.equal(call().cpu(), first) and not torch.equal(call().cpu(), first)
    mine = torch.Generator("xpu").manual_seed(4)
    first = call(mine).cpu()
    assert torch.equal(call(mine.manual_seed(4)).cpu(), first)
    with torch.xpu.graph(torch.xpu.XPUGraph()), pytest.raises(NotImplementedError, match="dropout_p must be 0 while"):
        call()


@pytest.mark.wide
def test_head_dims_whose_gradients_have_no_room_are_refused_by_the_forward_call(xpu):
    q = torch.randn(1, 8, 1, 320, device="xpu", requires_grad=True)
    if xpu == "dg2":
        with pytest.raises(
            NotImplementedError, match="^flash_attn_func: gradients must not be wanted with these head dims"
        ):
            xeflash.flash_attn_func(q, q, q)
        xeflash.flash_attn_func(q.detach(), q.detach(), q.detach())
    else:
        xeflash.flash_attn_func(q, q, q).sum().backward()


@pytest.mark.parametrize("kind", ["negative", "imaginary part of a conjugate"])
def test_lazy_views_are_resolved_for_a_call(xpu, kind):
    q, k, v = (x.float() for x in make(9))
    there = to_xpu(-q)
    lazy = torch._neg_view(there) if kind == "negative" else torch.complex(there, there).conj().imag
    assert lazy.is_neg() and lazy.resolve_neg().is_neg() is False
    want = xeflash.flash_attn_func(to_xpu(q), to_xpu(k), to_xpu(v))
    assert torch.equal(xeflash.flash_attn_func(lazy, to_xpu(k), to_xpu(v)).cpu(), want.cpu())
