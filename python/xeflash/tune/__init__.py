"""Tile sizes, one table per kernel and device family in which the first row that fits wins, and shares of calls.

Nothing else chooses sizes.
"""

from xeflash.tune.desc import Config
from xeflash.tune.products import product_schedule
from xeflash.tune.schedule import ProductSchedule, Schedule
from xeflash.tune.table import pick, schedule

__all__ = ["Config", "ProductSchedule", "Schedule", "pick", "product_schedule", "schedule"]
