"""Tables of Xe GPUs.

`python perf/sweep.py --device dg2 --algorithm flash_decode --row 3` compares what the third row chooses with other
blocks, by their machine code; without --row, each row of the table that serves the device; with --candidates, the
row's own tiles, of which `xeflash tune` chooses. perf/results/candidates.csv has what that printed. spills.py says how
a tile that spills is left out for the kernels that have no registers for it.
"""

from __future__ import annotations

from xeflash.tune import shared
from xeflash.tune.desc import Desc
from xeflash.tune.spills import FEATURES, changes_scores, sees_ranges, spill
from xeflash.tune.xe_shares import MAX_COLUMNS, MAX_HEAD_DIM, columns, most_columns, sharers, team

Blocks = tuple[int, int]
Row = tuple[str, str, str, str, int, int, list[Blocks]]

ARCHITECTURES = ("pvc", "bmg", "dg2")
# The architecture whose kernels a device runs; gpus.cpp knows it of a device that is there.
DEVICES = {name: name for name in ARCHITECTURES}
DEVICES |= {"bmg-g31": "bmg", "lnl": "bmg", "ptl": "bmg", "arl-h": "dg2", "ats-m": "dg2"}

# Tiles, the best first: spills.csv strikes out those for which a thread has too few registers, and a kernel skips those
# that it cannot share out over threads. Scores are words of tune/spills.py.
# arch, dtype, access, scores, rows <=, head dim <=, (rows a thread, keys)
FLASH_FWD: list[Row] = [
    # 8 KiB of registers a thread, half of the others'
    ("dg2", "float32", "*", "*", 255, MAX_HEAD_DIM, [(8, 16)]),
    ("dg2", "*", "dwords", "lone", 255, 64, [(16, 16), (8, 32), (8, 16)]),  # what is staged is read once for 16 rows
    ("dg2", "*", "dwords", "lone", 255, 256, [(16, 32), (8, 16), (8, 32)]),  # by teams
    ("dg2", "*", "dwords", "ordered", 255, 64, [(16, 16), (8, 32), (8, 16)]),  # other masks; a team of theirs spills
    ("dg2", "*", "*", "*", 255, 64, [(8, 32), (8, 16)]),
    ("dg2", "*", "*", "*", 255, MAX_HEAD_DIM, [(8, 16)]),
    ("*", "float32", "*", "*", 255, 64, [(8, 32), (8, 16)]),
    ("*", "float32", "*", "*", 255, MAX_HEAD_DIM, [(8, 16), (8, 32)]),
    ("*", "*", "block2d", "nibbles", 255, 64, [(16, 32), (16, 16), (8, 32)]),
    ("*", "*", "block2d", "nibbles", 255, 128, [(16, 16), (8, 32)]),  # O has a surplus beside it
    ("*", "*", "block2d", "plain", 255, 128, [(16, 32), (8, 64), (8, 32)]),  # K and V are read once for 16 rows
    ("*", "*", "block2d", "plain", 255, MAX_HEAD_DIM, [(16, 64), (16, 32), (8, 32), (8, 16)]),  # teams
    ("*", "*", "block2d", "*", 255, 128, [(8, 64), (8, 32), (16, 32)]),
    ("*", "*", "*", "*", 255, 128, [(8, 64), (8, 32)]),
    ("*", "*", "*", "quantised", 255, MAX_HEAD_DIM, [(8, 16), (8, 32)]),
    ("*", "*", "block2d", "*", 255, MAX_HEAD_DIM, [(8, 32), (16, 64), (8, 16)]),
    ("*", "*", "*", "*", 255, MAX_HEAD_DIM, [(8, 32), (8, 16)]),  # which ask L1 for 576 bytes a dpas
]

# One query; rows are the heads that share its keys. Eights of them go to the matrix unit, whether they are there or
# not: 0.03 instructions for a byte of K and V; 0.13 on dg2, which has no block messages. Any other number goes to the
# vector unit, with Q, P and O in fp32: 0.05 (dg2: 0.12) for one row, some 0.05 more for each other
# (perf/counts.py decode). Memory asks for less than 1 (bmg), 0.4 (pvc), 2 (dg2).
FLASH_DECODE: list[Row] = [
    ("dg2", "*", "elements", "*", 255, 128, [(2, 16), (1, 16)]),
    ("dg2", "float32", "*", "*", 255, MAX_HEAD_DIM, [(4, 16), (2, 16), (1, 16)]),
    ("dg2", "*", "dwords", "nibbles", 255, MAX_HEAD_DIM, [(8, 16), (4, 16), (2, 16), (1, 16)]),
    ("dg2", "*", "*", "*", 1, MAX_HEAD_DIM, [(1, 16)]),  # far below what memory allows, and more precise
    ("dg2", "*", "dwords", "bare", 8, 64, [(8, 32), (8, 16), (4, 16)]),
    ("dg2", "*", "dwords", "bare", 255, MAX_HEAD_DIM, [(16, 16), (8, 16), (4, 16), (2, 16), (1, 16)]),
    ("dg2", "*", "dwords", "*", 255, MAX_HEAD_DIM, [(8, 16), (4, 16), (2, 16), (1, 16)]),
    ("dg2", "*", "*", "*", 255, MAX_HEAD_DIM, [(4, 16), (2, 16), (1, 16)]),  # what cannot be shared out evenly
    ("*", "float32", "*", "*", 255, 128, [(7, 32), (4, 16)]),  # the vector unit's in any case
    ("*", "float32", "*", "*", 255, MAX_HEAD_DIM, [(4, 16), (2, 16)]),
    ("*", "*", "block2d", "nibbles", 255, 128, [(8, 32), (8, 16)]),
    ("*", "*", "block2d", "nibbles", 255, MAX_HEAD_DIM, [(8, 16)]),
    ("*", "*", "block2d", "*", 1, 128, [(1, 32), (1, 16)]),  # far below what memory allows, and more precise
    ("*", "*", "block2d", "*", 1, 256, [(1, 16), (1, 32)]),
    ("*", "*", "block2d", "quantised", 255, 64, [(16, 16), (8, 32)]),
    ("*", "*", "block2d", "*", 255, 64, [(16, 32), (16, 16), (8, 64), (8, 32)]),  # K and V are read once for 16 rows
    ("*", "*", "block2d", "bare", 255, 128, [(16, 32), (16, 16), (8, 64), (8, 32)]),
    ("*", "*", "block2d", "*", 255, 128, [(8, 64), (8, 32), (16, 16)]),
    ("*", "*", "block2d", "quantised", 255, MAX_HEAD_DIM, [(8, 16)]),
    ("*", "*", "block2d", "*", 255, 512, [(8, 32), (8, 16)]),
    ("*", "*", "block2d", "*", 255, MAX_HEAD_DIM, [(8, 16), (8, 32)]),
    ("*", "*", "*", "*", 255, 128, [(7, 32), (4, 16)]),
    ("*", "*", "*", "*", 255, MAX_HEAD_DIM, [(4, 16), (2, 16)]),
]

# Rows of dQ that a thread owns, or a team of threads; keys of a block. (perf/sweep.py --algorithm flash_bwd_dq)
FLASH_BWD_DQ: list[Row] = [
    ("dg2", "float32", "*", "*", 255, MAX_HEAD_DIM, [(8, 16)]),
    ("dg2", "*", "dwords", "bare", 255, 256, [(16, 16), (8, 16)]),  # what is staged is read once for 16 rows
    ("dg2", "*", "dwords", "quiet", 255, 128, [(16, 16), (8, 16)]),
    ("*", "float32", "block2d", "*", 255, MAX_HEAD_DIM, [(8, 32)]),
    ("*", "*", "block2d", "bare", 32, 48, [(16, 32), (16, 16), (8, 32)]),
    ("pvc", "*", "block2d", "*", 32, 64, [(16, 16)]),
    ("*", "*", "block2d", "bare", 255, 64, [(16, 32), (16, 16), (8, 32)]),
    ("bmg", "*", "block2d", "quiet", 255, 64, [(16, 32), (16, 16)]),
    ("*", "*", "block2d", "*", 255, 64, [(16, 16)]),
    ("*", "*", "block2d", "still", 255, MAX_HEAD_DIM, [(16, 64), (16, 32), (8, 64), (8, 32)]),
    ("*", "*", "block2d", "quiet", 255, 128, [(16, 64), (16, 32)]),
    ("*", "*", "block2d", "*", 255, 128, [(16, 32)]),
    ("*", "*", "block2d", "*", 255, MAX_HEAD_DIM, [(16, 64), (16, 32)]),
    ("*", "*", "*", "*", 255, MAX_HEAD_DIM, [(8, 16)]),
]
# Rows of dK and dV; queries of a block.
FLASH_BWD_DKV: list[Row] = [
    ("dg2", "float32", "*", "*", 255, MAX_HEAD_DIM, [(8, 16)]),
    ("dg2", "*", "dwords", "calm", 255, 256, [(16, 16), (8, 16)]),
    ("dg2", "*", "dwords", "quiet", 255, 128, [(16, 16), (8, 16)]),
    ("*", "float32", "block2d", "*", 255, MAX_HEAD_DIM, [(8, 32)]),
    ("*", "*", "block2d", "heavy", 255, MAX_HEAD_DIM, [(16, 32)]),
    ("*", "*", "block2d", "*", 255, 64, [(16, 32)]),
    ("*", "*", "block2d", "calm", 255, 128, [(16, 32), (8, 32)]),
    ("*", "*", "block2d", "quiet", 255, 128, [(16, 32), (16, 16)]),
    ("*", "*", "block2d", "*", 255, 128, [(16, 16)]),
    ("*", "*", "block2d", "*", 255, MAX_HEAD_DIM, [(16, 64), (8, 64)]),
    ("*", "*", "*", "*", 255, MAX_HEAD_DIM, [(8, 16)]),
]
# Rows and keys of a tile of a bias's gradient, or of probabilities.
FLASH_BWD_BIAS: list[Row] = [
    ("*", "*", "block2d", "*", 255, MAX_HEAD_DIM, [(8, 32)]),
    ("*", "*", "*", "*", 255, MAX_HEAD_DIM, [(8, 16)]),
]
BACKWARD = ("flash_bwd_dq", "flash_bwd_dkv")  # xe_gradients.py has their threads

NO_TILES = FLASH_BWD_BIAS[1:]  # to choose

# standard_attention: what FlashAttention is compared with has its tiles.
TABLES = {"flash_fwd": FLASH_FWD, "standard_attention": FLASH_FWD, "flash_decode": FLASH_DECODE}
TABLES |= {"flash_bwd_dq": FLASH_BWD_DQ, "flash_bwd_dkv": FLASH_BWD_DKV, "flash_bwd_bias": FLASH_BWD_BIAS}
TABLES |= {"attention_probs": FLASH_BWD_BIAS, "flash_bwd_captures": NO_TILES, "flash_bwd_heads": NO_TILES}
TABLES |= dict.fromkeys(("append", "write_to_cache", "merge_states", "document_spans", "mask_blocks"), NO_TILES)

_TURN_KEYS = 16  # keys of a block of one query where threads take turns, so that each thread has some
_HEAD_DIMS = {"merge_states": ("out.head_dim",) * 2, "write_to_cache": ("k.head_dim", "v.head_dim")}  # for messages


def row_of(desc: Desc) -> Row:
    """Returns the first row of the table that fits."""
    names = _HEAD_DIMS.get(desc.algorithm, ("q.head_dim", "v.head_dim"))
    for name, dim in zip(names, (desc.head_dim, desc.head_dim_v), strict=True):
        if dim % 8 or dim > MAX_HEAD_DIM:
            raise NotImplementedError(
                f"xeflash: {name} on a GPU must be a multiple of 8, at most {MAX_HEAD_DIM}, got {dim}; "
                "the SYCL CPU device takes any"
            )
    for row in TABLES.get(desc.algorithm, ()):
        arch, dtype, access, scores, most_rows, most_dim, _ = row
        if (
            all(x in ("*", y) for x, y in ((arch, desc.arch), (dtype, desc.dtype), (access, desc.access)))
            and (scores == "*" or FEATURES[scores](desc))
            and desc.rows <= most_rows
            and max(desc.head_dim, desc.head_dim_v) <= most_dim
        ):
            return row
    raise NotImplementedError(f"xeflash: no {desc.algorithm} kernel for {desc}")


def candidates(desc: Desc) -> tuple[Blocks, ...]:
    """Returns the (block_q, block_k) that a kernel may have, the best first.

    Those of a gradient have the same keys, or queries, in a block: the order of its sums, and so their bits. Beside
    tiles of the matrix unit, those of the vector unit are for few heads.
    """
    found = dict.fromkeys(
        _fitted(desc, *blocks) for blocks in row_of(desc)[-1] if _can_have(desc, blocks[0]) and not spill(desc, blocks)
    )
    first_q, first_k = next(iter(found))
    return tuple(
        (block_q, block_k)
        for block_q, block_k in found
        if (block_k == first_k or desc.algorithm not in BACKWARD) and (first_q % 8 or not block_q % 8 or desc.rows < 5)
    )


def _fitted(desc: Desc, block_q: int, block_k: int) -> Blocks:
    """Returns what a kernel has of these blocks: tiles of equal height, and keys of one page, and of a turn or team."""
    if block_q % 8:
        block_q = -(-desc.rows // -(-desc.rows // block_q))
    if (desc.arch, desc.algorithm, block_q) == ("dg2", "flash_fwd", 16) and columns(desc, block_q)[1] == 1:
        block_k = min(block_k, 16)  # only teams have registers for more
    if desc.cache == "paged":
        block_k = min(block_k, desc.page_unit)
    if desc.split_keys:
        return block_q, min(block_k, _TURN_KEYS) if desc.algorithm == "flash_decode" else block_k
    teamed = team(desc, block_q, block_k)
    return block_q, teamed[0] if teamed else block_k


def _can_have(desc: Desc, block_q: int) -> bool:
    """Returns whether tiles of so many rows can be shared out over threads."""
    if block_q % 8:
        return True
    if desc.algorithm == "flash_decode":
        if block_q > 8 and desc.rows <= 8:
            return False
        if desc.split_keys:  # threads take turns: each makes the scores of 8 heads, and owns an even part of V
            even = desc.access == "block2d" or desc.head_dim_v % columns(desc, block_q)[0] == 0
            room = desc.arch != "dg2" or FEATURES["bare"](desc) or desc.head_dim <= most_columns(desc)
            return block_q == 8 and even and room
        return bool(sharers(desc, block_q)) or (desc.access, block_q) == ("block2d", 8)
    if block_q == 8 or desc.algorithm in BACKWARD:
        return True
    # Those of wide heads belong to a team, whose threads take no turns, and share a page.
    parts = -(-desc.head_dim_v * 2 // MAX_COLUMNS[desc.arch])
    threads = 1 << (parts - 1).bit_length()
    small_pages = desc.cache == "paged" and desc.page_unit < threads * shared.lanes_of(desc)
    alone = threads == 1 or (desc.algorithm == "flash_fwd" and not (desc.split_keys or small_pages))
    return alone and desc.rows >= block_q + (not desc.nibbles)  # two tiles would widen V twice


def keeps_order(desc: Desc) -> bool:
    """Returns whether products keep the order of their steps.

    PVC's messages then wait for less, but other kernels spill.
    """
    plain = not (changes_scores(desc) or desc.cache_dtype or desc.dropout or desc.packed_heads)
    has_runs = desc.mask in ("Documents", "Listed") and 64 < max(desc.head_dim, desc.head_dim_v) <= 128
    return desc.arch == "pvc" and desc.access == "block2d" and plain and (sees_ranges(desc) or has_runs)
