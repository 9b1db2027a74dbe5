"""What the other tests here rely on: torch_xpu behaves as torch's own backend does, and shows what goes wrong."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch_xpu
import xeflash
from xeflash import sim

pytestmark = [pytest.mark.gpu, pytest.mark.xpu]


@pytest.fixture(autouse=True)
def empty_cache(xpu):
    if not torch_xpu.installed():
        pytest.skip("torch has an XPU backend of its own")
    torch.xpu.empty_cache()


def test_freed_memory_is_overwritten_and_goes_to_the_next_of_its_stream():
    x = torch.ones(1000, device="xpu")
    address = x.data_ptr()
    del x
    again = torch.empty(1000, device="xpu")
    assert again.data_ptr() == address and again.isnan().all()
    with torch.xpu.stream(torch.xpu.Stream()):
        del again
        assert torch.empty(1000, device="xpu").data_ptr() != address


def test_memory_of_record_stream_is_kept_until_that_stream_has_got_there():
    x = torch.ones(1000, device="xpu")
    address, side = x.data_ptr(), torch.xpu.Stream()
    with torch.xpu.stream(side):
        y = torch.zeros(2000, device="xpu")
    x.record_stream(side)
    del x
    other = torch.empty(1000, device="xpu")
    if sim.enabled():  # where nothing runs before somebody waits
        assert other.data_ptr() != address
    side.synchronize()
    assert torch.empty(1000, device="xpu").data_ptr() == address
    del y


def test_a_read_beyond_the_last_element_is_found():
    if not sim.enabled():
        pytest.skip("only a simulator sees it")
    q, k = (torch.ones(n, 2, 64, device="xpu").half() for n in (9, 21))
    starts_q, starts_k = (torch.tensor([0, n], dtype=torch.int32, device="xpu") for n in (9, 22))
    xeflash.flash_attn_varlen_func(q, k, k, starts_q, starts_k, 9, 22)
    with pytest.raises(RuntimeError):
        torch.xpu.synchronize()
    assert "the end of the 5376-byte device allocation" in sim.last_fault()
    sim.clear_fault()


def test_a_copy_to_another_device_is_in_the_order_of_both():
    x = torch.randn(9, 128)
    there = x.to("xpu:0").to("xpu:1")  # the one between is freed at once
    again = torch.full((9, 128), 7.0, device="xpu:0")
    assert torch.equal(there.cpu(), x) and torch.equal(again.to("xpu:1").cpu(), again.cpu())


class DLTensor(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32))


def test_dlpack_numbers_devices_as_sycl_does():
    """The CPU is a device of SYCL's, too."""
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    names = [device["name"] for device in xeflash._core.devices()]
    for index in range(torch.xpu.device_count()):
        capsule = torch.utils.dlpack.to_dlpack(torch.ones(1, device=f"xpu:{index}"))
        number = DLTensor.from_address(pointer_of(capsule, b"dltensor")).device_id
        assert names[number] == torch.xpu.get_device_name(index) and number != index


def test_the_state_of_a_generator_is_seed_and_offset():
    torch.xpu.manual_seed(5)
    torch.rand(3, device="xpu")
    state = torch.xpu.get_rng_state()
    assert state.view(torch.int64).tolist() == [5, 4]


def test_gloo_is_refused():
    """It moves host memory: what it was given, and gave, were copies."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    x = torch.ones(3, device="xpu")
    calls = [lambda: dist.all_reduce(x), lambda: dist.broadcast(x, 0), lambda: dist.all_to_all_single(x, x.clone())]
    try:
        for call in calls:
            with pytest.raises(NotImplementedError, match="c10d::.*cannot move tensors of simulated GPUs"):
                call()
        dist.all_reduce(torch.ones(3))  # of the host
    finally:
        dist.destroy_process_group()


PROGRAM = """
import os, threading
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import torch

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, dx):  # on a thread of the device, which is to be the last to end
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        return dx * 2

Twice.apply(torch.ones(3, device="xpu", requires_grad=True)).sum().backward()
"""


@pytest.mark.wide
def test_programs_end_well_after_a_backward_pass():
    """Where a core is shared, a fifth to two thirds of them aborted, after right results."""
    startup = str(Path(torch_xpu.__file__).parent / "startup")
    for _ in range(10):
        command = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(command, env=os.environ | {"PYTHONPATH": startup}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
