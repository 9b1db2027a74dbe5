"""Bytes of a work-group's shared memory that the tiles of the backward pass take.

kernels/attention/backward.hpp has the tiles lie one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from xeflash.tune.desc import Desc

MOST_BYTES = {"pvc": 131072, "bmg": 131072, "dg2": 65536}  # a kernel's source tells it the one of its device


def lanes_of(desc: Desc) -> int:
    """Returns the lanes of a register of fp32."""
    return 8 if desc.arch == "dg2" else 16


def element_of(desc: Desc) -> int:
    """Returns the bytes of an element of Q, K and V."""
    return 4 if desc.dtype == "float32" else 2


@dataclass(frozen=True)
class Tiles:
    """The tiles of a work-group, by the names that kernels/xe gives them."""

    desc: Desc
    team: int  # threads that share out the columns of a sum
    threads: int  # threads of a work-group
    pairs: bool

    @property
    def staged(self) -> bool:
        """Returns whether the threads bring right operands into shared memory."""
        return self.desc.access != "block2d"

    @property
    def _neighbours(self) -> int:
        return self.threads // (2 * self.team if self.pairs else self.team)

    def right_transposed(self, rows: int, columns: int) -> int:
        """Returns the bytes of RightT."""
        return rows * _round_up(columns * element_of(self.desc), 32) if self.staged else 0

    def right(self, rows: int, own: int) -> int:
        """Returns the bytes of Right, of which a thread owns `own` columns."""
        element = element_of(self.desc)
        return rows * self.team * _round_up(own, self._width) * element if self.staged else 0

    def left(self, rows: int, columns: int, *, away: bool = False, sums: int | None = None) -> int:
        """Returns the bytes of a Placed Left, which is out of registers if `away`, or beside `sums` columns of sums."""
        element, registers = element_of(self.desc), 256 * 4 * lanes_of(self.desc)
        own = rows * columns * element
        beside = sums is not None and self.pairs and self.team == 1
        if beside and rows * _round_up(sums or 0, lanes_of(self.desc)) * 4 + own <= registers // 2:
            return 0
        if not self.staged or (own <= registers // 8 and not away):
            return 0
        return self._neighbours * rows * _round_up(columns, self._width) * element

    def pooled(self, rows: int, columns: int) -> int:
        """Returns the bytes of Pooled."""
        element, part = element_of(self.desc), columns // self.team
        width = lanes_of(self.desc) if element == 2 and part < 16 else self._width
        return 2 * self._neighbours * self.team * rows * _round_up(part, width) * element if self.team > 1 else 0

    def handed(self, rows: int, columns: int) -> int:
        """Returns the bytes of Handed."""
        bytes_ = rows * _round_up(columns, lanes_of(self.desc)) * 4
        return 2 * self._neighbours * self.team * bytes_ if self.pairs else 0

    @property
    def _width(self) -> int:
        return 16 if element_of(self.desc) == 2 else lanes_of(self.desc)


def bytes_of_scores(desc: Desc, block_q: int, block_k: int, threads: int, team: int = 1) -> int:
    """Returns the bytes of a work-group's ScoreTiles."""
    tiles, away = Tiles(desc, team, threads, pairs=False), desc.algorithm == "flash_bwd_bias"
    dims = (desc.head_dim, desc.head_dim_v)
    rights = sum(tiles.right_transposed(block_k, dim) for dim in dims)
    return rights + sum(tiles.left(block_q, dim, away=away) for dim in dims)


def bytes_of_dq(desc: Desc, block_q: int, block_k: int, threads: int, team: int, own: int) -> int:
    """Returns the bytes of a work-group's DqTiles."""
    tiles = Tiles(desc, team, threads, pairs=False)
    scores = bytes_of_scores(desc, block_q, block_k, threads, team)
    return scores + tiles.right(block_k, own) + tiles.pooled(block_q, block_k)


def bytes_of_dkv(
    desc: Desc, block_q: int, block_k: int, threads: int, team: int, own_k: int, own_v: int, pairs: bool
) -> int:
    """Returns the bytes of a work-group's DkvTiles."""
    tiles = Tiles(desc, team, threads, pairs)
    rights = tiles.right_transposed(block_k, desc.head_dim) + tiles.right_transposed(block_k, desc.head_dim_v)
    rights += tiles.right(block_k, own_v) + tiles.right(block_k, own_k)
    lefts = tiles.left(block_q, desc.head_dim, sums=own_v), tiles.left(block_q, desc.head_dim_v, sums=own_k)
    return rights + sum(lefts) + 2 * tiles.pooled(block_q, block_k) + tiles.handed(block_q, block_k // team)


def _round_up(n: int, unit: int) -> int:
    return -(-n // unit) * unit
