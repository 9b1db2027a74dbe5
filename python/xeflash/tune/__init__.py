"""Tile sizes: one table per kernel and device family, the first row that fits wins. Nothing else chooses them."""

from xeflash.tune.table import Config, pick

__all__ = ["Config", "pick"]
