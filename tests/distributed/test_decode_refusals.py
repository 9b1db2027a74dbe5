"""What a call on a cache over ranks refuses: by name, on all ranks, and before anything is written."""

import pytest
import ranks
import torch
import torch.distributed as dist
from xeflash.distributed import agree
from xeflash.distributed.decode import context_parallel_with_kvcache
from xeflash.distributed.fill import fill_sharded_cache
from xeflash.distributed.owners import local_lengths, local_room


def arrays(rows=1, new=1, batch=2, room=64, dim=64):
    q, k, v = (torch.randn(batch, n, h, dim) for n, h in ((rows, 4), (new, 2), (new, 2)))
    k_cache, v_cache = torch.randn(2, batch, room, 2, dim)
    return {"q": q, "k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v}


def call(group, sizes, changes, changed_rank=None):
    """The message of a call, and whether its caches are as they were; changes are for one rank, or all."""
    given = {**arrays(**sizes), "cache_seqlens": 20}
    if changed_rank is None or dist.get_rank(group) == changed_rank:
        given |= changes
    before = given["k_cache"].clone(), given["v_cache"].clone()
    text = ""
    try:
        context_parallel_with_kvcache(**given, group=group)
    except (TypeError, ValueError, NotImplementedError) as error:
        text = f"{type(error).__name__}: {error}"
    same = all(torch.equal(x, y) for x, y in zip(before, (given["k_cache"], given["v_cache"]), strict=True))
    return text, same


CASES = [
    ({}, {"owners": "rows"}, "ValueError: owners must be 'pages' or 'ranges', got 'rows'"),
    ({}, {"page": 0}, "ValueError: page must be positive, got 0"),
    ({}, {"page": 2.5}, "TypeError: page must be an int, got float"),
    ({}, {"room": 8}, "ValueError: room must be None with owners='pages', got 8"),
    ({}, {"page": 8, "owners": "ranges"}, "ValueError: page must be None with owners='ranges', got 8"),
    ({}, {"room": 65, "owners": "ranges"}, "ValueError: room must be at most the rows of the cache (64), got 65"),
    (
        {},
        {"owners": "ranges", "block_table": torch.zeros(2, 1, dtype=torch.int32)},
        "ValueError: room must say how many positions a rank's range has, as a block_table may grow, got None",
    ),
    ({}, {"cache_seqlens": None}, "TypeError: cache_seqlens must be an int or an int32 tensor, got NoneType"),
    ({}, {"cache_seqlens": -1}, "ValueError: cache_seqlens must be 0 to 2^31 - 1, got -1"),
    ({}, {"cache_seqlens": torch.tensor([1, 2])}, "TypeError: cache_seqlens must be int32, got int64"),
    (
        {},
        {"cache_seqlens": torch.tensor([1], dtype=torch.int32)},
        "ValueError: cache_seqlens must have shape [2], got [1]",
    ),
    (
        {},
        {"cache_seqlens": torch.tensor([3, -4], dtype=torch.int32)},
        "ValueError: cache_seqlens must not be negative, got -4",
    ),
    ({}, {"cache_seqlens": 128}, "ValueError: k_cache must have rows for this rank's keys (65 of 129)"),
    (
        {},
        {"cache_seqlens": 128, "owners": "ranges"},
        "ValueError: cache_seqlens and the new keys must be at most 128, the positions that 2 ranges of 64 have, got 129",
    ),
    ({}, {"window_size": (5, 0)}, "NotImplementedError: window_size must come with owners='ranges', as it needs"),
    ({}, {"alibi_slopes": torch.ones(4)}, "NotImplementedError: alibi_slopes must come with owners='ranges'"),
    ({}, {"score_mod": "s - k_idx"}, "NotImplementedError: a score_mod of q_idx or k_idx must come with owners='ranges'"),
    (
        {"rows": 3},
        {"causal": True},
        "NotImplementedError: causal=True with more queries than new keys must come with owners='ranges'",
    ),
    ({}, {"k": None}, "ValueError: k and v must be given together"),
    ({}, {"v": torch.zeros(2, 1, 3, 64)}, "ValueError: v must have shape [2, 1, 2, 64], got [2, 1, 3, 64]"),
    ({}, {"k": torch.zeros(2, 1, 2, 64).half()}, "TypeError: k must have the dtype of q (torch.float32), got"),
    ({}, {"k_scale": 0.5}, "ValueError: k_scale must be None with a cache of torch.float32, got one"),
    (
        {},
        {"rotary_cos": torch.ones(20, 8), "rotary_sin": torch.ones(20, 8)},
        "ValueError: rotary_cos.rows must be at least the longest sequence (21), got 20",
    ),
    ({}, {"rotary_cos": torch.ones(99, 8)}, "TypeError: rotary_sin must be a torch tensor if the other one is, got"),
    ({}, {"q": torch.zeros(2, 1, 3, 64)}, "ValueError: k_cache.heads must divide q.heads (3), got 2"),
    ({}, {"q": torch.zeros(2, 1, 4, 64).requires_grad_()}, "NotImplementedError: q must not require grad"),
    ({}, {"block_table": torch.full((2, 2), 9, dtype=torch.int32)}, "ValueError: block_table must be 0 to 1, got 9 at"),
    (  # of the new keys, which are written into a page that is not there
        {"rows": 2, "new": 2},
        {"block_table": torch.tensor([[0, -1], [1, -1]], dtype=torch.int32), "causal": True, "cache_seqlens": 127},
        "ValueError: block_table must be 0 to 1, got -1 at",
    ),
]  # fmt: skip


@pytest.mark.parametrize("sizes, changes, message", CASES, ids=[message[:60] for *_, message in CASES])
def test_refused_by_name_on_all_ranks(sizes, changes, message):
    kind, _, text = message.partition(": ")
    for got, is_unchanged in ranks.outcomes(call, sizes, changes, world=2):
        assert got.startswith(f"{kind}: context_parallel_with_kvcache: ") and text in got, got
        assert is_unchanged


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"cache_seqlens": 21},
            "cache_seqlens must be equal on all ranks, got cache_seqlens 20 on rank 0, 21 on rank 1",
        ),
        ({"page": 8}, "page must be equal on all ranks, got page 16 on rank 0, 8 on rank 1"),
        ({"softcap": 3.0}, "softcap must be equal on all ranks, got softcap None on rank 0, 3.0 on rank 1"),
        ({"k": None, "v": None}, "must be equal on all ranks"),
        ({"page": 0}, "page must be positive, got 0"),
    ],
)
def test_what_one_rank_has_alone_is_refused_by_all(changes, message):
    for got, is_unchanged in ranks.outcomes(call, {}, changes, 1, world=3):
        assert message in got and is_unchanged


def unchecked(group):
    before = agree.check_calls(False)
    try:
        given = {**arrays(), "cache_seqlens": 20}
        context_parallel_with_kvcache(**given, group=group)
        return agree._calls.total()
    finally:
        agree.check_calls(before)


def test_the_check_can_be_switched_off():
    found = [ranks.run(unchecked, world=2) for _ in range(2)]
    assert found[0] == found[1]


def sizes_of(group):
    lengths = torch.tensor([0, 1, 33, 100], dtype=torch.int32)
    return (
        local_lengths(lengths, page=8, group=group).tolist(),
        local_lengths(100, page=8, rank=1, group=group),
        local_lengths(lengths, owners="ranges", room=40, group=group).tolist(),
        [local_room(n, page=8, group=group) for n in (1, 48, 49)],
        local_room(100, owners="ranges", group=group),
    )


def test_lengths_and_rooms():
    found = ranks.run(sizes_of, world=3)
    assert [x[0] for x in found] == [[0, 1, 16, 36], [0, 0, 9, 32], [0, 0, 8, 32]]
    assert [x[2] for x in found] == [[0, 1, 33, 40], [0, 0, 0, 40], [0, 0, 0, 20]]
    assert {str(x[1::2]) for x in found} == {"(32, [8, 16, 24])"} and found[0][4] == 34


def fill(group, changes):
    k_cache, v_cache = torch.zeros(2, 2, 64, 2, 64)
    given = {"k": torch.ones(2, 20, 2, 64), "v": torch.ones(2, 20, 2, 64), "k_cache": k_cache, "v_cache": v_cache}
    try:
        fill_sharded_cache(**{**given, **changes}, group=group)
    except (TypeError, ValueError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}", int(k_cache.sum())
    return "", int(k_cache.sum())


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"shards": "x"}, "ValueError: fill_sharded_cache: shards must be 'zigzag' or 'ranges', got 'x'"),
        ({"k": torch.ones(2, 21, 2, 64), "v": torch.ones(2, 21, 2, 64)}, "k.shape[1] must be a multiple of 2"),
        ({"cache_seqlens": 41}, "ValueError: fill_sharded_cache: cache_seqlens must be at most 40, the rows of all"),
        ({"v": torch.ones(2, 20, 1, 64)}, "ValueError: fill_sharded_cache: v must have shape [2, 20, 2, 64]"),
        ({"owners": "ranges", "room": 16}, "cache_seqlens and the new keys must be at most 32"),
    ],
)
def test_filling_refuses(changes, message):
    for got, total in ranks.outcomes(fill, changes, world=2):
        assert message in got and total == 0


def test_filling_leaves_padding_out():
    (_, first), (_, second) = ranks.run(fill, {"cache_seqlens": torch.tensor([17, 0], dtype=torch.int32)}, world=2)
    assert (first, second) == (16 * 128, 128)
