"""Every kind of array: numpy, torch, USM of dpctl on its own queue, a stand-in for torch on xpu; and threads."""

import gc
import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
import xeflash
from arrays import DTYPES, from_array, to_array
from cover import few
from plain import check_rows_first
from plain import make_rows_first as bshd
from tolerance import check_attention
from xeflash.selftest.reference import Features

usm = pytest.importorskip("usm", reason="dpctl is not installed")
dpctl = pytest.importorskip("dpctl")
TESTS = str(Path(usm.__file__).parent)


# ---- host memory --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_arrays_give_numpy_arrays(dtype):
    qkv = bshd(dtype=DTYPES[dtype])
    arrays = [to_array(x, "numpy") for x in qkv]
    out, lse, _ = xeflash.flash_attn_func(*arrays, return_attn_probs=True)
    assert type(out) is np.ndarray and out.dtype == arrays[0].dtype and out.flags.c_contiguous and out.flags.writeable
    assert type(lse) is np.ndarray and lse.dtype == np.float32
    check_rows_first(dtype, qkv, from_array(out, "numpy"), from_array(lse, "numpy"))
    assert torch.equal(from_array(out, "numpy"), xeflash.flash_attn_func(*qkv))


def test_numpy_types_that_are_refused():
    q, k, v = (x.numpy() for x in bshd())
    # The last one is of numpy's own tests: it has no number.
    without_number = importlib.import_module("numpy._core._multiarray_umath")._get_sfloat_dtype()(1.0)
    for dtype in (np.float64, np.int32, np.complex64, ">f4", ml_dtypes.float8_e4m3fn, object, without_number):
        with pytest.raises(TypeError, match=r"^flash_attn_func: q must be float32, float16 or bfloat16"):
            xeflash.flash_attn_func(np.empty(q.shape, dtype), k, v)
    with pytest.raises(TypeError, match=r"^flash_attn_func: k must have the dtype of q"):
        xeflash.flash_attn_func(q, k.astype(">f4"), v)


def test_subclasses_of_numpy_arrays():
    class Mine(np.ndarray):
        pass

    qkv = bshd()
    out = xeflash.flash_attn_func(*(x.numpy().view(Mine) for x in qkv))
    check_rows_first("subclass", qkv, torch.from_numpy(np.asarray(out)))


def test_subclasses_of_tensors():
    qkv = bshd()
    with torch.no_grad():
        out = xeflash.flash_attn_func(*(torch.nn.Parameter(x) for x in qkv))
    check_rows_first("parameter", qkv, out)


def test_inputs_are_not_changed_and_not_kept():
    qkv = [x.numpy() for x in bshd()]
    copies = [x.copy() for x in qkv]
    counts = [sys.getrefcount(x) for x in qkv]
    for _ in range(10):
        xeflash.flash_attn_func(*qkv)
    gc.collect()
    assert all(map(np.array_equal, qkv, copies)) and counts == [sys.getrefcount(x) for x in qkv]


# ---- USM ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["in-order", "out-of-order"])
def queue(request):
    device = next((d for d in dpctl.get_devices() if d.is_cpu), None)
    if device is None:
        pytest.skip("dpctl sees no CPU device")
    return dpctl.SyclQueue(device, property=["in_order"] if request.param == "in-order" else [])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["device", "shared", "host"])
def test_usm_arrays_stay_on_their_queue(queue, kind, dtype):
    qkv = bshd(dtype=DTYPES[dtype])
    arrays = [usm.UsmArray(x, queue, kind) for x in qkv]
    sinks = torch.randn(4)
    s_aux = usm.UsmArray(sinks, queue, kind)
    out, lse, _ = xeflash.flash_attn_func(*arrays, return_attn_probs=True, causal=True, s_aux=s_aux)
    for result in (out, lse):
        assert result.__sycl_usm_array_interface__["syclobj"] == queue
    check_rows_first(kind, qkv, usm.read(out), usm.read(lse), Features(window=(-1, 0), sinks=sinks))


@pytest.mark.parametrize("rows", [1, 63])
def test_usm_arrays_with_strides_and_offset(queue, rows):
    qkv = bshd(rows, 1000)
    laid_out = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in qkv]
    arrays = [usm.UsmArray(x, queue, offset=5) for x in laid_out]
    out = xeflash.flash_attn_func(*arrays)
    check_rows_first("strided", qkv, usm.read(out))


@pytest.mark.parametrize("strided", [False, True])
def test_packed_usm_arrays_without_indexing(queue, strided):
    q, k, v = (torch.randn(2, 63, 4, 64) for _ in range(3))
    for parts in ((q, k, v), (k, v)):
        packed = torch.stack(parts, dim=2)
        if strided:
            packed = torch.zeros(2, 65, *packed.shape[2:])[:, 1:64].copy_(packed)
        on_queue = usm.UsmArray(packed, queue, offset=3)
        assert not hasattr(on_queue, "__getitem__")
        if len(parts) == 3:
            out = xeflash.flash_attn_qkvpacked_func(on_queue)
        else:
            out = xeflash.flash_attn_kvpacked_func(usm.UsmArray(q, queue), on_queue)
        check_rows_first("packed", (q, k, v), usm.read(out))


def test_usm_out_and_mask(queue):
    qkv = bshd()
    q, k, v = (x.transpose(1, 2).contiguous() for x in qkv)
    mask = torch.rand(63, 127) < 0.5
    out = usm.UsmArray(torch.full((2, 4, 63, 64), 7.0), queue)
    arrays = [usm.UsmArray(x, queue) for x in (q, k, v, mask)]
    result = xeflash.attention(*arrays, enable_gqa=True, out=out)
    assert result is out
    check_attention("out", q, k, v, Features(mask=mask), usm.read(out))


def test_usm_varlen(queue):
    q, k, v = (torch.randn(50, heads, 64) for heads in (4, 2, 2))
    cu = torch.tensor([0, 20, 50], dtype=torch.int32)
    want = xeflash.flash_attn_varlen_func(q, k, v, cu, cu, 30, 30, causal=True)
    arrays = [usm.UsmArray(x, queue) for x in (q, k, v, cu, cu)]
    got = xeflash.flash_attn_varlen_func(*arrays, 30, 30, causal=True)
    torch.testing.assert_close(usm.read(got), want, rtol=1e-6, atol=1e-6)


def test_work_submitted_before_is_waited_for(queue):
    """Inputs still being copied, on either kind of queue, and a result used at once by the next call."""
    qkv = bshd(300, 1000)
    arrays = [usm.UsmArray(torch.zeros_like(x), queue) for x in qkv]
    host = [x.contiguous().view(torch.uint8).numpy().reshape(-1) for x in qkv]
    events = [queue.memcpy_async(array.memory, data, data.nbytes) for array, data in zip(arrays, host, strict=True)]
    out = xeflash.flash_attn_func(*arrays)
    again = xeflash.flash_attn_func(out, *arrays[1:])
    first = usm.read(out)
    check_rows_first("copied", qkv, first)
    check_rows_first("chained", [first, *qkv[1:]], usm.read(again))
    del events


def test_usm_errors(queue):
    qkv = bshd()
    q, k, v = (usm.UsmArray(x, queue) for x in qkv)
    with pytest.raises(ValueError, match=r"^flash_attn_func: k must be on the device of q"):
        xeflash.flash_attn_func(q, qkv[1], v)
    with pytest.raises(ValueError, match=r"^flash_attn_func: v must be on the device of q"):
        xeflash.flash_attn_func(qkv[0].numpy(), qkv[1].numpy(), v)
    k.__sycl_usm_array_interface__["syclobj"] = None
    with pytest.raises(TypeError, match="queue"):
        xeflash.flash_attn_func(q, k, v)
    wide = usm.UsmArray(torch.randn(2, 63, 4, 128)[..., ::2], queue)
    with pytest.raises(ValueError, match=r"^flash_attn_func: q must have a contiguous last dimension"):
        xeflash.flash_attn_func(wide, usm.UsmArray(qkv[1], queue), v)


def test_two_queues_do_not_mix(queue):
    other = dpctl.SyclQueue(queue.sycl_device)
    arrays = [usm.UsmArray(x, on) for x, on in zip(bshd(), (queue, other, queue), strict=True)]
    with pytest.raises(ValueError, match=r"^flash_attn_func: k must be on the queue of q"):
        xeflash.flash_attn_func(*arrays)


@pytest.mark.parametrize("queues", few([4, 40], 4))
def test_queues_may_come_and_go(queues):
    """A buffer kept from a call must not need that call's queue."""
    script = """
import sys
sys.path.insert(0, sys.argv[1])
import gc, torch, xeflash, dpctl, usm
device = next(d for d in dpctl.get_devices() if d.is_cpu)
for i in range(int(sys.argv[2])):
    queue = dpctl.SyclQueue(dpctl.SyclContext(device), device) if i % 2 else dpctl.SyclQueue(device)
    q, k = torch.randn(1, 1, 2, 64), torch.randn(1, 4000 + 300 * i, 1, 64)
    arrays = [usm.UsmArray(x, queue) for x in (q, k, k)]
    out = usm.read(xeflash.flash_attn_func(*arrays))
    torch.testing.assert_close(out, xeflash.flash_attn_func(q, k, k), rtol=1e-5, atol=1e-5)
    del queue, arrays
    gc.collect()
print("done")
"""
    command = [sys.executable, "-c", script, TESTS, str(queues)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0 and run.stdout == "done\n", f"{run.returncode}: {run.stderr}"


@pytest.mark.parametrize("order", few(["in_order", ""], ""))
def test_inputs_may_be_released_after_the_call(order):
    """The call must keep them, or have finished: their memory is freed with the last reference."""
    script = """
import sys
sys.path.insert(0, sys.argv[1])
import torch, xeflash, dpctl, usm
device = next(d for d in dpctl.get_devices() if d.is_cpu)
queue = dpctl.SyclQueue(device, property=sys.argv[2].split())
q, k = torch.randn(2, 300, 4, 64), torch.randn(2, 1000, 4, 64)
sinks = torch.full((4,), 3.0)
want = xeflash.flash_attn_func(q, k, k, s_aux=sinks)
for _ in range(5):
    got = xeflash.flash_attn_func(*(usm.UsmArray(x, queue) for x in (q, k, k)), s_aux=usm.UsmArray(sinks, queue))
    more = [usm.UsmArray(torch.full_like(k, 9.0), queue) for _ in range(3)]  # takes the freed memory
    torch.testing.assert_close(usm.read(got), want, rtol=1e-5, atol=1e-5)
print("done")
"""
    run = subprocess.run([sys.executable, "-c", script, TESTS, order], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0 and run.stdout == "done\n", f"{run.returncode}: {run.stderr}"


def test_host_arrays_after_sycl_was_used_first():
    """SYCL looks for devices once, and import xeflash shows it the CPU."""
    program = """
import dpctl
dpctl.get_devices()
import numpy, xeflash
x = numpy.ones((1, 4, 2, 64), "float32")
xeflash.flash_attn_func(x, x, x)
"""
    mine = ("OCL_ICD_FILENAMES", "XEFLASH_SIM", "ZEL_LIBRARY_PATH")
    before = {name: value for name, value in os.environ.items() if name not in mine}
    before["OCL_ICD_VENDORS"] = "/nowhere"  # a system's own driver for CPUs would do
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, env=before)
    assert "import xeflash before the first use of SYCL (by dpctl, or by torch.xpu)" in run.stderr


# ---- threads ------------------------------------------------------------------------------------


def test_two_threads_at_once():
    """Different sizes, so that launches, split buffers and new kernels of both threads interleave."""
    problems = [bshd(rows, keys, dtype=dtype) for dtype in (torch.float32, torch.bfloat16) for rows, keys in
                ((1, 4000), (63, 127), (1, 300), (7, 23), (300, 100), (1, 9000))]  # fmt: skip
    wants = [xeflash.flash_attn_func(*problem) for problem in problems]
    failures = []

    def work(order):
        try:
            for turn in range(10):
                for i in order:
                    if not torch.equal(xeflash.flash_attn_func(*problems[i]), wants[i]):
                        failures.append((turn, i))
        except Exception as error:
            failures.append(error)

    numbers = list(range(len(problems)))
    threads = [threading.Thread(target=work, args=(order,)) for order in (numbers, numbers[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_threads_that_end_take_their_buffers_along():
    q, k, v = bshd(1, 9000)
    want = xeflash.flash_attn_func(q, k, v)
    results = []
    for _ in range(20):
        thread = threading.Thread(target=lambda: results.append(xeflash.flash_attn_func(q, k, v)))
        thread.start()
        thread.join()
    assert len(results) == 20 and all(torch.equal(result, want) for result in results)


@pytest.mark.parametrize("name", ["query", "key", "value", "attn_mask"])
def test_masked_arrays_are_refused(name):
    arrays = {n: np.ones((1, 2, 5, 8), np.float32) for n in ("query", "key", "value")}
    arrays["attn_mask"] = np.zeros((5, 5), np.float32)
    arrays[name] = np.ma.masked_array(arrays[name], mask=arrays[name] > 2)
    with pytest.raises(TypeError, match=f"attention: {name} must not be a masked array"):
        xeflash.attention(**arrays)


def test_other_subclasses_of_numpys_arrays_are_arrays():
    class Own(np.ndarray):
        pass

    x = np.ones((1, 2, 5, 8), np.float32)
    assert np.array_equal(xeflash.attention(x.view(Own), x, x), xeflash.attention(x, x, x))
