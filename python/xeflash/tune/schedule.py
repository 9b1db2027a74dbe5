"""The numbers by which the extension shares out a call over its device; they depend on sizes that no kernel knows.

The build makes structs of C++ of these classes. The extension reads their numbers once for a device.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """The numbers by which attention is shared out over a device."""

    page_unit: int  # keys of the largest block that is cut where a page ends
    # Keys of tiles of queries are split where there are so many compute units (vector engines of a GPU) for each.
    units_of_tile: int
    turns: int = 1  # most threads of a group that take turns at the keys of the tiles of a group
    turn_keys: int = 512  # fewest for tiles of queries to be split, or of one query to be taken in turns
    turn_head_dim: int = 0  # largest whose tiles of one query threads take turns at
    threads_of_unit: int = 4  # that a compute unit has work for
    tile_rows: int = 16  # most of a thread
    packed_queries: int = 16  # most whose heads, if they share keys, are the rows of one tile
    # Splits are as many as take the least time, in keys that a thread goes through: those of its split in each wave of
    # threads, as many as its tile has rows for bringing in Q and leaving O, and in the launch that merges them
    # `merge_keys` and one for each `merge_splits` of each row of a thread.
    merge_keys: int = 32
    merge_splits: int = 4
    merge_share: int = 33  # what they write and read again is at most one part in so many of K and V, or, where that
    flops_of_byte: int = 200  # takes longer, of what could be read during the products: so many operations a byte
    quarter_keys: int = 4096  # from so many on, threads are a quarter of those of the device, whatever that takes
    most_waves: int = 4  # of threads that splits are tried for
    cache_of_unit: int = 0  # bytes of L1 that blocks of keys may be brought into ahead of time; 0: any number
    # CPU, one query: keys of a split
    split_keys: int = 0  # fewest, where splits are to fill the device; 0: by the time as above
    split_few: int = 0  # where units would have none
    split_bytes: int = 0  # most that a split reads of K, where the heads of a key lie beside each other
    split_least: int = 1  # keys, whatever the bytes
    # Descriptions tell the rows that there are for a tile as a power of two between these. "low": where tiles are few
    # for the cores, they may have fewer rows, down to so many, up to this head dim.
    least_rows: int = 16
    most_rows: int = 128
    low_rows: int = 32
    low_head_dim: int = 256
    key_rows: int = 0  # rows that a tile could have for the time that bringing in its keys takes; 0: tiles are full
    backward_rows: int = 16  # fewest that descriptions of the backward pass tell
    stand_in_heads: int = 8  # rows of the package's kernel for decoding several heads, see jit/prebuilt.py
    # Backward: a kernel may make dQ, dK and dV at once, where there are heads enough, and where its sums of dQ take no
    # more floats than these: more would leave caches for memory, whose bandwidth all cores share.
    one_pass: bool = False
    one_pass_bf16: bool = False
    one_pass_floats: int = 64 << 20
    # Workers that share out the gradients of captures, and most floats of their copies. They are the same on all
    # devices, as the order of sums and so their bits depend on them.
    capture_workers: int = 512
    capture_floats: int = 16 << 20


@dataclass(frozen=True)
class ProductSchedule:
    """The numbers by which products are shared out: `linear`, `matmul_softmax` and a language model's head."""

    logits_unit: int  # columns of logits and of slopes: what there is room for is a multiple of it
    sums_unit: int  # likewise of sums
    slope_unit: int  # likewise rows of slopes
    part_columns: int  # fewest of a part, whose results come together at the end
    parts: int  # most of them. A part depends on the head alone, so that a row's result does not depend on others
    core_columns: int  # fewest of a part whose results depend on no order, where cores have none; 0: part_columns
    slope_rows: int  # most of the slopes that are in memory at a time; enough of both that products with them take
    slope_elements: int  # longer than to write and read them
    slope_columns: int  # fewest
    slope_gap: int  # elements between their rows: a power of 2 apart, rows would share few sets of a cache
    few_rows: int = 0  # rows of a tile that a CPU fills: of no more, `linear` reads the weight once
    cores_of_tables: int = 0  # the tables are for so many: with more, each has fewer outputs; 0: for any number
    most_rows: int = 64  # descriptions tell no more
    step_inputs: int = 128  # up to so many are told as they are, and may be one step
    few_inputs: int = 32  # more are told by whether they are a multiple of 256, of 128, or of these
