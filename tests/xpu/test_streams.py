"""Streams, threads, devices and graphs: work goes to the current stream of the tensors' device, and nothing waits."""

import functools
import runpy
import threading
import types
from pathlib import Path

import pytest
import torch
import xeflash
from arrays import to_xpu
from plain import check_rows_first
from tolerance import check_attention
from xeflash.selftest.reference import Features

pytestmark = [pytest.mark.gpu, pytest.mark.xpu]


def make(rows=1, keys=5000, heads=(4, 2)):
    """q, k, v of (1, S, H, 64) in host memory; keys are in splits, whose results lie in memory between."""
    return [torch.randn(1, n, h, 64).bfloat16() for h, n in ((heads[0], rows), (heads[1], keys), (heads[1], keys))]


check = functools.partial(check_rows_first, gpu=True)


def launches():
    """How many kernels have run; None on a real GPU."""
    from xeflash import sim

    return len(sim.last_launches()) if sim.enabled() else None


def test_a_call_returns_before_its_kernels_have_run(xpu):
    arrays = make()
    q, k, v = (to_xpu(x) for x in arrays)
    out = xeflash.flash_attn_func(q, k, v)
    assert launches() in (0, None), "the call waited"
    torch.xpu.synchronize()
    assert launches() in (2, None)
    check("waits", arrays, out)


@pytest.mark.parametrize("rows", [1, 63])
def test_work_goes_to_the_current_stream(xpu, rows):
    """A stream that nobody waits for has not written the result; the one that was waited for has."""
    arrays = make(rows)
    q, k, v = (to_xpu(x) for x in arrays)
    side = torch.xpu.Stream()
    side.wait_stream(torch.xpu.current_stream())
    with torch.xpu.stream(side):
        out = xeflash.flash_attn_func(q, k, v)
    torch.xpu.current_stream().synchronize()
    assert launches() in (0, None), "it went to the default stream"
    side.synchronize()
    assert launches() in (2, None)
    check("side", arrays, out)


def test_a_stream_made_of_a_queue(xpu):
    """Of another library, in the context of torch's."""
    dpctl = pytest.importorskip("dpctl")
    arrays = make(63)
    q, k, v = (to_xpu(x) for x in arrays)
    torch.xpu.synchronize()
    queue = dpctl.SyclQueue("level_zero:gpu", property="in_order")
    with torch.xpu.stream(torch.xpu.get_stream_from_external(queue.addressof_ref())):
        out = xeflash.flash_attn_func(q, k, v)
    queue.wait()
    check("external", arrays, out)


def test_memory_that_is_freed_while_the_kernel_waits_to_run(xpu):
    """It is overwritten in the order of its stream: after the kernel."""
    arrays = make(63)
    out = xeflash.flash_attn_func(*(to_xpu(x) for x in arrays))  # nothing else holds them
    again = [torch.full_like(x, torch.nan, device="xpu") for x in arrays]
    check("freed", arrays, out)
    del again


def test_memory_that_another_stream_uses_is_kept_by_record_stream(xpu):
    arrays = make(63)
    tensors = [to_xpu(x) for x in arrays]
    side = torch.xpu.Stream()
    side.wait_stream(torch.xpu.current_stream())
    with torch.xpu.stream(side):
        out = xeflash.flash_attn_func(*tensors)
    for x in tensors:
        x.record_stream(side)
    torch.xpu.current_stream().wait_stream(side)
    del tensors, x
    torch.xpu.current_stream().synchronize()
    check("recorded", arrays, out)


@pytest.mark.parametrize("change", ["rows apart", "fp16 sinks"])
def test_copies_that_a_call_makes_live_until_it_has_run(xpu, change):
    q, k, v = arrays = make(63)
    options, features = {}, Features()
    if change == "rows apart":
        tensors = [torch.stack([x, x], -1).to("xpu")[..., 0] for x in arrays]  # the last dimension is not contiguous
    else:
        tensors = [to_xpu(x) for x in arrays]
        sinks = torch.randn(4).half()
        options, features = {"s_aux": sinks.to("xpu")}, Features(sinks=sinks.float())
    out = xeflash.flash_attn_func(*tensors, **options)
    del tensors
    more = [torch.full_like(x, torch.nan, device="xpu") for x in arrays]
    q, k, v, out = (x.transpose(1, 2) for x in (q, k, v, out.cpu()))
    check_attention(change, q, k, v, features, out, gpu=True)
    del more


def test_streams_do_not_share_what_splits_leave(xpu):
    """Two decoding calls, of which the first has not run when the second is launched."""
    problems = [make(), make(keys=4500)]
    outs = []
    for arrays in problems:
        tensors = [to_xpu(x) for x in arrays]
        torch.xpu.synchronize()
        with torch.xpu.stream(torch.xpu.Stream()):
            outs.append((tensors, xeflash.flash_attn_func(*tensors)))
    torch.xpu.synchronize()
    for number, arrays in enumerate(problems):
        check(f"stream {number}", arrays, outs[number][1])


def test_threads_with_streams_of_their_own(xpu):
    problems = [make(rows, keys) for rows, keys in ((1, 5000), (63, 127), (1, 300), (7, 4500))]
    wants = [xeflash.flash_attn_func(*(to_xpu(x) for x in problem)).cpu() for problem in problems]
    failures = []

    def work(number):
        try:
            device = f"xpu:{number % torch.xpu.device_count()}"
            with torch.xpu.device(device), torch.xpu.stream(torch.xpu.Stream(device)):
                for turn in range(3):
                    for i in range(len(problems)):
                        at = (i + number) % len(problems)
                        out = xeflash.flash_attn_func(*(to_xpu(x, device) for x in problems[at])).cpu()
                        if (out - wants[at]).abs().max() > 2e-3:
                            failures.append((number, turn, at))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# ---- graphs -------------------------------------------------------------------------------------


def captured(function):
    """The graph of a call, and its result; the first call, which compiles, is not in it."""
    function()
    torch.xpu.synchronize()
    graph = torch.xpu.XPUGraph()
    with torch.xpu.graph(graph):
        out = function()
    return graph, out


@pytest.mark.parametrize("rows", [1, 63], ids=["decode", "prefill"])
def test_a_graph_is_captured_and_replayed(xpu, rows):
    """A replay reads what the inputs are then, and a call outside meanwhile takes no memory of the graph's."""
    arrays = make(rows)
    q, k, v = tensors = [to_xpu(x) for x in arrays]
    graph, out = captured(lambda: xeflash.flash_attn_func(q, k, v))
    for turn in range(3):
        fresh = make(rows)
        for old, new in zip(tensors, fresh, strict=True):
            old.copy_(new)
        longer = make(1, 9000)  # its splits need more memory than those in the graph
        outside = xeflash.flash_attn_func(*(to_xpu(x) for x in longer))
        out.fill_(7)
        graph.replay()
        check(f"replay {turn}", fresh, out)
        check(f"outside {turn}", longer, outside)
    graph.reset()


def test_a_graph_of_a_cache_that_grows(xpu):
    """Lengths are read by the kernel: each replay appends at the next place."""
    q, new_k, new_v = (torch.randn(2, 1, h, 64).bfloat16() for h in (4, 2, 2))
    k, v = (torch.zeros(2, 200, 2, 64).bfloat16() for _ in range(2))
    k[:, :100], v[:, :100] = torch.randn(2, 2, 100, 2, 64).bfloat16()
    lengths = torch.tensor([100, 37], dtype=torch.int32)
    there = [to_xpu(x) for x in (q, k, v, new_k, new_v, lengths)]

    def step():
        q, k, v, new_k, new_v, lengths = there
        return xeflash.flash_attn_with_kvcache(q, k, v, new_k, new_v, cache_seqlens=lengths)

    graph, out = captured(step)
    for turn in range(3):
        new_k, new_v = torch.randn(2, 2, 1, 2, 64).bfloat16()
        there[3].copy_(new_k), there[4].copy_(new_v), there[5].copy_(lengths)
        graph.replay()
        for b, n in enumerate(lengths.tolist()):
            k[b, n], v[b, n] = new_k[b, 0], new_v[b, 0]
            keys, values = k[b : b + 1, : n + 1].transpose(1, 2), v[b : b + 1, : n + 1].transpose(1, 2)
            got = out[b : b + 1].cpu().transpose(1, 2)
            check_attention(f"{turn}", q[b : b + 1].transpose(1, 2), keys, values, Features(), got, gpu=True)
        lengths += 1
    assert torch.equal(there[1].cpu(), k) and torch.equal(there[2].cpu(), v)
    graph.reset()


def test_the_example_replays_other_lengths_and_pages(xpu, capsys):
    runpy.run_path(str(Path(__file__).parents[2] / "python/examples/graph_capture.py"))
    assert "two replays" in capsys.readouterr().out


def test_dropout_is_refused_while_a_graph_is_captured(xpu):
    q = torch.ones(1, 2, 16, 64, device="xpu").bfloat16()
    graph = torch.xpu.XPUGraph()
    with torch.xpu.graph(graph), pytest.raises(NotImplementedError) as error:
        xeflash.attention(q, q, q, dropout_p=0.5)
    assert "attention: dropout_p must be 0 while an XPUGraph is captured" in str(error.value)
    graph, out = captured(lambda: xeflash.attention(q, q, q, dropout_p=0.5, rng=(1, 2)))
    graph.replay()
    want = xeflash.attention(q, q, q, dropout_p=0.5, rng=(1, 2))
    assert torch.equal(out.cpu(), want.cpu())


def test_dropout_is_refused_on_the_device_that_captures_and_only_there(xpu):
    if torch.xpu.device_count() < 2:
        pytest.skip("torch has one xpu device here")
    here, there = (torch.ones(1, 2, 16, 64, device=f"xpu:{i}").bfloat16() for i in range(2))
    side = torch.xpu.Stream("xpu:1")
    with torch.xpu.device(1), torch.xpu.graph(torch.xpu.XPUGraph(), stream=side), torch.xpu.device(0):
        with pytest.raises(NotImplementedError, match="dropout_p must be 0 while"):
            xeflash.attention(there, there, there, dropout_p=0.5)
        xeflash.attention(here, here, here, dropout_p=0.5)


def test_arrays_whose_calls_wait_are_refused_on_a_queue_that_records(xpu):
    memory = torch.ones(1, 40, 2, 64, device="xpu").bfloat16()
    torch.xpu.synchronize()

    class Array:  # of a library that says nothing of when its memory is used again
        def __init__(self):
            self.shape = tuple(memory.shape)
            interface = {"data": (memory.data_ptr(), False), "shape": self.shape, "strides": None, "typestr": "<f2"}
            self.__sycl_usm_array_interface__ = interface

        @property
        def sycl_queue(self):
            return types.SimpleNamespace(addressof_ref=lambda: torch.xpu.current_stream().sycl_queue)

    with torch.xpu.graph(torch.xpu.XPUGraph()), pytest.raises(NotImplementedError) as error:
        xeflash.flash_attn_func(Array(), Array(), Array())
    message = "flash_attn_func: q must be a torch tensor on a queue that records a graph, got Array, "
    assert str(error.value) == message + "whose calls wait for their result"
