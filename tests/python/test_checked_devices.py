"""XEFLASH_CHECK=1: lengths, starts, tables and slots on a device are refused as those in host memory are."""

import re

import pytest
import torch
import xeflash
from arrays import to_array
from test_kv_cache_errors import REFUSED, call

dpctl = pytest.importorskip("dpctl")
usm = pytest.importorskip("usm")

CACHES = [
    "capacity", "negative", "index-range", "index-twice", "leftpad", "table-range", "table-capacity", "table-twice",
    "beams-range", "beams-twice", "rotary-short", "rotary-short-q",
]  # fmt: skip


@pytest.fixture(params=["usm-cpu", pytest.param("xpu", marks=[pytest.mark.gpu, pytest.mark.xpu])])
def place(request, monkeypatch):
    """Copies arrays to a device, whose values are checked."""
    monkeypatch.setenv("XEFLASH_CHECK", "1")
    if request.param == "xpu":
        request.getfixturevalue("xpu")
        return lambda x: to_array(x, "xpu")
    queue = dpctl.SyclQueue(next(d for d in dpctl.get_devices() if d.is_cpu), property="in_order")
    return lambda x: usm.UsmArray(x, queue) if isinstance(x, torch.Tensor) else x


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("name", CACHES)
def test_caches(place, name):
    changes, error, text = REFUSED[name]
    arguments = {key: place(x) for key, x in (call() | changes).items()}
    with pytest.raises(error, match="^" + re.escape("flash_attn_with_kvcache: " + text)):
        xeflash.flash_attn_with_kvcache(**arguments)


PACKED = {
    "cu_seqlens_q": ({"cu_seqlens_q": int32(0, 4, 3)}, "cu_seqlens_q must not decrease, got 3 after 4"),
    "first": ({"cu_seqlens_k": int32(1, 3, 7)}, "cu_seqlens_k must start with 0, got 1"),
    "end": ({"cu_seqlens_k": int32(0, 3, 6)}, "cu_seqlens_k must end with the number of packed rows (7), got 6"),
    "longest": ({"max_seqlen_q": 3}, "max_seqlen_q must be at least the longest sequence (4), got 3"),
    "seqused_k": ({"seqused_k": int32(3, 5)}, "seqused_k must be 0 to the sequence's length (4), got 5"),
}


def packed():
    x, starts = torch.ones(7, 2, 64), int32(0, 3, 7)
    return {
        "q": x,
        "k": x,
        "v": x,
        "cu_seqlens_q": starts,
        "cu_seqlens_k": starts,
        "max_seqlen_q": 4,
        "max_seqlen_k": 4,
    }


@pytest.mark.parametrize("name", PACKED)
def test_packed_sequences(place, name):
    changes, text = PACKED[name]
    arguments = {key: place(x) for key, x in (packed() | changes).items()}
    with pytest.raises(ValueError, match="^" + re.escape("flash_attn_varlen_func: " + text)):
        xeflash.flash_attn_varlen_func(**arguments)


def test_pages_of_packed_sequences(place):
    """Rows of the table may lie apart."""
    pools = {name: torch.zeros(6, 16, 2, 64) for name in "kv"}
    table = torch.full((2, 9), 99, dtype=torch.int32)
    table[:, :2] = torch.tensor([[0, 4], [6, 1]])
    arguments = packed() | pools | {"block_table": table[:, :2], "seqused_k": int32(20, 3), "cu_seqlens_k": None}
    arguments = {key: place(x) for key, x in (arguments | {"max_seqlen_k": 32}).items()}
    with pytest.raises(ValueError, match=r"block_table must be 0 to 5, got 6 at \[1, 0\]"):
        xeflash.flash_attn_varlen_func(**arguments)


def test_slots(place):
    x, cache = torch.zeros(3, 2, 64), torch.zeros(2, 3, 16, 2, 64)
    arguments = [place(y) for y in (x, x, cache[0], cache[1], torch.tensor([0, -1, 48]))]
    with pytest.raises(ValueError, match="slots must be below 48, the rows of all pages, .* got 48 at"):
        xeflash.write_to_cache(*arguments)


def test_right_values_change_nothing(place, monkeypatch):
    def run():
        out = xeflash.flash_attn_varlen_func(**{key: place(x) for key, x in packed().items()})
        return usm.read(out) if hasattr(out, "__sycl_usm_array_interface__") else out.cpu()

    got = run()
    monkeypatch.setenv("XEFLASH_CHECK", "0")
    assert torch.equal(got, run())


def test_the_choice_is_0_or_1(place, monkeypatch):
    monkeypatch.setenv("XEFLASH_CHECK", "yes")
    with pytest.raises(ValueError, match="^xeflash: XEFLASH_CHECK must be 0 or 1, got yes$"):
        xeflash.flash_attn_varlen_func(**{key: place(x) for key, x in packed().items()})


@pytest.mark.gpu
@pytest.mark.xpu
def test_arguments_that_rewrites_read(xpu, monkeypatch):
    monkeypatch.setenv("XEFLASH_CHECK", "1")
    arguments = {key: to_array(x, "xpu") for key, x in packed().items()}
    with pytest.raises(ValueError, match=r"seqused_q must be 0 to the sequence's queries \(4\), got 5 for sequence 1"):
        xeflash.flash_attn_varlen_func(**arguments, seqused_q=int32(3, 5).to("xpu"))
    x, picked = torch.ones(1, 7, 2, 64, device="xpu"), torch.zeros(1, 7, 1, dtype=torch.int32, device="xpu")
    with pytest.raises(ValueError, match="gather_kv_indices must be below the 7 keys, got 7"):
        xeflash.flash_attn_func(x, x, x, gather_kv_indices=picked + 7)


@pytest.mark.gpu
@pytest.mark.xpu
def test_a_graph_is_recorded_unchecked(xpu, monkeypatch):
    """Replays read other values."""
    monkeypatch.setenv("XEFLASH_CHECK", "1")
    given = packed()
    there = {key: to_array(x, "xpu") for key, x in given.items()}
    want = xeflash.flash_attn_varlen_func(**there).cpu()
    there["cu_seqlens_q"].fill_(0)
    torch.xpu.synchronize()
    graph = torch.xpu.XPUGraph()
    with torch.xpu.graph(graph):
        out = xeflash.flash_attn_varlen_func(**there)
    there["cu_seqlens_q"].copy_(given["cu_seqlens_q"])
    graph.replay()
    assert torch.equal(out.cpu(), want)
    graph.reset()
