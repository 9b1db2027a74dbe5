"""Shares of the threads that compute gradients on Xe GPUs: scores, and columns of the sums."""

from __future__ import annotations

from xeflash.tune import shared
from xeflash.tune.desc import Desc
from xeflash.tune.spills import changes_scores, is_heavy
from xeflash.tune.xe_shares import neighbours, share

# Most columns of dQ, or of dK and of dV, in the registers of a thread; a team of two is wanted for more than half.
_MOST_COLUMNS = {"flash_bwd_dq": 128, "flash_bwd_dkv": 64}
_MOST_THREADS = 16  # threads of a work-group: 128 rows, or keys, read the other side from L2 once


def teams(desc: Desc, block_q: int, block_k: int) -> tuple[int, int, int, int, int, bool]:
    """Returns (parts of the columns, threads of a team and of a work-group, own columns of dQ or dK and of dV, pairs?).

    A team shares out the columns of what it sums up, and the scores of a block. A work-group has as many tiles as find
    room in shared memory.
    """
    lanes = shared.lanes_of(desc)
    if desc.algorithm == "flash_bwd_dkv" and desc.dtype != "float32":
        widest = max(desc.head_dim, desc.head_dim_v)
        # Half of the registers for one sum; less where tiles are brought into shared memory, element by element least.
        most = {"block2d": 2048 // block_q, "dwords": 64, "elements": 32}[desc.access]
        parts = -(-widest // (min(most, 64) if is_heavy(desc) else most))
        team = min(1 << (parts - 1).bit_length(), block_k // lanes)
        most_tiles = max(1, min(_MOST_THREADS // 2 // team, desc.rows // block_q))
        found = _fitting(desc, (block_q, block_k), -(-parts // team) * team, team, most_tiles, pairs=True)
        if found:
            return found
        # Both of a pair have room for K and for V; without pairs a thread has both sums.
    most = _MOST_COLUMNS[desc.algorithm] // (2 if desc.arch == "dg2" else 1)
    half = most // 2
    if changes_scores(desc) or desc.mask != "Window":
        most = min(most, 64)
    widest = max(desc.head_dim, desc.head_dim_v) if desc.algorithm == "flash_bwd_dkv" else desc.head_dim
    parts = max(-(-widest // most), 2 if widest > half else 1)
    team = min(1 << (parts - 1).bit_length(), block_k // lanes)
    most_tiles = max(1, min(_MOST_THREADS // team, desc.rows // block_q))
    found = _fitting(desc, (block_q, block_k), -(-parts // team) * team, team, most_tiles, pairs=False)
    if not found:
        raise _no_room(desc)
    return found


def _fitting(
    desc: Desc, block: tuple[int, int], parts: int, team: int, most_tiles: int, pairs: bool
) -> tuple[int, int, int, int, int, bool] | None:
    """Returns the result of `teams`, with as many tiles as fit, or None."""
    own, own_v = share(desc.head_dim, parts), share(desc.head_dim_v, parts)
    for tiles in range(most_tiles, 0, -1):
        threads = tiles * team * (2 if pairs else 1)
        if desc.algorithm == "flash_bwd_dkv":
            needed = shared.bytes_of_dkv(desc, *block, threads, team, own, own_v, pairs)
        else:
            needed = shared.bytes_of_dq(desc, *block, threads, team, own)
        if needed <= shared.MOST_BYTES[desc.arch]:
            return parts, team, threads, own, own_v, pairs
    return None


def _no_room(desc: Desc) -> NotImplementedError:
    return NotImplementedError(
        f"xeflash: {desc.algorithm} has no tiles that fit in the {shared.MOST_BYTES[desc.arch]} bytes of shared memory "
        f"of {desc.arch}, got q.head_dim {desc.head_dim} and v.head_dim {desc.head_dim_v} in {desc.dtype}"
    )


def score_tiles(desc: Desc, block_q: int, block_k: int) -> int:
    """Returns the threads of a work-group that recompute scores, for a bias's gradient or for probabilities."""
    threads = neighbours(desc, block_q) // (1 if desc.access == "block2d" else 2)  # they keep dO in shared memory, too
    for count in range(max(1, threads), 0, -1):
        if shared.bytes_of_scores(desc, block_q, block_k, count) <= shared.MOST_BYTES[desc.arch]:
            return count
    raise _no_room(desc)
