"""Transports, which move tensors between the ranks of a group, and counts of what they move.

There are three directions: ``all_gather``, ``all_to_all`` and ``ring``. Each can go by several transports, which move
the same bytes by other calls of torch. ``use_transport`` chooses among them, as a backend may be right in one and wrong
in another; ``check_transport`` finds out which. Gradients do not pass: who calls these has gradients of its own.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

Group: TypeAlias = dist.ProcessGroup | None  # None: the default group
Wait = Callable[[], Tensor]
# Starts sending a flat tensor; the caller keeps it alive until the returned Wait is done.
Mover = Callable[[Tensor, dist.ProcessGroup], Wait]

VARIABLE = "XEFLASH_TRANSPORT"
DEFAULT = "default"
SENT = (torch.float32, torch.bfloat16, torch.float16, torch.uint8)  # tensors of other types travel as bytes


@dataclass
class Traffic:
    """The bytes that this process has sent to others, and the time that it stood still for what they sent.

    A message is a call that sent anything. On xpu a stream waits, as a rule, and not the process: that is not counted.
    """

    bytes: int = 0
    messages: int = 0
    seconds_waited: float = 0.0


traffic = Traffic()


# ---- transports ---------------------------------------------------------------------------------


def _functional_gather(x: Tensor, group: dist.ProcessGroup) -> Wait:
    got = torch.ops._c10d_functional.all_gather_into_tensor(x, group.size(), group.group_name)
    return functools.partial(torch.ops._c10d_functional.wait_tensor, got)


def _plain_gather(x: Tensor, group: dist.ProcessGroup) -> Wait:
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # torch 2.13 renamed it
    got = x.new_empty(group.size() * x.numel())
    return _after([gather(got, x, group=group, async_op=True)], got)


def _functional_exchange(x: Tensor, to: list[int], of: list[int], group: dist.ProcessGroup) -> Wait:
    got = torch.ops._c10d_functional.all_to_all_single(x, of, to, group.group_name)
    return functools.partial(torch.ops._c10d_functional.wait_tensor, got)


def _plain_exchange(x: Tensor, to: list[int], of: list[int], group: dist.ProcessGroup) -> Wait:
    got = torch.empty_like(x)
    return _after([dist.all_to_all_single(got, x, of, to, group=group, async_op=True)], got)


Exchange = Callable[[Tensor, list[int], list[int], dist.ProcessGroup], Wait]


def _to_all(exchange: Exchange) -> Mover:
    def move(x: Tensor, group: dist.ProcessGroup) -> Wait:
        sizes = [x.numel() // group.size()] * group.size()
        return exchange(x, sizes, sizes, group)

    return move


def _to_next(exchange: Exchange) -> Mover:
    """Makes a ring of an all-to-all in which each rank has something for one other rank alone."""

    def move(x: Tensor, group: dist.ProcessGroup) -> Wait:
        rank, ranks = group.rank(), group.size()
        to, of = [0] * ranks, [0] * ranks
        to[(rank + 1) % ranks] = of[(rank - 1) % ranks] = x.numel()
        return exchange(x, to, of, group)

    return move


def _send_and_receive(x: Tensor, group: dist.ProcessGroup) -> Wait:
    rank, peers = group.rank(), dist.get_process_group_ranks(group)  # which are ranks among all processes
    got = torch.empty_like(x)
    operations = [
        dist.P2POp(dist.isend, x, peers[(rank + 1) % len(peers)], group),
        dist.P2POp(dist.irecv, got, peers[(rank - 1) % len(peers)], group),
    ]
    if rank % 2:  # where a send ends no sooner than its receive begins, ranks that all send first would never end
        operations.reverse()
    return _after(dist.batch_isend_irecv(operations), got)


def _after(works: list[dist.Work], got: Tensor) -> Wait:
    def wait() -> Tensor:
        for work in works:
            work.wait()
        return got

    return wait


_movers: dict[str, dict[str, Mover]] = {
    "all_gather": {"functional": _functional_gather, "plain": _plain_gather},
    "all_to_all": {"functional": _to_all(_functional_exchange), "plain": _to_all(_plain_exchange)},
    "ring": {
        "send_receive": _send_and_receive,
        "functional": _to_next(_functional_exchange),
        "plain": _to_next(_plain_exchange),
    },
}
DIRECTIONS = tuple(_movers)
_defaults = {"all_gather": "functional", "all_to_all": "functional", "ring": "send_receive"}


# ---- choice -------------------------------------------------------------------------------------


_chosen = dict.fromkeys(DIRECTIONS, DEFAULT)


def transports(direction: str) -> list[str]:
    """Returns the names of the transports that can be chosen for a direction."""
    return list(_movers[direction])


def register_transport(direction: str, name: str, mover: Mover) -> None:
    """Adds a transport of this name to a direction, or replaces it.

    ``mover(x, group)`` starts moving x, and returns a function that waits for the result; `direction` is "all_gather",
    "all_to_all" or "ring", `name` what ``use_transport`` calls it.

    x is flat, contiguous and not empty, and lives until then. Of an all-gather the result is ranks times as long as x,
    in their order; in an all-to-all, x and the result have as many elements for each rank; a ring's is as long as x.
    """
    if direction not in _movers:
        raise ValueError(f"register_transport: direction must be one of {', '.join(DIRECTIONS)}, got {direction!r}")
    if name == DEFAULT:
        raise ValueError(f"register_transport: name must not be {DEFAULT!r}")
    _movers[direction][name] = mover


def use_transport(
    *, all_gather: str | None = None, all_to_all: str | None = None, ring: str | None = None
) -> dict[str, str]:
    """Chooses how this process moves tensors from now on; all ranks of a group must choose alike.

    Args:
        all_gather: "functional" (torch's functional collectives), "plain" (torch.distributed's own); "default" is what
            the variable XEFLASH_TRANSPORT says ("all_gather=plain,ring=functional"), else "functional". None changes
            nothing.
        all_to_all: the same.
        ring: "send_receive" (the default), or "functional" and "plain", which go through an all-to-all.

    Returns:
        The choices before, which another call takes back: ``use_transport(**before)``.
    """
    before = dict(_chosen)
    wanted = {"all_gather": all_gather, "all_to_all": all_to_all, "ring": ring}
    new = {direction: name for direction, name in wanted.items() if name is not None}
    for direction, name in new.items():
        if name != DEFAULT:
            _check_name("use_transport", direction, name)
    _chosen.update(new)
    return before


def chosen_transport(direction: str) -> str:
    """Returns the name of the transport by which this direction goes now."""
    if _chosen[direction] != DEFAULT:
        return _chosen[direction]
    name = _read_variable(os.environ.get(VARIABLE, "")).get(direction, DEFAULT)
    if name == DEFAULT:
        return _defaults[direction]
    _check_name(VARIABLE, direction, name)
    return name


def _check_name(where: str, direction: str, name: str) -> None:
    if name not in _movers[direction]:
        known = ", ".join((*_movers[direction], DEFAULT))
        raise ValueError(f"{where}: {direction} must be one of {known}, got {name!r}")


@functools.cache
def _read_variable(text: str) -> dict[str, str]:
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    for direction, equals, _ in pairs:
        if direction not in _movers or not equals:
            rule = f"must be pairs such as all_gather=plain with the names {', '.join(DIRECTIONS)}"
            raise ValueError(f"{VARIABLE}: it {rule}, got {text!r}")
    return {direction: name for direction, _, name in pairs}


# ---- what the ways of attention call ------------------------------------------------------------


def all_gather(x: Tensor, group: Group = None) -> Tensor:
    """Gathers x of every rank, in their order: (ranks, *x.shape)."""
    return start("all_gather", x, members_of("all_gather", group))()


def all_to_all(x: Tensor, group: Group = None) -> Tensor:
    """Sends x[r] of x (ranks, ...) to rank r; entry r of the result came from rank r."""
    members = members_of("all_to_all", group)
    if not x.ndim or x.shape[0] != members.size():
        raise ValueError(f"all_to_all: x must have a row per rank ({members.size()}), got shape {tuple(x.shape)}")
    return start("all_to_all", x, members)()


class Ring:
    """Sends a tensor to the next rank and receives one like it from the rank before, while other work goes on."""

    def __init__(self, group: Group = None) -> None:
        self._group = members_of("Ring", group)
        self._wait: Wait | None = None

    def start(self, x: Tensor) -> None:
        """Sends x, which must not change until ``wait``."""
        if self._wait is not None:
            raise RuntimeError("Ring.start: wait() must come between two calls")
        self._wait = start("ring", x, self._group)

    def wait(self) -> Tensor:
        """Waits for the tensor that `start` began to receive, and returns it."""
        if self._wait is None:
            raise RuntimeError("Ring.wait: start() must come before it")
        wait, self._wait = self._wait, None
        return wait()


def members_of(function: str, group: Group) -> dist.ProcessGroup:
    """Returns the group itself; this process has to be a member."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            f"{function}: torch.distributed must be initialised, by torch.distributed.init_process_group"
        )
    members = dist.group.WORLD if group is None else group
    if not isinstance(members, dist.ProcessGroup):
        raise ValueError(f"{function}: group must be a group that this process is a member of, got {group!r}")
    return members


def start(direction: str, x: Tensor, group: dist.ProcessGroup, transport: str | None = None) -> Wait:
    """Starts moving x in this direction, by the chosen transport unless one is named; returns a Wait for the result."""
    ranks = group.size()
    shape = (ranks, *x.shape) if direction == "all_gather" else x.shape
    flat = x.detach().contiguous().view(-1)
    if ranks == 1 or not x.numel():  # there is nothing that others have and this rank has not
        moved = flat.clone().view(shape)
        return lambda: moved
    kept = [flat if x.dtype in SENT else flat.view(torch.uint8)]  # until it has arrived
    nbytes = x.numel() * x.element_size()
    traffic.bytes += {"all_gather": (ranks - 1) * nbytes, "all_to_all": nbytes - nbytes // ranks, "ring": nbytes}[
        direction
    ]
    traffic.messages += 1
    begin = time.perf_counter()
    finish = _movers[direction][transport or chosen_transport(direction)](kept[0], group)
    spent = time.perf_counter() - begin  # a transport may stand still here already

    def wait() -> Tensor:
        begin = time.perf_counter()
        got = finish()
        traffic.seconds_waited += spent + time.perf_counter() - begin
        kept.clear()
        return got.view(x.dtype).view(shape)

    return wait
