"""The numbers by which the extension shares out a call over its device: what depends on sizes that no kernel knows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Of a device; python/host/schedule.cpp reads them once, by these names, and decides by them per call."""

    split_keys: int  # fewest of a split, where splits are to fill the device
    split_keys_of_row: int  # and for each row of its tile
    split_bytes: int  # most that a split reads of K, where the heads of a key lie beside each other; 0: any number
    split_least: int  # keys, whatever the bytes
    whole_waves: bool  # splits fill the device at most once; else its last threads may find other work
    turns: int  # threads of a group that take turns at the keys of one tile where tiles are few; 0: none
    turn_keys: int  # fewest for that
    page_unit: int  # keys of the largest block that is cut where a page ends
    threads_of_unit: int = 4  # that a compute unit (a GPU's vector engine) has work for
    tile_rows: int = 16  # most of a thread
    packed_queries: int = 16  # most whose heads, if they share keys, are the rows of one tile
    one_pass: bool = False  # backward: a kernel may make dQ, dK and dV, where there are heads enough
    split_few: int = 0  # keys of a split, of those that are split anyway, where units would have none; 0: split_keys
    key_rows: int = 0  # rows that a tile could have for the time that bringing in its keys takes; 0: tiles are full
