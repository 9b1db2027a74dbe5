"""Tensors that come as torch's on xpu do: pointers and the current stream's queue by DLPack's C exchange interface."""

import dpctl
import exchange
import pytest
import torch
import xeflash
from reference import Features
from tolerance import check_attention


@pytest.mark.parametrize("order", ["in_order", None])
@pytest.mark.parametrize("rows", [1, 63])
def test_results_are_new_tensors_on_the_current_stream(order, rows):
    queue = dpctl.SyclQueue("cpu", property=order) if order else dpctl.SyclQueue("cpu")
    tensor = exchange.tensor_type(queue)
    q, k, v = (torch.randn(2, n, 4, 64) for n in (rows, 300, 300))
    arrays = [tensor(x) for x in (q, k, v)]  # kept: a stream-ordered allocator would do so
    out, lse, _ = xeflash.flash_attn_func(*arrays, causal=True, return_attn_probs=True)
    queue.wait()
    assert type(out) is tensor and type(lse) is tensor and tensor.streams_asked >= 3
    f = Features(window=(-1, 0), empty_lse=torch.inf)
    check_attention("exchange", *(x.transpose(1, 2) for x in (q, k, v)), f, out.cpu().transpose(1, 2), lse.cpu())


def test_packed_sequences_on_a_device_are_not_read_by_the_host():
    queue = dpctl.SyclQueue("cpu", property="in_order")
    tensor = exchange.tensor_type(queue)
    q = torch.randn(7, 2, 64)
    starts = tensor(torch.tensor([0, 3, 3, 7], dtype=torch.int32))
    x = tensor(q)
    out = xeflash.flash_attn_varlen_func(x, x, x, starts, starts, 4, 4)
    queue.wait()
    out = out.cpu()
    torch.testing.assert_close(out[:3], xeflash.flash_attn_func(q[None, :3], q[None, :3], q[None, :3])[0])
    torch.testing.assert_close(out[3:], xeflash.flash_attn_func(q[None, 3:], q[None, 3:], q[None, 3:])[0])


def test_other_streams_are_refused_together():
    one, other = (exchange.tensor_type(dpctl.SyclQueue("cpu", property="in_order")) for _ in range(2))
    q = torch.randn(1, 5, 2, 64)
    with pytest.raises(ValueError, match=r"^flash_attn_func: k must be on the device of q"):
        xeflash.flash_attn_func(one(q), other(q), one(q))
