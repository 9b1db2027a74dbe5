"""Shares of an Xe GPU's threads: of a call, and of the work-groups of attention, for any rows and keys of a tile."""

from __future__ import annotations

from dataclasses import replace

from xeflash.tune import shared
from xeflash.tune.desc import Desc
from xeflash.tune.schedule import Schedule

MAX_HEAD_DIM = 576

# Threads are those with 256 registers, four of a vector engine; a group has those of half an Xe-core on Arc A, and of a
# whole one elsewhere. A launch after another takes 2 to 4 us, in which a thread goes through 32 keys.
SCHEDULE = Schedule(
    page_unit=64,
    units_of_tile=1,
    turns=32,
    turn_head_dim=256,
    cache_of_unit=(256 << 10) // 8,
    backward_rows=32,  # gives groups enough threads to bring tiles into shared memory
)
SCHEDULES = {
    "pvc": replace(SCHEDULE, cache_of_unit=(512 << 10) // 8),
    "bmg": SCHEDULE,
    "dg2": replace(SCHEDULE, cache_of_unit=0),  # Arc A brings nothing in ahead of time
}
# Values that a tuning may choose from, beside those above.
SCHEDULE_CANDIDATES = {
    "threads_of_unit": (2, 8),
    "units_of_tile": (2, 4),
    "turn_keys": (256, 1024, 2048),
    "merge_keys": (8, 64, 128),
    "merge_share": (10, 100),
}

# Most columns of 8 rows of O in the registers of a thread: half of them.
MAX_COLUMNS = {"pvc": 256, "bmg": 256, "dg2": 128}

_SHARED_BYTES = min(shared.MOST_BYTES.values())  # of the forward pass's work-groups, on any device
_TEAM_KEYS = {2: 32, 4: 16}  # keys of a block that a team scores, by the bytes of an element


def most_columns(desc: Desc) -> int:
    """Returns the most columns of K for which a thread of Arc A has registers beside 8 heads' scores and slopes."""
    return 80 if ("Alibi" in desc.hooks or desc.score_mod) and not desc.cache_dtype else 144


def columns(desc: Desc, block_q: int) -> tuple[int, int]:
    """Returns (columns of O that a thread owns, number of such parts): as few parts as fit, of equal width."""
    if block_q % 8:
        return desc.head_dim_v, 1  # the vector unit's rows are as few as fit
    most = MAX_COLUMNS[desc.arch]
    if desc.algorithm == "flash_fwd":
        most = most * 8 // block_q  # decoding keeps 16 rows of narrow heads
    if desc.arch == "dg2" and desc.dropout:
        most //= 2  # the random numbers take what is left of its registers
    if desc.arch == "dg2" and desc.access == "elements" and 96 < desc.head_dim_v < 120:
        most //= 2  # 7 blocks of columns, put together from halves of dwords, spill; 6 and 8 do not
    return _parts_of(desc, -(-desc.head_dim_v // most))


def _parts_of(desc: Desc, parts: int) -> tuple[int, int]:
    by_rows = desc.algorithm == "flash_decode" and desc.access != "block2d"  # messages of any length
    return share(desc.head_dim_v, parts, value_unit(desc, 8 if by_rows else 16)), parts


def value_unit(desc: Desc, unit: int) -> int:
    """Returns what a thread's columns of V are a multiple of: columns with a scale, and a cache line, if in 4 bits."""
    if not desc.nibbles:
        return unit
    return 64 if desc.algorithm == "flash_decode" or desc.access != "block2d" else 128


def share(columns: int, parts: int, unit: int = 16) -> int:
    """Returns the columns of one of `parts` parts, which begin at multiples of a unit."""
    return columns if parts == 1 else -(-columns // (unit * parts)) * unit


def sharers(desc: Desc, block_q: int) -> int:
    """Returns the threads that share out the columns of the heads of one query evenly, or 0 if they cannot.

    Each multiplies its columns of Q and K, and owns as many of V and O in proportion: so all is read once. O takes half
    of its registers. Block messages need rows of 64 bytes. Without them, quantised rows need more other registers.
    """
    if desc.access == "block2d":
        unit, least_k = 16, 64
        most_k, most_v = (MAX_HEAD_DIM, MAX_COLUMNS[desc.arch]) if block_q == 8 else (112, 112)  # more spill
    else:
        unit, least_k, most_k = 8, 8, most_columns(desc)
        most_v = min(most_k, MAX_COLUMNS[desc.arch] * 8 // block_q // (2 if desc.cache_dtype else 1))
    for count in range(1, 9):
        even = desc.head_dim % (unit * count) == desc.head_dim_v % (value_unit(desc, unit) * count) == 0
        if count > 1 and not (even and desc.head_dim >= least_k * count):
            continue
        if desc.head_dim <= most_k * count and desc.head_dim_v <= most_v * count:
            return count
    return 0


def turns(desc: Desc, block_q: int, block_k: int) -> tuple[int, int]:
    """Returns (tiles of a work-group, threads of each that take turns at its keys).

    Tiles of the same turn find their keys in the cache of their Xe-core. Without block messages there is one tile; Q
    is in shared memory, where each thread has a place for keys and values.
    """
    count = SCHEDULE.turns
    if desc.access == "block2d":
        tiles = neighbours(desc, block_q)
        return tiles, count // tiles
    width = columns(desc, block_q)[0]
    keys, queries = block_k * (desc.head_dim + width), block_q * desc.head_dim
    while count > 1 and (count * keys + queries) * shared.element_of(desc) > _SHARED_BYTES:
        count //= 2
    return 1, count


def neighbours(desc: Desc, block_q: int) -> int:
    """Returns the threads of a work-group that read the same keys for neighbouring blocks of rows.

    These then come from their Xe-core's cache or shared memory. Eight are one for each vector engine; no more than
    there are blocks of rows, or whose Q fits in half of the shared memory.
    """
    staged = desc.access != "block2d"
    fit = _SHARED_BYTES // 2 // (block_q * desc.head_dim * shared.element_of(desc)) if staged else 8
    return max(1, min(8, desc.rows // block_q, fit))


def team(desc: Desc, block_q: int, block_k: int) -> tuple[int, int, int, int, int] | None:
    """Returns (block_k, columns of O that a thread owns, their parts, tiles of a work-group, threads of each), or None.

    The threads that own the parts of O share its scores, too: each has as many keys of a block as its lanes or more.
    Without block messages, shared memory has room for a block of keys, and of values in its place, and for Q and P of
    each tile.
    """
    _, parts = columns(desc, block_q)
    staged = desc.access != "block2d"
    if parts == 1 or desc.algorithm != "flash_fwd" or (not staged and block_q == 8):
        return None
    width, parts = _parts_of(desc, 1 << (parts - 1).bit_length())
    lanes, element = shared.lanes_of(desc), shared.element_of(desc)
    if not staged:
        return block_k, width, parts, max(1, min(8, desc.rows // block_q)), min(parts, block_k // lanes)
    if not (desc.cache == "paged" and desc.page_unit < _TEAM_KEYS[element]):
        block_k = _TEAM_KEYS[element]
    count = min(parts, block_k // lanes)
    if count == 1:
        return None
    place = block_k * max(-(-desc.head_dim // 16) * 16, count * width) * element
    tile = block_q * (desc.head_dim * element + block_k * element + 4 * count)
    tiles = max(1, min(8, desc.rows // block_q, (_SHARED_BYTES - place) // tile))
    return block_k, width, parts, tiles, count
