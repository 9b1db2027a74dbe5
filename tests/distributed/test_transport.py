"""Each transport in each direction: what arrives, what is counted, what is refused, and how one is chosen."""

from dataclasses import replace

import pytest
import ranks
import torch
import torch.distributed as dist
from xeflash.distributed import register_transport, transport, use_transport

NAMES = ("float32", "bfloat16", "float16", "uint8", "float64", "int64", "bool", "float8_e4m3fn", "complex64")


def message(rank, dtype, shape):
    """A rank's own, whose rows do not lie side by side."""
    size = torch.Size(shape).numel()
    flat = (torch.arange(size) + 31 * rank).remainder(101).to(dtype)
    return flat.view(*shape[:-2], shape[-1], shape[-2]).mT


def equal(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and a.tolist() == b.tolist()


def exchange(group, names, shape):
    """Through every transport; the names of what did not arrive."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    wrong = []
    for name in names:
        made = [message(r, getattr(torch, name), (world, *shape)) for r in range(world)]
        mine, before = made[rank], made[rank - 1]
        for way in transport.transports("all_gather"):
            use_transport(all_gather=way)
            got = transport.all_gather(mine, group)
            wrong += [f"all_gather {way} {name}"] * (not equal(got, torch.stack([x.clone() for x in made])))
        for way in transport.transports("all_to_all"):
            use_transport(all_to_all=way)
            got = transport.all_to_all(mine, group)
            wrong += [f"all_to_all {way} {name}"] * (not equal(got, torch.stack([x[rank].clone() for x in made])))
        for way in transport.transports("ring"):
            use_transport(ring=way)
            first, second = transport.Ring(group), transport.Ring(group)
            first.start(mine)
            second.start(mine[:1])  # two at once, of different sizes
            got = first.wait(), second.wait()
            wrong += [f"ring {way} {name}"] * (not (equal(got[0], before) and equal(got[1], before[:1])))
    use_transport(all_gather="default", all_to_all="default", ring="default")
    return wrong


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("shape", [(5, 3), (1, 1), (0, 3)], ids=str)
def test_every_type_arrives(world, shape):
    assert ranks.run(exchange, NAMES, shape, world=world) == [[]] * world


def count(group, elements):
    x, counts = torch.zeros(4, elements), []
    ring = transport.Ring(group)
    for call in (
        lambda: transport.all_gather(x, group),
        lambda: transport.all_to_all(x, group),
        lambda: (ring.start(x), ring.wait()),
    ):
        before = replace(transport.traffic)
        call()
        after = transport.traffic
        assert after.seconds_waited >= before.seconds_waited
        counts.append((after.bytes - before.bytes, after.messages - before.messages))
    return counts


def test_what_others_get_is_counted():
    size = 4 * 10 * 4
    assert ranks.run(count, 10) == [[(3 * size, 1), (3 * size // 4, 1), (size, 1)]] * 4
    assert ranks.run(count, 0) == [[(0, 0)] * 3] * 4


def keep(group):
    """Without gradients, and never the tensor itself, of a group of one rank too."""
    x = torch.ones(dist.get_world_size(group), 2, requires_grad=True)
    ring = transport.Ring(group)
    ring.start(x)
    found = [transport.all_gather(x, group), transport.all_to_all(x, group), ring.wait()]
    return [(y.requires_grad, y.data_ptr() == x.data_ptr()) for y in found]


@pytest.mark.parametrize("world", [1, 2])
def test_results_are_new_and_without_gradients(world):
    assert ranks.run(keep, world=world) == [[(False, False)] * 3] * world


def misuse(group):
    ring, said = transport.Ring(group), []
    calls = [
        lambda: transport.all_to_all(torch.ones(3, 1), group),
        lambda: transport.all_to_all(torch.tensor(1.0), group),
        lambda: ring.wait(),
        lambda: (ring.start(torch.ones(1)), ring.start(torch.ones(1))),
        lambda: transport.all_gather(torch.ones(1), dist.GroupMember.NON_GROUP_MEMBER),
    ]
    for call in calls:
        with pytest.raises((ValueError, RuntimeError)) as error:
            call()
        said.append(str(error.value))
    ring.wait()
    return said


def test_misuse_is_refused():
    said = ranks.run(misuse, world=2)
    assert said[0] == said[1]
    assert said[0][0] == "all_to_all: x must have a row per rank (2), got shape (3, 1)"
    assert said[0][1] == "all_to_all: x must have a row per rank (2), got shape ()"
    assert said[0][2] == "Ring.wait: start() must come before it"
    assert said[0][3] == "Ring.start: wait() must come between two calls"
    assert said[0][4].startswith("all_gather: group must be a group that this process is a member of, got ")


def test_a_group_must_be_there():
    with pytest.raises(RuntimeError, match="all_gather: torch.distributed must be initialised"):
        transport.all_gather(torch.ones(1))


def chosen():
    return [transport.chosen_transport(direction) for direction in transport.DIRECTIONS]


def test_transports_are_chosen_by_call_else_by_variable(monkeypatch):
    monkeypatch.delenv("XEFLASH_TRANSPORT", raising=False)
    assert chosen() == ["functional", "functional", "send_receive"]
    monkeypatch.setenv("XEFLASH_TRANSPORT", "all_gather=plain, ring=functional")
    assert chosen() == ["plain", "functional", "functional"]
    before = use_transport(all_gather="functional", all_to_all="plain")
    assert before == dict.fromkeys(transport.DIRECTIONS, "default")
    assert chosen() == ["functional", "plain", "functional"]
    assert use_transport(**before) == {"all_gather": "functional", "all_to_all": "plain", "ring": "default"}
    assert chosen() == ["plain", "functional", "functional"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ring=carrier", "ring must be one of send_receive, functional, plain, default, got 'carrier'"),
        ("plain", "it must be pairs such as all_gather=plain with the names all_gather, all_to_all, ring, got 'plain'"),
        ("rings=plain", "it must be pairs such as .*, got 'rings=plain'"),
    ],
)
def test_a_wrong_choice_is_refused(monkeypatch, text, said):
    monkeypatch.setenv("XEFLASH_TRANSPORT", text)
    with pytest.raises(ValueError, match=f"^XEFLASH_TRANSPORT: {said}$"):
        chosen()


def test_names_are_checked():
    with pytest.raises(
        ValueError, match="^use_transport: all_gather must be one of functional, plain, default, got 'x'$"
    ):
        use_transport(ring="plain", all_gather="x")
    assert transport.chosen_transport("ring") == "send_receive"  # nothing was chosen
    with pytest.raises(ValueError, match="^register_transport: direction must be one of .*, got 'up'$"):
        register_transport("up", "x", print)
    with pytest.raises(ValueError, match="^register_transport: name must not be 'default'$"):
        register_transport("ring", "default", print)
