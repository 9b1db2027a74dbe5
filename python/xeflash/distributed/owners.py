"""Owners of a sequence's positions: pages are dealt to ranks in turn, or each rank has one range.

Ranges are pages of which each rank has one: both follow one rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from xeflash.distributed.transport import Group

Length = TypeVar("Length", int, Tensor)

PAGE = 16


@dataclass(frozen=True)
class Owners:
    """The rule that gives position p to rank p // page % world; a rank keeps its positions in their order."""

    page: int
    world: int
    rank: int
    is_ranges: bool

    @property
    def turn(self) -> int:
        """Returns the positions until a rank gets its next page."""
        return self.page * self.world

    @property
    def start(self) -> int:
        """Returns the position of this rank's first key."""
        return self.rank * self.page

    def owns(self, position: Tensor) -> Tensor:
        """Returns which positions this rank owns, as a mask."""
        return position // self.page % self.world == self.rank

    def local(self, position: Tensor) -> Tensor:
        """Returns the rows that positions have in the cache of their owner."""
        return position // self.turn * self.page + position % self.page

    def length(self, total: Length, rank: int | None = None) -> Length:
        """Counts those of the first `total` positions that this rank owns, or another rank."""
        start = self.start if rank is None else rank * self.page
        over = total % self.turn - start
        partial = over.clamp(0, self.page) if isinstance(over, Tensor) else min(max(over, 0), self.page)
        return total // self.turn * self.page + partial

    def runs(self, first: int, last: int) -> list[slice]:
        """Returns the runs of positions in [first, last) that this rank owns, counted from first."""
        at = range(first // self.turn * self.turn + self.start, last, self.turn)
        both = [(max(a, first), min(a + self.page, last)) for a in at]
        return [slice(a - first, b - first) for a, b in both if a < b]

    def check_room(self, function: str, total: int, rows: int) -> None:
        """Refuses a sequence that has more keys on this rank than its rows, or that goes beyond all ranges."""
        if self.is_ranges and total > self.turn:
            raise ValueError(
                f"{function}: cache_seqlens and the new keys must be at most {self.turn}, the positions that "
                f"{self.world} ranges of {self.page} have, got {total}"
            )
        if (needs := self.length(total)) > rows:
            raise ValueError(
                f"{function}: k_cache must have rows for this rank's keys ({needs} of {total}), got {rows} rows"
            )


def owners_of(function: str, owners: Any, page: Any, room: Any, rows: int | None, group: Group) -> Owners:
    """Checks the arguments owners, page and room of a function; returns the owners that they describe.

    Args:
        rows: what a rank's own cache has for a sequence, if that is what `room` is by default.
    """
    if not isinstance(owners, str) or owners not in ("pages", "ranges"):
        raise ValueError(f"{function}: owners must be 'pages' or 'ranges', got {owners!r}")
    is_ranges = owners == "ranges"
    for name, value, of in (("page", page, "pages"), ("room", room, "ranges")):
        if value is None:
            continue
        if owners != of:
            raise ValueError(f"{function}: {name} must be None with owners={owners!r}, got {value!r}")
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{function}: {name} must be an int, got {type(value).__name__}")
        if value < 1:
            raise ValueError(f"{function}: {name} must be positive, got {value}")
    if is_ranges and room is None:
        if rows is None:
            raise ValueError(
                f"{function}: room must say how many positions a rank's range has, as a block_table may grow, got None"
            )
        room = rows
    size = int(room) if is_ranges else PAGE if page is None else int(page)
    return Owners(size, dist.get_world_size(group), dist.get_rank(group), is_ranges)


def checked_lengths(
    function: str, lengths: Any, batch: int | None = None, device: torch.device | None = None, of: str = "q"
) -> Any:
    """Checks cache_seqlens; returns it as an int or a tensor."""
    if isinstance(lengths, Integral) and not isinstance(lengths, bool):  # numpy's, too
        number = int(lengths)
        if not 0 <= number < 2**31:
            raise ValueError(f"{function}: cache_seqlens must be 0 to 2^31 - 1, got {number}")
        return number
    if not isinstance(lengths, Tensor):
        raise TypeError(f"{function}: cache_seqlens must be an int or an int32 tensor, got {type(lengths).__name__}")
    if lengths.dtype is not torch.int32:
        raise TypeError(f"{function}: cache_seqlens must be int32, got {str(lengths.dtype).removeprefix('torch.')}")
    if batch is not None and tuple(lengths.shape) != (batch,):
        raise ValueError(f"{function}: cache_seqlens must have shape [{batch}], got {list(lengths.shape)}")
    if device is not None and lengths.device != device:
        raise ValueError(f"{function}: cache_seqlens must be on the device of {of} ({device}), got {lengths.device}")
    if lengths.device.type == "cpu" and lengths.numel() and int(lengths.min()) < 0:
        raise ValueError(f"{function}: cache_seqlens must not be negative, got {int(lengths.min())}")
    return lengths


def local_lengths(
    cache_seqlens: Any,
    *,
    owners: str = "pages",
    page: int | None = None,
    room: int | None = None,
    rank: int | None = None,
    group: Group = None,
) -> Any:
    """Counts the keys of sequences of these lengths in a rank's cache; returns an int, or a tensor like cache_seqlens.

    Args:
        cache_seqlens: keys on all ranks together, an int or int32 (B,).
        owners, page, room: as of context_parallel_with_kvcache; ranges need room.
        rank: of the group; default this process.
    """
    function = "local_lengths"
    dealt = owners_of(function, owners, page, room, None, group)
    lengths = checked_lengths(function, cache_seqlens)
    if rank is not None and not 0 <= rank < dealt.world:
        raise ValueError(f"{function}: rank must be 0 to {dealt.world - 1}, got {rank}")
    if dealt.is_ranges and isinstance(lengths, int):
        dealt.check_room(function, lengths, dealt.page)
    return dealt.length(lengths, rank)


def local_room(length: int, *, owners: str = "pages", page: int | None = None, group: Group = None) -> int:
    """Returns the rows that a cache needs on each rank for sequences of up to `length` keys on all ranks together.

    With owners="ranges" it is the `room` of all later calls: it says which rank has which positions. page and group are
    those of context_parallel_with_kvcache.
    """
    function = "local_room"
    dealt = owners_of(function, owners, page, 1 if owners == "ranges" else None, None, group)
    if not isinstance(length, int) or isinstance(length, bool):
        raise TypeError(f"{function}: length must be an int, got {type(length).__name__}")
    if length < 1:
        raise ValueError(f"{function}: length must be positive, got {length}")
    return -(-length // dealt.turn) * dealt.page
