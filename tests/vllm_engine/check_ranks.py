"""vLLM's decode context parallel by our backend, in vLLM's own groups of ranks (gloo), without an engine.

vLLM's engine has none on CPUs: its kernel that numbers the slots of a step asserts one rank.
"""

import types
from multiprocessing import forkserver

import pytest
import torch
import torch.distributed as dist
from distributed import ranks
from tolerance import check_attention
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from xeflash.integrations._vllm_context import local_lengths, longest_local, merge_over_ranks
from xeflash.integrations.vllm_backend import XeflashBackend
from xeflash.selftest.reference import Features

DIM, PAGE, PAGES, HEADS = 64, 16, 24, 3  # heads of a rank, on one head of keys


def test_the_keys_of_a_rank():
    lengths = torch.tensor([0, 1, 2, 3, 7, 8, 9, 1000])
    for world, interleave in ((2, 1), (2, 16), (3, 2)):
        dealt = [
            [sum(i // interleave % world == rank for i in range(n)) for n in lengths.tolist()] for rank in range(world)
        ]
        got = [local_lengths(lengths, world, rank, interleave) for rank in range(world)]
        assert torch.stack(got).tolist() == dealt and got[0].dtype == torch.int32
        assert longest_local(1000, world, interleave) >= max(x[-1] for x in dealt)


@pytest.fixture(scope="module", params=[2, 3])
def processes(request):
    forkserver.set_forkserver_preload(
        ["torch.distributed", "vllm.config", "tolerance", "xeflash.integrations.vllm_backend"]
    )
    forkserver.ensure_running()  # one that has imported vLLM
    with ranks.Ranks(request.param) as mine:
        yield mine


def dcp_group():
    """vLLM's group of decode context parallel: all processes."""
    if parallel_state._DCP is None:
        world, rank = dist.get_world_size(), dist.get_rank()
        with set_current_vllm_config(VllmConfig()):
            parallel_state.init_distributed_environment(world, rank, local_rank=rank, backend="gloo")
            parallel_state.initialize_model_parallel(world, decode_context_model_parallel_size=world, backend="gloo")
    return parallel_state.get_dcp_group()


def step(group, before, new, interleave, features):
    """A step of a batch, whose earlier keys the ranks have dealt: the rows of this rank's heads, checked."""
    coordinator = dcp_group()
    world, rank = coordinator.world_size, coordinator.rank_in_group
    torch.manual_seed(7)  # the same numbers on all ranks
    tokens, heads = sum(new), HEADS * world
    q = torch.randn(tokens + 2, heads, DIM).bfloat16()  # two rows of padding
    k, v = torch.randn(2, tokens + 2, 1, DIM).bfloat16()
    table = torch.randperm(PAGES)[: 6 * len(new)].view(len(new), 6).int()
    cache = torch.full((PAGES, 1, PAGE, 2 * DIM), torch.nan).bfloat16()
    at, slots, keys, starts = 0, [], [], [0]
    for b, (n, more) in enumerate(zip(before, new, strict=True)):
        old = torch.randn(2, n, 1, DIM).bfloat16()
        for i in range(n + more):
            here = i // interleave % world == rank
            place = i // (interleave * world) * interleave + i % interleave
            slot = int(table[b, place // PAGE]) * PAGE + place % PAGE if here else -1
            if i >= n:
                slots.append(slot)
            elif here:
                cache.flatten(0, 2)[slot] = old[:, i].flatten()
        keys.append([torch.cat(x) for x in zip(old, (k[at : at + more], v[at : at + more]), strict=True)])
        at += more
        starts.append(at)
    lengths = [a + b for a, b in zip(before, new, strict=True)]
    common = types.SimpleNamespace(
        num_actual_tokens=tokens, max_query_len=max(new), max_seq_len=max(lengths), causal=True,
        query_start_loc=torch.tensor(starts).int(), seq_lens=torch.tensor(lengths).int(), block_table_tensor=table,
        slot_mapping=torch.tensor(slots),
    )  # fmt: skip
    mine = slice(HEADS * rank, HEADS * (rank + 1))
    sinks = torch.arange(heads).float() if features.get("sinks") else None
    impl = XeflashBackend.get_impl_cls()(
        HEADS, DIM, 0.125, 1, logits_soft_cap=features.get("softcap"), sinks=None if sinks is None else sinks[mine]
    )
    assert impl.need_to_return_lse_for_decode and impl.dcp_world_size == world
    parallel = types.SimpleNamespace(cp_kv_cache_interleave_size=interleave, decode_context_parallel_size=world)
    config = types.SimpleNamespace(parallel_config=parallel)
    metadata = XeflashBackend.get_builder_cls()(None, [], config, q.device).build(0, common)
    output = torch.full((tokens + 2, HEADS, DIM), torch.nan).bfloat16()
    impl.do_kv_cache_update(None, k, v, cache, common.slot_mapping)
    impl.forward(None, q[:, mine].contiguous(), k, v, cache, metadata, output)
    assert output[tokens:].isnan().all()
    whole = Features(scale=0.125, window=(-1, 0), softcap=features.get("softcap", 0.0))
    for b, (of_k, of_v) in enumerate(keys):
        rows = slice(starts[b], starts[b + 1])
        given = (x.transpose(0, 1)[None] for x in (q[rows, mine], of_k, of_v, output[rows]))
        q_, k_, v_, out = given
        check_attention(f"sequence {b}", q_, k_, v_, whole.with_(sinks=None if sinks is None else sinks[mine]), out)


MIXED = ((0, 30, 20, 1), (12, 1, 5, 1))  # a prefill, a decode, the next chunk of a prefill; one key before a token


@pytest.mark.parametrize("interleave", [1, 4, 16])
def test_a_step_of_a_mixed_batch(processes, interleave):
    processes.run(step, *MIXED, interleave, {})


@pytest.mark.parametrize(
    "features", [pytest.param({"softcap": 3.0}, marks=pytest.mark.wide), {"sinks": True}], ids=["softcap", "sinks"]
)
def test_features_of_a_layer(processes, features):
    processes.run(step, *MIXED, 1, features)


def merges(group):
    coordinator = dcp_group()
    world, rank = coordinator.world_size, coordinator.rank_in_group
    torch.manual_seed(1)
    outs, lses = torch.randn(world, 5, 2 * world, DIM), torch.randn(world, 2 * world, 5)
    lses[0, 0], outs[0, :, 0] = torch.inf, torch.nan  # of a row without keys nothing is read
    lses[:, 1, 3] = torch.inf
    out, lse = merge_over_ranks(outs[rank], lses[rank], coordinator)
    mine = slice(2 * rank, 2 * rank + 2)
    total = lses.masked_fill(lses == torch.inf, -torch.inf).logsumexp(0)
    weights = (lses.masked_fill(lses == torch.inf, -torch.inf) - total).exp().nan_to_num(0)
    want = (weights.mT[..., None] * outs.nan_to_num(0)).sum(0)[:, mine]
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(lse, total[mine].masked_fill(total[mine] == -torch.inf, torch.inf))
    assert out.isfinite().all()


def test_rows_that_see_no_key_here_or_nowhere(processes):
    processes.run(merges)


def refusals(group):
    dcp_group()
    impl = XeflashBackend.get_impl_cls()
    found = []
    for more in (
        {"sliding_window": 9},
        {"alibi_slopes": [0.1] * HEADS},
        {"attn_type": "encoder_decoder"},
        {"num_kv_heads": 3},
    ):
        try:
            impl(HEADS, DIM, 0.125, **{"num_kv_heads": 1, **more})
        except NotImplementedError as error:
            found.append(str(error))
    impl(HEADS, DIM, 0.125, 3, attn_type="encoder_only", sliding_window=4)  # its keys are not in the cache
    return found


def test_what_positions_of_dealt_keys_would_be_needed_for_is_refused(processes):
    assert processes.run(refusals)[0] == [
        "xeflash: sliding_window must be (-1, -1) with decode context parallel, got (8, 0)",
        "xeflash: alibi_slopes must be None with decode context parallel, got a tensor",
        "xeflash: attn_type must be 'decoder' with decode context parallel, got 'encoder_decoder'",
        "xeflash: num_kv_heads must be 1 with decode context parallel, got 3",
    ]
