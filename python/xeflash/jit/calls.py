"""The kernels that a call asks for: the extension runs it without its launches, on a device that need not be there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xeflash import _core
from xeflash.jit.provide import source_of
from xeflash.tune.desc import AnyDesc, Config, desc_of


def kernels_of(call: Callable[[], object], arch: str, units: int, device: str = "", driver: str = "") -> list[AnyDesc]:
    """In the order in which the call asks for them.

    `call` passes arrays of runtime.interop.Placeholder to the extension. `units`: compute units of the device, by which
    it shares out the call; with 1, none is without work.
    """
    found: list[AnyDesc] = []

    def sizes(values: dict[str, Any]) -> Config:
        found.append(desc_of(values))
        return source_of(found[-1]).config

    _core.describe(call, arch, device, driver, units, sizes)
    return found
