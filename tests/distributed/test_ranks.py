"""The harness itself: what a rank returns, raises or does not live to say."""

import os
import time

import ranks
import torch
import torch.distributed as dist


def sums(group, number):
    x = torch.tensor([float(dist.get_rank(group) + number)])
    dist.all_reduce(x, group=group)
    return dist.get_rank(group), x.item()


def fails(group):
    raise ValueError(f"of rank {dist.get_rank(group)}")


def dies(group, rank):
    if dist.get_rank(group) == rank:
        os.kill(os.getpid(), 9)


def sleeps(group, rank):
    if dist.get_rank(group) == rank:
        time.sleep(100)
    dist.all_reduce(torch.zeros(1), group=group)


def test_each_rank_answers():
    for world in (1, 2, 3, 4):
        total = sum(range(world)) + world * 10.0
        assert ranks.run(sums, 10, world=world) == [(rank, total) for rank in range(world)]


def test_what_ranks_raise_is_told():
    found = ranks.outcomes(fails, world=2)
    assert [(x.kind, x.text) for x in found] == [("ValueError", "of rank 0"), ("ValueError", "of rank 1")]
    assert ranks.run(sums, 0, world=2)  # the same processes


def test_a_rank_that_dies_is_replaced():
    assert ranks.outcomes(dies, 1, world=2) == [None, ranks.Died(-9)]
    assert ranks.run(sums, 0, world=4)


def test_a_group_of_a_test_gives_up_in_its_time():
    with ranks.Ranks(2, seconds=1.0, patience=4.0) as mine:
        mine.run(dies, -1)  # all are there
        first, second = mine.outcomes(sleeps, 1)
        assert first.kind == "RuntimeError" and "imed out" in first.text
        assert second == ranks.Died(-9, late=True)
