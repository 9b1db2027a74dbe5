"""Comparison of the facts that ranks must share, before anything moves: then all ranks raise, or none.

Backends do not compare. gloo ends the process for a message that is longer than its receiver expects, and fills only a
part of a buffer without a word for one that is shorter; another order of calls waits for the group's timeout. So each
call gathers a few numbers, of the same size for all functions: a hash of its facts, how many calls there were, rank 0's
seed of dropout, and the memory that each has. Where hashes differ, all ranks see it, and gather the facts themselves to
say which.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from xeflash.distributed.transport import DIRECTIONS, chosen_transport

_MAGIC = 0x7865_666C_6173_6801  # marks a message; its last digits change with the message's form
_NO_LIMIT = 2**63 - 1
SECONDS_TO_ANSWER = 2.0

_lock = threading.Lock()
_calls: Counter[tuple[str, ...]] = Counter()
_checks = True


def check_calls(on: bool) -> bool:
    """Says whether the calls that follow compare shapes, types and features over all ranks, as they do at first.

    Compared is also how many calls there were before, and which of them a backward pass belongs to. Two calls that are
    alike in all of this and that one rank takes in another order are not noticed, as nothing tells them apart.

    It costs an all-gather of 48 bytes per pass, a millisecond on two busy cores. It must be the same on all ranks: a
    rank that compares waits for those that do not. Without it, a mismatch may end the process, or give wrong numbers,
    and how="auto" does not know what memory there is.

    Returns:
        What was before.
    """
    global _checks
    before, _checks = _checks, bool(on)
    return before


@contextlib.contextmanager
def together(
    function: str,
    groups: Sequence[dist.ProcessGroup],
    seed: Sequence[int] = (0, 0),
    device: torch.device | None = None,
) -> Iterator[dict[str, Any]]:
    """Gives a dict for the facts of a call; at its end all ranks have the same, or raise a ValueError that says which.

    All ranks learn of an error that is raised inside, so a rank that refuses its arguments lets no other wait. Two of
        the facts are
    not compared: "seed", two numbers of 64 bits, becomes rank 0's, and "room", bytes, becomes the least of all ranks
    (None: nobody has looked). "number" becomes the call's number, the same on all ranks, or 0 if nobody counts.
    """
    facts: dict[str, Any] = {}
    try:
        yield facts
    except (TypeError, ValueError, NotImplementedError) as error:
        if _checks:
            _compare(function, groups, {"refused": str(error)}, (0, 0), None, device)
        raise
    own, room = tuple(facts.pop("seed", seed)), facts.pop("room", None)
    number = 0
    if _checks or any(own):
        own, room, number = _compare(function, groups, facts, own, room, device)
    else:
        room = None
    facts |= {"seed": own, "room": room, "number": number}


def _compare(
    function: str,
    groups: Sequence[dist.ProcessGroup],
    facts: dict[str, Any],
    seed: tuple[int, ...],
    room: int | None,
    device: torch.device | None,
) -> tuple[tuple[int, ...], int | None, int]:
    """Compares the facts of all ranks; returns rank 0's seed, the least room, and the number of the call."""
    key = tuple(group.group_name for group in groups)
    with _lock:
        _calls[key] += 1
        number = _calls[key]
    transports = {direction: chosen_transport(direction) for direction in DIRECTIONS}
    facts = {"function": function, "number of the call": number, "transports": transports, **facts}
    digest = hashlib.blake2b(repr(list(facts.items())).encode(), digest_size=8).digest()
    mine = [_MAGIC, number, int.from_bytes(digest, "little", signed=True), *(_signed(x) for x in seed)]
    mine.append(_NO_LIMIT if room is None else room)
    with naming(function, groups):
        found = _gather(torch.tensor(mine, device=_device(groups, device)), groups).tolist()
        if any(row[0] != _MAGIC for row in found):
            raise RuntimeError(f"{function}: a rank of the group has sent something else than the call's facts")
        if all(row[:3] == found[0][:3] for row in found):
            least = min(row[5] for row in found)
            return tuple(x % 2**64 for x in found[0][3:5]), None if least == _NO_LIMIT else least, number
        everyone = _gather_objects(facts, groups)
    if "refused" in facts:
        return seed, room, number  # this rank raises its own refusal
    raise ValueError(f"{function}: {_difference(everyone)}")


def _difference(everyone: list[dict[str, Any]]) -> str:
    """Describes how the first rank that differs from rank 0 differs from it."""
    first = everyone[0]
    for rank, theirs in enumerate(everyone):
        if "refused" in theirs:
            return f"rank {rank} refused its arguments: {theirs['refused']}"
    other = next(rank for rank, theirs in enumerate(everyone) if theirs != first)
    names = [name for name in {**first, **everyone[other]} if first.get(name) != everyone[other].get(name)]
    if "function" in names:  # the other facts of two functions cannot be compared
        names = ["function"]
    found = [f"{name} {first.get(name)} on rank 0, {everyone[other].get(name)} on rank {other}" for name in names]
    return f"{', '.join(names)} must be equal on all ranks, got {'; '.join(found)}"


# ---- how facts travel ---------------------------------------------------------------------------


def _signed(x: int) -> int:
    x %= 2**64
    return x if x < 2**63 else x - 2**64


def _device(groups: Sequence[dist.ProcessGroup], device: torch.device | None) -> torch.device:
    """Returns host memory if the backend takes it, as no stream has to be waited for, else `device`."""
    kinds = {kind.type for kind in groups[0]._device_types}
    return torch.device("cpu") if "cpu" in kinds or device is None else device


def _gather(mine: torch.Tensor, groups: Sequence[dist.ProcessGroup]) -> torch.Tensor:
    """Gathers a rank's numbers into (ranks, numbers), over the inner group, then over the outer one."""
    for group in reversed(groups):
        found = [torch.empty_like(mine) for _ in range(group.size())]
        dist.all_gather(found, mine, group=group)
        mine = torch.cat(found)
    return mine.view(-1, 6)


def _gather_objects(facts: dict[str, Any], groups: Sequence[dist.ProcessGroup]) -> list[dict[str, Any]]:
    """Gathers the facts of all ranks as text."""
    mine: list[dict[str, Any]] = [{name: str(value) for name, value in facts.items()}]
    for group in reversed(groups):
        found: list[Any] = [None] * group.size()
        dist.all_gather_object(found, mine, group=group)
        mine = [theirs for part in found for theirs in part]
    return mine


# ---- who is missing -----------------------------------------------------------------------------


@contextlib.contextmanager
def naming(function: str, groups: Sequence[dist.ProcessGroup]) -> Iterator[None]:
    """Adds the ranks that do not answer to an error of a backend, which names none."""
    try:
        yield
    except RuntimeError as error:
        if str(error).startswith(f"{function}: ") or not _is_from_transport(error):
            raise
        raise RuntimeError(f"{function}: {_missing(groups)}: {error}") from error


def _is_from_transport(error: RuntimeError) -> bool:
    """Returns whether an error came from where tensors move; gloo's errors have no type of their own."""
    names = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(name.startswith(("torch.distributed", "xeflash.distributed.transport")) for name in names)


def _missing(groups: Sequence[dist.ProcessGroup]) -> str:
    """Reports this rank's failure in the groups' stores, and names the ranks that do not report."""
    found = []
    for group, kind in zip(groups, ("", " of the inner group"), strict=False):
        try:
            absent = _absent(group)
        except Exception as error:  # the store went with its rank
            return f"a transport between ranks failed, and their store does not answer ({type(error).__name__})"
        if absent:
            ranks, processes = dist.get_process_group_ranks(group), ", ".join(map(str, absent))
            worlds = ", ".join(str(ranks[rank]) for rank in absent)
            found.append(f"rank {processes}{kind} (process {worlds} of all)")
    if not found:
        return "a transport between ranks failed, and all ranks answer that it did"
    names = " and ".join(found)
    return f"a transport between ranks failed; within {SECONDS_TO_ANSWER:g} s there was no answer from {names}"


def _absent(group: dist.ProcessGroup) -> list[int]:
    store = dist.distributed_c10d._get_process_group_store(group)
    store = dist.PrefixStore(f"xeflash/failed/{_calls.total()}", store)
    store.set(str(group.rank()), "here")
    absent, end = list(range(group.size())), time.monotonic() + SECONDS_TO_ANSWER
    while True:
        absent = [rank for rank in absent if not store.check([str(rank)])]
        if not absent or time.monotonic() > end:
            return absent
        time.sleep(0.05)
