"""A check that a group's transports deliver what was sent: known patterns go through each of them.

Backends are known to corrupt data without an error: XCCL on Arc Pro B60 in ``all_to_all_single`` and
``batch_isend_irecv``. An attention over ranks is wrong then, too, and nothing says so but this.
"""

from __future__ import annotations

import functools
import itertools
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from xeflash.distributed.transport import (
    DIRECTIONS,
    SENT,
    VARIABLE,
    Group,
    Wait,
    chosen_transport,
    members_of,
    start,
    traffic,
    transports,
)

SIZES = (1, 7, 256, 1023, 65_537, 1 << 20)
IN_A_ROW, MOVES = 3, 6
_PRIME = 251  # numbers below it are exact in every type


@dataclass(frozen=True)
class Fault:
    """The first wrong element of a message: its place, its sender, and what the rank got."""

    rank: int
    of_rank: int
    index: int
    got: float
    want: float

    def __str__(self) -> str:
        return f"the first at rank {self.rank}, element {self.index} of what rank {self.of_rank} sent: " + (
            f"got {self.got:g}, want {self.want:g}"
        )


@dataclass(frozen=True)
class Case:
    """Messages of one size and type through one transport, and the outcome on all ranks."""

    direction: str
    transport: str
    dtype: str
    elements: int  # elements of a message to one rank
    messages: int = 0
    wrong: int = 0
    fault: Fault | None = None
    error: str = ""

    @property
    def ok(self) -> bool:
        """Returns whether all messages were delivered."""
        return not (self.wrong or self.error)

    def __str__(self) -> str:
        text = f"{self.direction} by {self.transport!r}, {self.elements} x {self.dtype}: "
        if self.error:
            return text + self.error
        return text + (f"{self.wrong} of {self.messages} messages are wrong; {self.fault}" if self.fault else "ok")


@dataclass(frozen=True)
class TransportCheck:
    """The findings of ``check_transport``, the same on all ranks; it prints as a table."""

    ranks: int
    backend: str
    device: str
    cases: tuple[Case, ...]
    stopped: str = ""  # why cases are missing
    in_use: dict[str, str] = field(default_factory=dict)  # direction: transport

    @property
    def ok(self) -> bool:
        """Returns whether every transport delivered everything."""
        return not self.stopped and all(case.ok for case in self.cases)

    @property
    def wrong(self) -> tuple[Case, ...]:
        """Returns the cases in which a transport did not deliver."""
        return tuple(case for case in self.cases if not case.ok)

    def right(self, direction: str) -> list[str]:
        """Returns the transports that delivered everything in this direction."""
        cases = [case for case in self.cases if case.direction == direction]
        names = dict.fromkeys(case.transport for case in cases)
        return [n for n in names if not self.stopped and all(case.ok for case in cases if case.transport == n)]

    def __str__(self) -> str:
        types = [str(dtype).removeprefix("torch.") for dtype in SENT]
        rows: dict[tuple[str, str, int], dict[str, str]] = {}
        for case in self.cases:
            row = rows.setdefault((case.direction, case.transport, case.elements), {})
            row[case.dtype] = "ok" if case.ok else "error" if case.error else "WRONG"
        lines = [f"{self.ranks} ranks, {self.backend}, {self.device}"]
        lines += [f"{'direction':<11}{'transport':<15}{'elements':>9}  " + "".join(f"{t:<10}" for t in types)]
        for (direction, transport, elements), row in rows.items():
            used = "*" if self.in_use.get(direction) == transport else ""
            states = "".join(f"{row.get(t, '-'):<10}" for t in types)
            lines.append(f"{direction:<11}{transport + used:<15}{elements:>9}  {states}".rstrip())
        lines.append("* is in use")
        return "\n".join([*lines, *map(str, self.wrong), *self._advice()])

    def _advice(self) -> list[str]:
        if self.stopped:
            return [f"stopped: {self.stopped}"]
        if self.ranks == 1:
            return ["a group of one rank moves nothing, and nothing was checked"]
        lines = []
        for direction, name in self.in_use.items():
            right = self.right(direction)
            if name not in right and right:
                lines.append(
                    f"{direction} by {name!r} is in use and wrong; {right[0]!r} is right: "
                    f"use_transport({direction}={right[0]!r}), or {VARIABLE}={direction}={right[0]}"
                )
            elif name not in right:
                lines.append(f"{direction}: no transport is right, and what uses it is not either")
        return lines or ["everything was delivered" if self.ok else "what is in use is right"]


def check_transport(
    group: Group = None,
    *,
    device: torch.device | str | None = None,
    sizes: Sequence[int] = SIZES,
    tell: Callable[[str], None] | None = None,
) -> TransportCheck:
    """Sends known patterns through each transport in each direction, and compares what comes, bit by bit.

    All ranks of the group have to call it. Messages follow each other without a pause, lie beside computation of the
    same device, and travel two at once, as in attention. A wrong element raises no error: look at ``ok``, or print the
    result.

    >>> print(xeflash.distributed.check_transport())

    Args:
        group: None is the default group.
        device: where tensors are; None is this process's current xpu where the group has a backend of its own for
            xpu, else the CPU.
        sizes: elements of messages to one rank.
        tell: is called with the name of each transport before its check, as a transport may hang.
    """
    members = members_of("check_transport", group)
    for size in sizes:
        if size < 1:
            raise ValueError(f"check_transport: sizes must be positive, got {size}")
    place = _device(members) if device is None else torch.device(device)
    store, before = _store(members), (traffic.bytes, traffic.messages, traffic.seconds_waited)
    cases: list[Case] = []
    stopped = ""
    ways = [(d, t) for d in DIRECTIONS for t in transports(d)] if members.size() > 1 else []
    for (direction, transport), elements, dtype in itertools.product(ways, sizes, SENT):
        if tell is not None and (elements, dtype) == (sizes[0], SENT[0]):
            tell(f"{direction} by {transport!r}")
        name = str(dtype).removeprefix("torch.")
        mine = _try(direction, transport, dtype, elements, members, place)
        found = _gathered(store, str(len(cases)), members, mine)
        errors = [f"rank {rank}: {error}" for rank, (_, _, error) in enumerate(found) if error]
        faults = [fault for _, fault, _ in found if fault]
        wrong = sum(number for number, _, _ in found)
        messages = MOVES * len(found) * (1 if direction == "ring" else len(found))
        cases.append(
            Case(
                direction, transport, name, elements, messages, wrong, faults[0] if faults else None, "; ".join(errors)
            )
        )
        if errors and len(errors) < len(found):
            stopped = "some ranks raised an error and others did not, and their messages may not fit any more"
            break
    traffic.bytes, traffic.messages, traffic.seconds_waited = before
    _pattern.cache_clear()
    in_use = {direction: chosen_transport(direction) for direction in DIRECTIONS}
    backend = dist.get_backend(members)
    return TransportCheck(members.size(), backend, str(place.type), tuple(cases), stopped, in_use)


def _device(group: dist.ProcessGroup) -> torch.device:
    backends = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
    if torch.xpu.is_available() and backends.get("xpu", "gloo") != "gloo":  # gloo moves tensors of the host
        return torch.device("xpu", torch.xpu.current_device())
    return torch.device("cpu")


def _store(group: dist.ProcessGroup) -> dist.Store:
    """Returns a store in which ranks tell each other results, apart from the transports that are checked."""
    store = dist.PrefixStore("xeflash/check_transport", dist.distributed_c10d._get_process_group_store(group))
    number = (store.add("calls", 1) - 1) // group.size()  # no rank begins another call before all have begun this one
    return dist.PrefixStore(str(number), store)


def _gathered(store: dist.Store, name: str, group: dist.ProcessGroup, mine: Any) -> list[Any]:
    """Returns `mine` of each rank."""
    store.set(f"{name}/{group.rank()}", pickle.dumps(mine))
    return [pickle.loads(store.get(f"{name}/{rank}")) for rank in range(group.size())]


# ---- patterns -----------------------------------------------------------------------------------


@functools.lru_cache(maxsize=2)
def _places(elements: int) -> tuple[Tensor, Tensor]:
    """Returns two hashed numbers for each place, so that shifted data differs in nearly all places."""
    hashed = (torch.arange(elements, dtype=torch.int64) * 2_654_435_761 + 12_345) >> 7
    return (hashed % _PRIME).int(), (hashed // _PRIME % (_PRIME - 1) + 1).int()


@functools.lru_cache(maxsize=256)  # transports and types have the same ones
def _pattern(elements: int, of: int, to: int, number: int) -> Tensor:
    base, step = _places(elements)
    salt = (
        (number * 64 + to) * 61 + of * 7
    ) % _PRIME  # the place's step is no multiple of the prime: all places differ
    return ((base + step * salt) % _PRIME).to(torch.uint8)


def pattern(elements: int, dtype: torch.dtype, of: int, to: int, number: int) -> Tensor:
    """Returns what rank `of` sends to rank `to` as its message of this number."""
    return _pattern(elements, of, to, number).to(dtype)


# ---- one case -----------------------------------------------------------------------------------


def _try(
    direction: str, transport: str, dtype: torch.dtype, elements: int, group: dist.ProcessGroup, device: torch.device
) -> tuple[int, Fault | None, str]:
    """Tries one transport; returns (messages that came wrong, the first fault, an error) on this rank."""
    rank, ranks = group.rank(), group.size()
    peers = [(rank - 1) % ranks] if direction == "ring" else list(range(ranks))

    def sent(number: int) -> Tensor:
        if direction == "all_to_all":
            x = torch.stack([pattern(elements, dtype, rank, to, number) for to in range(ranks)])
        else:
            x = pattern(elements, dtype, rank, 0, number)
        return x.to(device)

    def begin(number: int) -> Wait:
        return start(direction, inputs[number].clone(), group, transport)  # clone: who sends has just been written

    try:
        inputs = [sent(number) for number in range(MOVES)]
        got, computed = _move(begin, device)
        wrong, fault = 0, None
        for number, whole in enumerate(got):
            for of, x in zip(peers, whole.cpu().view(len(peers), elements), strict=True):
                want = pattern(elements, dtype, of, rank if direction == "all_to_all" else 0, number)
                if not torch.equal(x.view(torch.uint8), want.view(torch.uint8)):
                    wrong += 1
                    fault = fault or _first(x, want, rank, of)
    except Exception as error:
        return 0, None, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if not computed:
        return wrong, fault, "computation beside it gave another result than alone"
    return wrong, fault, ""


def _move(begin: Callable[[int], Wait], device: torch.device) -> tuple[list[Tensor], bool]:
    """Moves messages in a row, beside computation, and two at once; returns them, and whether products stayed right."""
    x = torch.arange(128 * 128, device=device).remainder(13).float().view(128, 128)
    alone = x @ x  # a product of small numbers is exact
    got = [begin(number)() for number in range(IN_A_ROW)]
    wait = begin(IN_A_ROW)
    beside = [x @ x for _ in range(4)]
    got.append(wait())
    first, second = begin(IN_A_ROW + 1), begin(IN_A_ROW + 2)
    beside += [x @ x for _ in range(2)]
    got += [first(), second()]
    return [x.clone() for x in got], all(torch.equal(alone, x) for x in beside)


def _first(x: Tensor, want: Tensor, rank: int, of: int) -> Fault:
    size = x.element_size()
    differs = (x.view(torch.uint8) != want.view(torch.uint8)).view(-1, size).any(1)
    index = int(differs.nonzero()[0])
    return Fault(rank, of, index, float(x[index]), float(want[index]))
