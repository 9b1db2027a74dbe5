"""What context parallel costs by its formulas is what it sends, and about what it holds."""

import counted
import pytest
import ranks

CASES = [
    (world, how, heads, dtype, backward)
    for how in ("ring", "all_gather", "all_to_all")
    for world, heads, dtype, backward in (
        (2, (8, 2), "bfloat16", True),
        (3, (6, 3), "float32", True),
        (4, (8, 2), "bfloat16", True),  # all_to_all copies heads
        (4, (4, 4), "float16", False),
    )
]


@pytest.mark.parametrize(("world", "how", "heads", "dtype", "backward"), CASES)
def test_formulas_tell_what_is_sent_and_held(world, how, heads, dtype, backward):
    for found, cost in ranks.run(counted.count, how, *heads, dtype, backward, world=world):
        assert found["forward"] == (cost.bytes_forward, cost.messages_forward)
        assert found["both"] == (cost.bytes, cost.messages)
        assert 0.4 * cost.memory < found["memory"] < 1.3 * cost.memory


def test_auto_keeps_to_the_least_memory_of_all_ranks():
    """A ring has a message for each hop; all_to_all, which sends the least, has two."""
    assert ranks.run(counted.count_of_auto, False, world=4) == [2] * 4
    assert ranks.run(counted.count_of_auto, True, world=4) == [3] * 4
