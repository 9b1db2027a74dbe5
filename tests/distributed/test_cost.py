"""What context parallel costs: against numbers counted by hand."""

import pytest
import torch
from xeflash.distributed.cost import WAYS, choose, cost, cost_table

# A shard of 10 rows of 8 query and 2 KV heads of 64, two sequences: kv = 2 * 10 * 2 * 128 = 5120 elements, and
# q and out have 2 * 10 * 8 * 128 = 20480.
Q, K = (2, 10, 8, 64), (2, 10, 2, 64)


def numbers(each):
    return (each.bytes_forward, each.bytes_backward, each.messages_forward, each.messages_backward)


@pytest.mark.parametrize(
    ("how", "world", "counted"),
    [
        ("ring", 1, (0, 0, 0, 0)),
        ("ring", 2, (5120 * 2, 5120 * 6, 1, 2)),
        ("ring", 4, (3 * 5120 * 2, 3 * 5120 * 6, 3, 6)),
        ("all_gather", 1, (0, 0, 0, 0)),
        ("all_gather", 4, (3 * 5120 * 2, 3 * 5120 * 6, 1, 2)),
        ("all_to_all", 1, (0, 0, 0, 0)),
        ("all_to_all", 2, (25600, 25600, 2, 2)),  # half of (20480 + 5120) * 2
        ("all_to_all", 4, (46080, 46080, 2, 2)),  # three quarters of (20480 + 2 * 5120) * 2: four copied heads
        ("all_to_all", 8, (71680, 71680, 2, 2)),  # seven eighths of (20480 + 4 * 5120) * 2
    ],
)
def test_bytes_and_messages(how, world, counted):
    assert numbers(cost(Q, K, torch.bfloat16, world, how)) == counted


def test_in_fp32_elements_have_four_bytes():
    assert numbers(cost(Q, K, torch.float32, 4, "ring")) == (3 * 5120 * 4, 3 * 5120 * 8, 3, 6)
    assert numbers(cost(Q, K, "fp32", 4, "all_gather")) == (3 * 5120 * 4, 3 * 5120 * 8, 1, 2)


def test_memory_of_the_ring_does_not_grow_with_ranks_and_that_of_all_gather_does():
    few, many = (cost(Q, K, "bfloat16", world, "ring") for world in (3, 300))
    out = 2 * 10 * 8 * 64
    assert few.memory_forward == many.memory_forward == out * 4 + 3 * 5120 * 2
    assert few.memory_backward == many.memory_backward == out * (2 + 2 + 4) + 4 * 5120 * 4 + 2 * 5120 * 2
    few, many = (cost(Q, K, "bfloat16", world, "all_gather") for world in (4, 400))
    assert many.memory_forward - few.memory_forward == 396 * 5120 * 5
    assert many.memory_backward - few.memory_backward == 396 * 5120 * 16
    few, many = (cost((2, 10, 32, 64), (2, 10, 32, 64), "bfloat16", world, "all_to_all") for world in (4, 32))
    assert few.memory == many.memory


def test_without_a_backward_pass_its_numbers_are_0():
    for how in WAYS:
        each = cost(Q, K, "bfloat16", 2, how, backward=False)
        assert each.bytes_backward == each.messages_backward == each.memory_backward == 0 < each.bytes_forward
        assert each.memory == each.memory_forward


def test_packed_shapes_and_another_dim_of_v():
    packed = cost((20, 8, 64), (20, 2, 64), "bfloat16", 4, "ring")
    assert numbers(packed) == numbers(cost(Q, K, "bfloat16", 4, "ring"))
    wide = cost(Q, K, "bfloat16", 2, "all_gather", dim_v=128)
    assert wide.bytes_forward == 2 * 10 * 2 * (64 + 128) * 2


def test_keys_may_have_rows_of_their_own():
    each = cost(Q, (2, 30, 2, 64), "bfloat16", 4, "ring")
    assert each.bytes_forward == 3 * cost(Q, K, "bfloat16", 4, "ring").bytes_forward
    assert each.memory_forward == 2 * 10 * 8 * 64 * 4 + 3 * 3 * 5120 * 2


def test_a_mesh_exchanges_heads_and_sends_their_keys_round():
    ways = ("ring", "all_to_all")
    mesh = cost(Q, K, "bfloat16", (3, 4), ways)
    # The ring's K and V: 4 times the rows, one copied head: 2 * 40 * 1 * 128 = 10240 elements.
    assert mesh.bytes_forward == 46080 + 2 * 10240 * 2
    assert mesh.bytes_backward == 46080 + 2 * 10240 * 6
    assert (mesh.messages_forward, mesh.messages_backward) == (2 + 2, 2 + 4)
    gathered = cost(Q, K, "bfloat16", (3, 4), ("all_gather", "all_to_all"))
    assert (gathered.bytes, gathered.messages_forward) == (mesh.bytes, 2 + 1)
    assert numbers(cost(Q, K, "bfloat16", (3, 1), ways)) == numbers(cost(Q, K, "bfloat16", 3, "ring"))
    assert numbers(cost(Q, K, "bfloat16", (1, 4), ways)) == numbers(cost(Q, K, "bfloat16", 4, "all_to_all"))


def test_heads_that_ranks_do_not_divide_are_told():
    refused = cost(Q, K, "bfloat16", 3, "all_to_all")
    assert "multiple of the number of ranks (3), got 8" in refused.refused and refused.bytes == 0
    assert "got 8" in cost(Q, K, "bfloat16", (2, 3), ("ring", "all_to_all")).refused


@pytest.mark.parametrize(
    ("heads", "kv_heads", "world", "want"),
    [
        (32, 8, 2, "all_gather"),  # Llama's heads: all-gather sends less on few ranks,
        (32, 8, 8, "all_to_all"),  # all-to-all on more
        (32, 8, 3, "all_gather"),
        (8, 8, 2, "all_to_all"),
        (32, 1, 8, "all_gather"),
    ],
)
def test_the_fewest_bytes_win(heads, kv_heads, world, want):
    assert choose((1, 64, heads, 128), (1, 64, kv_heads, 128), "bfloat16", world).how == want


def test_all_to_all_wins_where_the_formulas_cross():
    # Forward alone: once W > 1 + H / Hk = 5. With the backward pass 8 (W-1) kv meets 4 (W-1)/W (q + o + kv): W > 5/2.
    shapes = (1, 64, 32, 128), (1, 64, 8, 128), "bfloat16"
    forward = [choose(*shapes, world, backward=False).how for world in (2, 4, 8, 16)]
    assert forward == ["all_gather", "all_gather", "all_to_all", "all_to_all"]
    assert [choose(*shapes, world).how for world in (2, 4)] == ["all_gather", "all_to_all"]


def test_a_limit_of_memory_leads_to_the_ring():
    shapes = (1, 64, 4, 64), (1, 64, 4, 64), "bfloat16", 5  # heads that 5 ranks do not divide
    gathered, ring = (cost(*shapes, how).memory for how in ("all_gather", "ring"))
    assert ring < gathered
    assert choose(*shapes, memory_limit=gathered).how == "all_gather"
    assert choose(*shapes, memory_limit=gathered - 1).how == "ring"
    assert choose(*shapes, memory_limit=0).how == "ring"  # nothing fits: the least


def test_a_feature_may_leave_fewer_ways():
    shapes = (1, 64, 4, 64), (1, 64, 4, 64), "bfloat16"
    assert choose(*shapes, 4, ways=("ring",)).how == "ring"
    with pytest.raises(ValueError, match=r"choose: no way is left \(all_to_all: .*got 4\)"):
        choose(*shapes, 3, ways=("all_to_all",))


def test_the_table_shows_all_ways_and_marks_one():
    text = cost_table((1, 8192, 32, 128), (1, 8192, 8, 128), torch.bfloat16, 8)
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["all_gather", "*", "ring"]
    assert "235 MB" in lines[1] and "7 + 14" in lines[3]
    assert "all_to_all: the number of query heads" in cost_table((1, 8, 8, 64), (1, 8, 8, 64), "bf16", 3)
    assert "sends 235 MB + 705 MB in 1 + 2 messages" in str(
        cost((1, 8192, 32, 128), (1, 8192, 8, 128), "bf16", 8, "all_gather")
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Q, K, "float64", 2, "ring"), "cost: dtype must be one of float32, bfloat16, float16, got float64"),
        ((Q, K, "bf16", 0, "ring"), "cost: world must be a positive number of ranks, got 0"),
        (
            (Q, K, "bf16", 2, "star"),
            "cost: how must be one of all_gather, all_to_all, ring, or a pair of them, got 'star'",
        ),
        ((Q, K, "bf16", 2, ("ring", "all_to_all")), "cost: world must be two positive numbers of ranks .*, got 2"),
        ((Q, K, "bf16", (2, 2), ("ring", "ring")), r"cost: how must be .* for two groups, got \('ring', 'ring'\)"),
        ((Q, K, "bf16", (2, 2), "ring"), r"cost: world must be a positive number of ranks, got \(2, 2\)"),
        ((Q, (2, 10, 3, 64), "bf16", 2, "ring"), r"the heads of q \(8\) must be a multiple of those of k, got 3"),
        ((Q, (1, 10, 2, 64), "bf16", 2, "ring"), "cost: k_shape may differ from q_shape in its rows and heads only"),
        ((Q, (10, 2, 64), "bf16", 2, "ring"), r"cost: q_shape and k_shape must be \(batch, rows, heads, dim\)"),
        (((0, 10, 8, 64), K, "bf16", 2, "ring"), "cost: q_shape and k_shape must be positive"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        cost(*arguments)
