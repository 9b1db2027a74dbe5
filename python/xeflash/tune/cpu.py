"""Tables of the SYCL CPU device, whose tiles `xeflash tune --device cpu` times beside each other."""

from __future__ import annotations

from dataclasses import replace

from xeflash.tune.desc import Desc
from xeflash.tune.schedule import Schedule

Blocks = tuple[int, int]
Row = tuple[str, str, int, int, list[Blocks]]

# Rows of a forward tile are vectors of 16; its key block is a multiple of 12, the widest register tile.
# A tile's operands (Q, K, V, S, O) should stay in L2 (1 to 2 MB), and in a thread's stack.
# arch, dtype, rows <=, head dim <=, (rows, keys), the best first
FLASH_FWD: list[Row] = [
    # AMX has blocks of 32 rows and keys. V is transposed for every tile: the more rows the better.
    ("cpu-amx-bf16", "bfloat16", 32, 576, [(32, 192), (32, 96)]),
    ("cpu-amx-bf16", "bfloat16", 64, 256, [(64, 192), (32, 192), (64, 96)]),
    ("cpu-amx-bf16", "bfloat16", 255, 256, [(128, 192), (64, 192), (128, 96), (64, 96)]),
    ("cpu-amx-bf16", "bfloat16", 255, 576, [(64, 96), (32, 96), (64, 192)]),
    ("*", "*", 16, 576, [(16, 96), (16, 48), (16, 192)]),
    ("*", "*", 32, 256, [(32, 96), (16, 96), (32, 48), (32, 192)]),
    ("*", "*", 255, 256, [(64, 96), (32, 96), (64, 48), (64, 192), (128, 96)]),
    ("*", "*", 255, 576, [(32, 48), (16, 48), (32, 96), (64, 48)]),  # wide heads: the tiles stay in L2
]

# Rows of a decode tile are the heads that share a KV head (0: as many as there are). Small blocks: while one is
# computed, the next is on its way, and both fit in L1 (64 keys were 6 to 40 % slower).
FLASH_DECODE: list[Row] = [
    ("*", "*", 255, 576, [(0, 16), (0, 32)]),
]

# Rows are those of dQ, or of dK and dV: more tiles than in the forward want to be in L2. Bits of gradients depend on
# the keys, or queries, of a block, and in one pass on the rows, too.
FLASH_BWD: list[Row] = [
    ("cpu-amx-bf16", "bfloat16", 32, 576, [(32, 96)]),
    ("cpu-amx-bf16", "bfloat16", 255, 256, [(64, 96)]),
    ("cpu-amx-bf16", "bfloat16", 255, 576, [(32, 96)]),
    ("*", "*", 16, 576, [(16, 48)]),
    ("*", "*", 32, 256, [(32, 96), (16, 96)]),
    ("*", "*", 255, 256, [(64, 96), (32, 96), (128, 96)]),
    ("*", "*", 255, 576, [(32, 48), (16, 48), (64, 48)]),
]

# Blocks that are listed have powers of two of keys, which tiles should not straddle.
_KEYS_OF_LISTED = {48: 32, 96: 64, 192: 128}

_FIXED = ("flash_bwd", "flash_bwd_bias", "flash_bwd_captures", "attention_probs")  # have no choice

NO_TILES: list[Row] = [("*", "*", 255, 576, [(64, 96)])]  # to choose

# standard_attention: what FlashAttention is compared with has its tiles.
TABLES = {"flash_fwd": FLASH_FWD, "standard_attention": FLASH_FWD, "flash_decode": FLASH_DECODE}
TABLES |= {"flash_bwd_dq": FLASH_BWD, "flash_bwd_dkv": FLASH_BWD, "flash_bwd": FLASH_BWD}
TABLES |= {"flash_bwd_bias": FLASH_BWD, "flash_bwd_captures": FLASH_BWD, "attention_probs": FLASH_BWD}
TABLES |= {"flash_bwd_heads": NO_TILES, "append": NO_TILES, "merge_states": NO_TILES, "peak": NO_TILES}
TABLES |= {"document_spans": NO_TILES, "mask_blocks": NO_TILES, "write_to_cache": NO_TILES}

# A few work-items for each compute unit, so that the device ends evenly; merging 256 keys each stays cheap. Where the
# heads of a key lie beside each other, work-items that follow each other read these (SplitWork): 256 KiB of rows keep
# their pages and what is fetched ahead at hand, which is up to twice as fast as a head after the other.
SCHEDULE = Schedule(
    page_unit=16,
    units_of_tile=2,
    flops_of_byte=5,
    split_keys=256,
    split_few=64,
    split_bytes=256 << 10,
    split_least=32,
    one_pass=True,
    one_pass_bf16=True,
    key_rows=8,
)
# Values that a tuning may choose from, beside those above.
SCHEDULE_CANDIDATES = {
    "threads_of_unit": (2, 8),
    "units_of_tile": (1, 4),
    "turn_keys": (256, 1024),
    "merge_keys": (8, 128),
    "split_keys": (128, 512),
    "split_bytes": (128 << 10, 512 << 10),
}
SCHEDULE_OF_AMX = replace(SCHEDULE, key_rows=32, one_pass_bf16=False)  # two passes are all its own products


def row_of(desc: Desc) -> Row:
    """Returns the first row of the table that fits."""
    for row in TABLES[desc.algorithm]:
        arch, dtype, max_rows, max_head_dim, _ = row
        if (
            arch in ("*", desc.arch)
            and dtype in ("*", desc.dtype)
            and desc.rows <= max_rows
            and max(desc.head_dim, desc.head_dim_v) <= max_head_dim
        ):
            return row
    raise NotImplementedError(f"xeflash: no {desc.algorithm} kernel for {desc}")


def candidates(desc: Desc) -> tuple[Blocks, ...]:
    """Returns the (block_q, block_k) that a kernel may have, the best first; none has more rows than the call needs."""
    of_listed = _KEYS_OF_LISTED if desc.mask == "Listed" else {}
    first, *others = ((block_q or desc.rows, of_listed.get(block_k, block_k)) for block_q, block_k in row_of(desc)[-1])
    if desc.algorithm in _FIXED:
        return (first,)
    return (first, *(blocks for blocks in others if blocks[0] <= max(first[0], desc.rows)))
