"""Descriptions of calls: the extension runs a call without its launches, on a device that need not be there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xeflash import _core
from xeflash.jit.provide import source_of
from xeflash.tune import Config, schedule
from xeflash.tune.desc import AnyDesc, desc_of
from xeflash.tune.table import level_of_schedule
from xeflash.tune.tuned import Level


@dataclass(frozen=True)
class Launch:
    """One launch of a call: an entry point of a kernel, and its work-groups. On CPUs a group is one work-item."""

    desc: AnyDesc
    entry: str
    groups: int
    threads_of_group: int

    @property
    def threads(self) -> int:
        """Returns the threads of all groups."""
        return self.groups * self.threads_of_group


@dataclass(frozen=True)
class Shares:
    """The shares of a call that the parts of a device get."""

    kernels: tuple[AnyDesc, ...]  # in the order in which the call asks for them
    launches: tuple[Launch, ...]  # in their order
    splits: int  # splits of the keys; 1: they are not split
    partial_bytes: int  # memory that a launch leaves results in for the next ones
    units: int  # compute units of the device
    device_threads: int  # threads that the device has work for at a time, as tune.Schedule counts them
    schedule_from: Level  # who chose the numbers of the schedule

    @property
    def widest(self) -> Launch:
        """Returns the launch of most threads, of those that do not merge what another one left."""
        return max((x for x in self.launches if x.entry == x.desc.entries[0]), key=lambda x: x.threads)

    def percent(self, launch: Launch) -> float:
        """Returns a launch's threads in percent of the device's."""
        return 100 * launch.threads / self.device_threads

    def waves(self, launch: Launch) -> int:
        """Returns how often a launch's threads fill the device; the last time may fill a part."""
        return -(-launch.threads // self.device_threads)


def shares_of(call: Callable[[], object], arch: str, units: int, device: str = "", driver: str = "") -> Shares:
    """Describes how a call is shared out over `units` compute units: vector engines of a GPU, cores of a CPU.

    `call` passes arrays of runtime.interop.Placeholder to the extension; if it calls several functions, splits and
    bytes are the most that one of them has.
    """
    found: list[AnyDesc] = []

    def sizes(values: dict[str, Any]) -> tuple[tuple[str, ...], Config]:
        found.append(desc_of(values))
        return found[-1].entries, source_of(found[-1]).config

    launches, splits, partial_bytes = _core.describe(call, arch, device, driver, units, sizes)
    return Shares(
        kernels=tuple(found),
        launches=tuple(Launch(found[kernel], entry, *counts) for kernel, entry, *counts in launches),
        splits=splits,
        partial_bytes=partial_bytes,
        units=units,
        device_threads=units * schedule(arch, device, driver).threads_of_unit,
        schedule_from=level_of_schedule(arch, device, driver),
    )


def kernels_of(call: Callable[[], object], arch: str, units: int, device: str = "", driver: str = "") -> list[AnyDesc]:
    """Returns the kernels of `shares_of`; with one compute unit, every kernel has work."""
    return list(shares_of(call, arch, units, device, driver).kernels)
