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
PROMPT = Case("prefill", "bf16", 1, 4, 2, 64, 300, 300, causal=True)


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
    assert shares.splits > 1 and main.groups == 4 * shares.splits  # 16 heads that share a KV head are two tiles
    assert merging.threads == 32
    floats_per_head = -(-shares.splits * (128 + 2) // 16) * 16  # O, and m and l
    assert shares.partial_bytes == 4 * 32 * floats_per_head
    assert (shares.device_threads, shares.percent(main)) == (640, 100 * main.threads / 640)


@pytest.mark.parametrize("arch, units", [("bmg", 160), ("pvc", 448), ("dg2", 512)])
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.parametrize("heads", [(32, 2), (32, 8), (10, 2), (8, 1)], ids=str)
def test_one_query_fills_a_device(arch, units, dim, heads):
    """A quarter of its threads from 4k keys on, all from 32k; what is merged takes little beside K and V."""
    for keys in (1024, 4096, 8192, 32768, 131072):
        shares = shares_of(call_of(Case("decode", "bf16", 1, *heads, dim, 1, keys, causal=False)), arch, units)
        threads, merged = shares.launches[0].threads, 2 * shares.partial_bytes / (4 * keys * heads[1] * dim)
        if keys < 4096:
            assert len(shares.launches) == 1
            continue
        # 4096 keys are 256 blocks, and a large device is not given more threads than those of one KV head.
        most = keys // 16 * heads[1] * -(-heads[0] // heads[1] // 8)
        assert threads >= min(most, (0.25 if keys < 32768 else 0.9) * shares.device_threads)
        assert merged <= 0.031 or (merged <= 0.034 and threads < 0.25 * shares.device_threads + 256)


@pytest.mark.parametrize("heads, rows, keys, least", [((10, 10), 64, 17600, 0.95), ((32, 8), 4, 4096, 0.5),
                                                      ((16, 4), 8, 8192, 0.5), ((8, 1), 2, 16384, 0.6)])  # fmt: skip
def test_few_queries_on_many_keys_fill_a_b580(heads, rows, keys, least):
    shares = shares_of(call_of(Case("prefill", "bf16", 1, *heads, 128, rows, keys, causal=False)), "bmg", 160)
    assert [launch.entry for launch in shares.launches] == ["flash_fwd", "combine"]
    assert shares.launches[0].threads >= least * 640


@pytest.mark.parametrize("rows", [1000, 4000])
def test_tiles_that_fill_a_device_are_not_split(rows):
    for arch, units in (("bmg", 160), ("pvc", 448), ("dg2", 512)):
        case = Case("prefill", "bf16", 1, 32, 8, 128, rows, 4096, causal=False)
        assert len(shares_of(call_of(case), arch, units).launches) == 1


def test_idle_cores_get_keys_of_a_tile():
    case = Case("prefill", "bf16", 1, 2, 2, 128, 64, 8192, causal=True)
    assert shares_of(call_of(case), "cpu-avx512", 16).splits == 4  # of four tiles of 32 rows
    assert shares_of(call_of(case), "cpu-avx512", 2).splits == 1


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
