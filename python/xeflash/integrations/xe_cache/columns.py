"""Columns of keys, and the table that beam search permutes."""

from __future__ import annotations

from typing import Any

import torch

SPARE = 256  # columns that are made beyond those that are needed


class Columns:
    """The columns that layers with one window share: how many there are, and which row holds whose key."""

    def __init__(self, window: int | None, max_len: int | None) -> None:
        self.window, self.max_len = window, max_len
        self.count = 0
        self.tables: dict[torch.device, torch.Tensor] = {}  # none: every row holds its own keys
        self._left_pad: tuple[Any, int, torch.Tensor | None, int] = (None, 0, None, 0)

    def kept(self, keys: int) -> int:
        """Counts those of `keys` keys that a later query may see."""
        return keys if self.window is None else min(keys, self.window - 1)

    def grow(self, needed: int) -> None:
        """Makes room for `needed` keys, and for some more."""
        wanted = max(2 * self.count, needed + SPARE)
        if self.window is not None:
            self.count = max(needed, min(wanted, 2 * self.window))
        elif self.max_len is None:
            self.count = wanted
        elif needed <= self.max_len:
            self.count = self.max_len
        else:
            raise ValueError(
                f"XeCache: max_cache_len must be at least {needed}, the number of keys, got {self.max_len}"
            )

    def permute(self, rows: torch.Tensor, used: int) -> None:
        """Reorders the columns that have keys: row i becomes what row rows[i] is."""
        if rows.device not in self.tables:
            own = torch.arange(len(rows), dtype=torch.int32, device=rows.device)
            self.tables[rows.device] = own[:, None].repeat(1, self.count)
        table = self.tables[rows.device]
        table[:, :used] = table[:, :used].index_select(0, rows)

    def free(self, begin: int, end: int) -> None:
        """Frees columns without keys, so that every row will write its own there."""
        for table in self.tables.values():
            table[:, begin:end] = torch.arange(len(table), dtype=torch.int32, device=table.device)[:, None]

    def left_pad(self, padding: torch.Tensor, before: int) -> tuple[torch.Tensor | None, int]:
        """Returns where the keys of each row begin, or None unless padding is on the left, and the last such place.

        `before` columns come before those of padding.
        """
        if self._left_pad[0] is not padding or self._left_pad[1] != before:
            hidden = padding.shape[1] - padding.sum(1, dtype=torch.int32)
            column = torch.arange(padding.shape[1], dtype=torch.int32, device=padding.device)
            is_left = bool((padding == (column >= hidden[:, None])).all())
            starts = hidden + before
            self._left_pad = (padding, before, starts if is_left else None, int(starts.max()))
        return self._left_pad[2:]
