"""How calls are described as shared out over a device; tests/host/test_shares.py has those on CPUs."""

import math

import pytest
import torch
import xeflash
from xeflash import _core, sim
from xeflash.bench.cases import Case
from xeflash.bench.shares import call_of
from xeflash.jit.calls import shares_of

STEP = Case("decode", "bf16", 1, 32, 2, 128, 1, 4096, causal=False)
PROMPT = Case("prefill", "bf16", 1, 4, 2, 128, 300, 300, causal=True)


@pytest.mark.gpu
@pytest.mark.parametrize("case", [STEP, PROMPT], ids=lambda case: case.phase)
def test_the_simulator_launches_what_is_described(case, gpu):
    import usm

    if not sim.enabled():
        pytest.skip("a card keeps no record of its launches")
    shapes = ((case.heads, case.seq_q), (case.kv_heads, case.seq_k), (case.kv_heads, case.seq_k))
    q, k, v = (
        usm.UsmArray(torch.zeros(case.batch, *shape, case.head_dim, dtype=torch.bfloat16), usm.gpu_queue())
        for shape in shapes
    )
    xeflash.attention(q, k, v, is_causal=case.causal, enable_gqa=True)
    device = next(d for d in _core.devices() if d["arch"] == gpu)
    shares = shares_of(call_of(case), gpu, device["compute_units"], device["name"], device["driver"])
    records = sim.last_launches()
    assert [f"__sycl_kernel_{launch.entry}" for launch in shares.launches] == [x.kernel for x in records]
    figures = [(math.prod(x.groups), math.prod(x.local), x.threads) for x in records]
    assert [(x.groups, x.threads_of_group, x.threads) for x in shares.launches] == figures
    assert shares.percent(shares.launches[0]) == 100 * records[0].threads / (4 * device["compute_units"])


def test_splits_leave_partial_results_of_each_head():
    shares = shares_of(call_of(STEP), "bmg", 160)
    main, merging = shares.launches
    assert (main.entry, merging.entry) == ("flash_decode", "combine") and shares.widest == main
    assert shares.splits > 1 and main.groups == 2 * shares.splits  # 16 heads that share a KV head are one tile
    assert merging.threads == 32
    assert shares.partial_bytes == 4 * 32 * shares.splits * (128 + 2)  # O, and m and l
    assert (shares.device_threads, shares.percent(main)) == (640, 100 * main.threads / 640)


def test_what_is_not_split_leaves_nothing():
    shares = shares_of(call_of(PROMPT), "bmg", 1)
    (launch,) = shares.launches
    assert (shares.splits, shares.partial_bytes, shares.device_threads) == (1, 0, 4)
    assert launch.threads >= 4 * 300 // 16 and shares.waves(launch) == -(-launch.threads // 4)


def test_a_core_has_some_keys_of_a_step():
    shares = shares_of(call_of(STEP), "cpu-avx512-bf16", 16)
    main = shares.launches[0]
    assert main.threads_of_group == 1 and main.threads == 2 * shares.splits >= 16
    assert shares.device_threads == 64 and shares.waves(main) == -(-main.threads // 64)
