"""check_transport: it passes what is right, and finds what is not, whoever sees it."""

import itertools
from dataclasses import replace

import pytest
import ranks
import torch
from xeflash.distributed import check, check_transport, transport


def right(group):
    before = replace(transport.traffic)
    told = []
    found = check_transport(group, sizes=(1, 1023, 100_001), tell=told.append)
    assert transport.traffic == before
    return found.ok, found.wrong, len(found.cases), told, str(found)


@pytest.mark.parametrize("world", [2, 3])
def test_gloo_delivers(world):
    found = ranks.run(right, world=world)
    ok, wrong, cases, told, text = found[0]
    assert ok and not wrong and cases == 7 * 3 * 4 and len(told) == 7
    assert found == found[:1] * world
    assert text.endswith("everything was delivered") and "send_receive*" in text and "WRONG" not in text


def alone(group):
    return str(check_transport(group))


def test_one_rank_moves_nothing():
    assert ranks.run(alone, world=1)[0].endswith("a group of one rank moves nothing, and nothing was checked")


# ---- transports that corrupt --------------------------------------------------------------------


def changed(mover, change):
    def move(x, group):
        wait = mover(x, group)
        return lambda: change(wait(), group)

    return move


calls = itertools.count()


def last_element(got, group):
    """On one rank, of long messages, now and then."""
    if group.rank() == 1 and got.numel() > 1000 and next(calls) % 3 == 2:
        got[-1] += 1
    return got


def shifted(got, group):
    return got.roll(1)


def swapped(got, group):
    """What came from others has the order of the ranks in reverse."""
    return got.view(group.size(), -1).flip(0).reshape(-1)


def late():
    """Of the message before: what a buffer that is used again shows."""
    old = {}

    def change(got, group):
        key = (got.numel(), got.dtype)
        before, old[key] = old.get(key, got), got.clone()
        return before

    return change


def fails(got, group):
    raise RuntimeError("no such call")


CORRUPT = {"last": last_element, "shifted": shifted, "swapped": swapped, "late": late, "fails": fails}


def corrupted(group, direction, kind, sizes):
    """With one more transport, which is taken away again, as the process serves other tests."""
    change = CORRUPT[kind]
    known = dict(transport._movers[direction])
    mover = changed(known["functional"], change() if kind == "late" else change)
    transport.register_transport(direction, kind, mover)
    before = transport.use_transport(**{direction: kind})
    try:
        return check_transport(group, sizes=sizes)
    finally:
        transport._movers[direction] = known
        transport.use_transport(**before)


def find(direction, kind, sizes=(7, 1023), world=2):
    found = ranks.run(corrupted, direction, kind, sizes, world=world)
    assert found == found[:1] * world  # all ranks know the same
    assert not found[0].ok and {(case.direction, case.transport) for case in found[0].wrong} == {(direction, kind)}
    return found[0]


@pytest.mark.parametrize("direction", transport.DIRECTIONS)
def test_an_element_on_one_rank_is_found(direction):
    found = find(direction, "last")
    assert {case.elements for case in found.wrong} == {1023}
    for case in found.wrong:
        fault = case.fault
        assert (fault.rank, fault.index) == (1, 1022)
        of = {"all_gather": 1, "all_to_all": 1, "ring": 0}[direction]
        to = 1 if direction == "all_to_all" else 0
        assert fault.of_rank == of and fault.got == fault.want + 1
        every = [check.pattern(1023, torch.float32, of, to, n)[1022].item() for n in range(check.MOVES)]
        assert fault.want in every and 0 < case.wrong < case.messages
    text = str(found)
    right = "send_receive" if direction == "ring" else "functional"
    assert "WRONG" in text and f"use_transport({direction}='{right}'), or XEFLASH_TRANSPORT={direction}={right}" in text
    assert found.right(direction)[0] == right and "last" not in found.right(direction)


@pytest.mark.parametrize("direction", transport.DIRECTIONS)
@pytest.mark.parametrize("kind", ["shifted", "late"])
def test_shifted_and_old_data_is_found(direction, kind):
    found = find(direction, kind)
    assert {case.dtype for case in found.wrong} == {"float32", "bfloat16", "float16", "uint8"}
    assert {case.elements for case in found.wrong} == {7, 1023}


@pytest.mark.parametrize("direction", ["all_gather", "all_to_all"])
def test_messages_of_other_ranks_are_found(direction):
    found = find(direction, "swapped", sizes=(1, 7), world=3)
    assert all(case.wrong == case.messages * 2 // 3 for case in found.wrong)  # rank 1 of 3 stays in its place


def test_an_error_on_all_ranks_is_told_and_ends_nothing():
    found = find("ring", "fails")
    assert len(found.cases) == 8 * 2 * 4 and not found.stopped
    assert (
        "ring by 'fails', 7 x float32: rank 0: RuntimeError: no such call; rank 1: RuntimeError: no such call"
        in str(found)
    )
