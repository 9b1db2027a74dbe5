"""What is promised of the ways beside right numbers: bits, bytes, messages, and what is left out."""

import attending
import gradients
import pytest
import ranks
import torch
from attending import over
from cover import few

BITS = [
    {"chunk": 64},
    {"chunk": 64, "dtype": "bf16", "window": "full", "sinks": True},
    {"chunk": 64, "shards": "ranges", "variant": "dropout"},
    {"chunk": 64, "variant": "slope", "window": "70,causal"},
    {"chunk": 64, "rows": (100, 56, 0, 99, 1), "variant": "alibi", "slopes": "bh"},
]


@pytest.mark.parametrize("more", BITS, ids=str)
@pytest.mark.parametrize("how", ["all_gather", "all_to_all"])
def test_the_output_has_the_bits_of_one_process(how, more):
    case = over(how, **more)
    found = ranks.run(attending.attend, case, world=case.world)
    assert torch.equal(attending.whole(case, [first for first, _ in found])["out"], attending.by_xeflash(case))


@pytest.mark.parametrize("variant", ["dropout", "alibi"])
def test_heads_are_exchanged_without_regard_to_rows(variant):
    """Each rank has all rows: they need not be multiples of anything."""
    case = over("all_to_all", shards="ranges", chunk=50, variant=variant, world=3)
    found = ranks.run(attending.attend, case, world=3)
    assert torch.equal(attending.whole(case, [first for first, _ in found])["out"], attending.by_xeflash(case))


def expected(case):
    """Bytes and messages of both passes: kv elements of K and V of a shard, qo of Q and O, e bytes each."""
    spec, world = case.spec, case.world
    (heads, heads_k), (dim, dim_v) = spec.heads, spec.dims
    rows, e = spec.batch * spec.rows // world, 4 if spec.dtype == "fp32" else 2
    kv, qo = rows * heads_k * (dim + dim_v), rows * heads * (dim + dim_v)
    if case.how == "ring":
        return ((world - 1) * kv * e, (world - 1) * kv * (e + 4)), (world - 1, 2 * (world - 1))
    if case.how == "all_gather":
        return ((world - 1) * kv * e, (world - 1) * kv * (e + 4)), (1, 2)
    copied = kv * torch.tensor(heads_k).lcm(torch.tensor(world)).item() // heads_k
    sent = (qo + copied) * e * (world - 1) // world
    return (sent, sent), (2, 2)


BYTES = [
    {"heads": (12, 2)},
    {"heads": (12, 4), "dim_v": 32, "dtype": "bf16"},
    {"heads": (12, 3), "window": "full", "shards": "ranges"},
]


@pytest.mark.parametrize("more", few(BYTES, BYTES[0], BYTES[2]), ids=str)
@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.wide), 3, pytest.param(4, marks=pytest.mark.wide)])
@pytest.mark.parametrize("how", ["ring", "all_gather", "all_to_all"])
def test_bytes_are_those_of_the_formula(how, world, more):
    case = over(how, world=world, chunk=16, **more)
    found = ranks.run(attending.attend, case, world=world)
    attending.judge(case, found)
    for first, _ in found:
        assert (first["sent"], first["messages"]) == expected(case)


SHORT = [  # the last step in which a rank sees a key, and the case
    (1, {"window": "16,causal", "shards": "ranges", "chunk": 16}),
    (2, {"window": "17,causal", "shards": "ranges", "chunk": 16}),
    (0, {"rows": (16, 10, 6, 16, 16), "shards": "ranges", "chunk": 16}),
    (1, {"rows": (20, 12, 32), "shards": "ranges", "chunk": 16}),
    (3, {"window": "8,causal", "chunk": 16}),  # zig-zag: the rank after has the chunk before
]


def blocks_of_the_last_step(group, case):
    """How many blocks each step has, and what the ring sent."""
    from xeflash.distributed import ring

    seen, blocks = [], ring.Way.blocks

    def counted(way, step):
        found = blocks(way, step)
        seen.append((step, len(found)))
        return found

    ring.Way.blocks = counted
    try:
        first, _ = attending.attend(group, case)
    finally:
        ring.Way.blocks = blocks
    return first["messages"], seen[: len(seen) // 4]  # of the first forward pass


@pytest.mark.parametrize(("last", "more"), SHORT, ids=str)
def test_steps_in_which_nothing_is_seen_are_neither_sent_nor_computed(last, more):
    case = over("ring", world=4, **more)
    for (forward, _), steps in ranks.run(blocks_of_the_last_step, case):
        assert forward == last and [step for step, _ in steps] == list(range(last + 1))
        if case.shards == "ranges":
            assert steps[0][1] == 1
    attending.judge(case, ranks.run(attending.attend, case))


def test_a_causal_ring_has_a_launch_per_step():
    """Zig-zag: the own shard by its order, half of the keys, or half of the rows; never more."""
    for _, steps in ranks.run(blocks_of_the_last_step, over("ring", world=4)):
        assert [count for _, count in steps] == [1, 1, 1, 1]


@pytest.mark.parametrize("how", ["ring", "all_gather", "all_to_all"])
def test_delta_is_that_of_an_output_that_was_not_rounded(how):
    """Where V has a mean, Delta of the output in bfloat16 makes dQ about six times less exact."""
    case = over(how, dtype="bf16", chunk=64, window="full", mean=4.0)
    got = attending.whole(case, [first for first, _ in ranks.run(attending.attend, case, world=2)])["dq"]
    undealt = attending.drawn(case)
    want = gradients.gradients_of(undealt, gradients.tensors_of(undealt)[1])["q"].view(got.shape)
    assert float((got.double() - want).norm() / want.norm()) < 5e-3
