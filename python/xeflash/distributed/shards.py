"""Shards of a sequence: which rank has which rows, and how tensors get there and back.

"zigzag": of 2 W chunks, rank r of W has the chunks r and 2 W - 1 - r, so that all ranks have as much to do under a
causal mask. "ranges": rank r has the r-th of W chunks. Over two groups, the outer one deals shards so, and the inner
one deals ranges of a shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from xeflash.distributed import agree, transport

# None is the default group; of two, or of a mesh of two dimensions, the first is the outer one.
Groups: TypeAlias = dist.ProcessGroup | DeviceMesh | tuple[dist.ProcessGroup, dist.ProcessGroup] | None
ZIGZAG, RANGES = "zigzag", "ranges"


def groups_of(function: str, group: Groups) -> tuple[dist.ProcessGroup, ...]:
    """Returns one group or two, the outer one first; this process has to be a member."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            f"{function}: torch.distributed must be initialised, by torch.distributed.init_process_group"
        )
    if isinstance(group, DeviceMesh):
        found = tuple(group.get_all_groups())
    elif isinstance(group, (tuple, list)):
        found = tuple(group)
    else:
        found = (dist.group.WORLD if group is None else group,)
    if not 1 <= len(found) <= 2 or not all(isinstance(x, dist.ProcessGroup) for x in found):
        raise ValueError(
            f"{function}: group must be a group that this process is a member of, two of them (outer, inner), or a "
            f"mesh of one or two dimensions, got {group!r}"
        )
    return found


def check_shards(function: str, shards: str) -> None:
    """Raises a ValueError unless `shards` is "zigzag" or "ranges"."""
    if shards not in (ZIGZAG, RANGES):
        raise ValueError(f"{function}: shards must be 'zigzag' or 'ranges', got {shards!r}")


# ---- positions ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of the sequence: their start there, their number, and their place in the shard."""

    start: int
    rows: int
    at: int

    @property
    def here(self) -> slice:
        """Returns the chunk's rows within its shard."""
        return slice(self.at, self.at + self.rows)


def chunks_of(rank: int, world: int, rows: int, shards: str) -> tuple[Chunk, ...]:
    """Returns the chunks of a shard of `rows` rows, in storage order."""
    if shards == RANGES or world == 1:
        return (Chunk(rank * rows, rows, 0),)
    half = rows // 2
    return Chunk(rank * half, half, 0), Chunk((2 * world - 1 - rank) * half, half, half)


def pieces_of(world: int, shards: str) -> int:
    """Counts the chunks that all ranks have together; every length must be a multiple of it."""
    return 2 * world if shards == ZIGZAG and world > 1 else world


def deal(x: Tensor, dim: int, world: int, shards: str) -> Tensor:
    """Cuts a sequence into (ranks, ...), the shard of each rank."""
    pieces = pieces_of(world, shards)
    parts = x.unflatten(dim, (pieces, x.shape[dim] // pieces)).movedim(dim, 0)
    if pieces == world:
        return parts
    return torch.cat([parts[:world], parts[world:].flip(0)], dim + 1)


def undeal(x: Tensor, dim: int, shards: str) -> Tensor:
    """Joins shards (ranks, ...) to the whole sequence."""
    if pieces_of(len(x), shards) != len(x):
        first, second = x.chunk(2, dim + 1)
        x = torch.cat([first, second.flip(0)])
    return x.movedim(0, dim).flatten(dim, dim + 1)


# ---- for programs -------------------------------------------------------------------------------


def shard(x: Tensor, dim: int = 1, *, group: Groups = None, shards: str = ZIGZAG) -> Tensor:
    """Returns this rank's rows of x, which every rank has: tokens, labels, positions, or q, k and v themselves.

    Args:
        x: a tensor whose dimension `dim` is the sequence. Its length must be a multiple of 2 W ("zigzag") or of W
            ("ranges") for W ranks; over two groups, both have to divide it. The caller pads other lengths.
        dim: the dimension; negative ones count from the end.
        group: a group of torch.distributed, None for the default one; or two, as a tuple (outer, inner) or a DeviceMesh
            of two dimensions: the outer group deals `shards`, the inner one ranges of a shard.
        shards: "zigzag" or "ranges", see the top of this file.

    Returns:
        A contiguous tensor of its own. Gradients pass.

    >>> # labels are shifted before they are sharded, and positions are sharded with tokens
    >>> # tokens, labels = (xeflash.distributed.shard(x) for x in (tokens, labels))
    """
    groups = groups_of("shard", group)
    dim = _dim_of("shard", x, dim)
    check_shards("shard", shards)
    for members, way in zip(groups, (shards, RANGES), strict=False):
        world = members.size()
        if x.shape[dim] % pieces_of(world, way):
            raise ValueError(
                f"shard: x.shape[{dim}] must be a multiple of {pieces_of(world, way)} for {way!r} on {world} ranks, "
                f"got {x.shape[dim]}; pad it"
            )
        x = deal(x, dim, world, way)[members.rank()]
    return x.contiguous() if x.requires_grad else x.clone(memory_format=torch.contiguous_format)


def unshard(x: Tensor, dim: int = 1, *, group: Groups = None, shards: str = ZIGZAG) -> Tensor:
    """Gathers the whole that ``shard`` dealt, on every rank.

    Args:
        x: this rank's shard, as long as all others. No gradients pass, so it must not require grad where they are
            recorded.
        dim, group, shards: as in ``shard``.
    """
    groups = groups_of("unshard", group)
    with agree.together("unshard", groups) as facts:
        dim = _dim_of("unshard", x, dim)
        check_shards("unshard", shards)
        if x.requires_grad and torch.is_grad_enabled():
            raise NotImplementedError(
                "unshard: x must not require grad, as no gradients pass, got requires_grad = True"
            )
        pieces = pieces_of(groups[0].size(), shards) // groups[0].size()
        if x.shape[dim] % pieces:
            raise ValueError(f"unshard: x.shape[{dim}] must be a multiple of {pieces}, got {x.shape[dim]}")
        facts |= {"x.shape": list(x.shape), "x.dtype": x.dtype, "dim": dim, "shards": shards}
    with agree.naming("unshard", groups):
        for members, way in reversed(list(zip(groups, (shards, RANGES), strict=False))):
            x = undeal(transport.all_gather(x, members), dim, way)
    return x.contiguous()


def positions(
    length: int,
    *,
    cu_seqlens: Tensor | None = None,
    group: Groups = None,
    shards: str = ZIGZAG,
    device: torch.device | str | None = None,
) -> Tensor:
    """Returns the int64 positions of this rank's rows in the sequence, for rotary embeddings and a caller's masks.

    Args:
        length: of the whole sequence; see ``shard`` for what divides it.
        cu_seqlens: int32 (B + 1,): starts of packed documents, and their end; positions then are those in a document.
        group, shards: as in ``shard``.
        device: of the result.
    """
    whole = torch.arange(length, device=device)
    if cu_seqlens is not None:
        starts = cu_seqlens.to(device=whole.device, dtype=torch.int64)
        whole = whole - starts[torch.searchsorted(starts, whole, right=True) - 1]
    return shard(whole, 0, group=group, shards=shards)


def _dim_of(function: str, x: Tensor, dim: int) -> int:
    if not isinstance(x, Tensor):
        raise TypeError(f"{function}: x must be a torch tensor, got {type(x).__name__}")
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"{function}: dim must be a dimension of x, which has {x.dim()}, got {dim}")
    return dim if dim >= 0 else dim + int(x.dim())
