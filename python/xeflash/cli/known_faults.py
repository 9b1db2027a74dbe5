"""Known faults of drivers and firmware by version, each with its source; `xeflash doctor` warns of them.

A fault that concerns calls of any library on a card belongs here, if its source tells the versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from xeflash.cli.cards import Card
from xeflash.cli.facts import Facts

Version = tuple[int, ...]
ISSUES = "https://github.com/intel/compute-runtime/issues"
FAQ = "https://github.com/intel/compute-runtime/blob/master/documentation/FAQ.md"
GUC, LINUX, DRIVER, WINDOW = "GuC firmware", "Linux", "Level Zero driver", "BAR of"


class Fault(NamedTuple):
    """A fault of all versions from the first named up to, not including, the second."""

    platforms: tuple[str, ...]
    versions: Mapping[str, tuple[Version, Version]]
    effect: str
    remedy: str
    source: str
    cards: int = 1
    module: str = ""


_NEVER: Version = (1 << 30,)
# Drivers count builds: 26.27.39122.12 is 1.15.39122+12 in Level Zero, (39122, 12) here.
FAULTS = (
    Fault(
        ("bmg",), {GUC: ((), (70, 65))},
        "compute can end in engine resets, device lost, or a GPU that hangs until the next boot",
        "install a linux-firmware with xe/bmg_guc_70.bin of 70.65 or newer, sudo update-initramfs -u, and reboot",
        f"{ISSUES}/948",
    ),
    Fault(
        ("bmg",), {LINUX: ((), (6, 12))},
        "xe takes Battlemage only where xe.force_probe names it, as not yet stable",
        "take Linux 6.12 or newer, or a distribution's kernel that has its xe",
        "https://patchwork.freedesktop.org/patch/msgid/20240828082152.3194814-1-balasubramani.vivekanandan@intel.com",
    ),
    Fault(
        ("dg2",), {LINUX: ((), (6, 2))}, "launches of kernels fail on Arc A", "take Linux 6.2 or newer",
        f"{ISSUES}/610",
    ),
    Fault(
        ("bmg",), {LINUX: ((6, 18), _NEVER), DRIVER: ((), (37020,))},
        "allocations fail with OUT_OF_DEVICE_MEMORY, or the driver aborts",
        "take compute-runtime 26.05.37020 or newer, which ran on Linux 7.0, or Linux 6.17",
        f"{ISSUES}/883, {ISSUES}/875, {ISSUES}/946",
    ),
    Fault(
        ("bmg",), {DRIVER: ((39122, 12), (39122, 13))}, "SYCL programs end with SIGSEGV on Arc Pro B50 and B70",
        "take compute-runtime 26.22.38646.7, which works, or one newer than 26.27.39122.12", f"{ISSUES}/971",
    ),
    Fault(
        ("bmg", "dg2"), {LINUX: ((), (7, 1)), DRIVER: ((37435,), _NEVER)},
        "allocations fail with OUT_OF_DEVICE_MEMORY in a program that sees two cards",
        "take Linux 7.1 or newer, or export NEOReadDebugKeys=1 ForceZeDeviceCanAccessPerReturnValue=0",
        f"{ISSUES}/916", cards=2, module="xe",
    ),
    Fault(
        ("bmg", "dg2", "pvc"), {WINDOW: ((1,), (257,))},
        "Resizable BAR is off, so the driver shows no GPU with xe, and is slow with i915",
        "enable Above 4G Decoding and Resizable BAR in the firmware settings (BIOS) of the mainboard", FAQ,
    ),
)  # fmt: skip


def version(text: str) -> Version:
    """Returns the numbers that a version begins with, as 6.17.0-14-generic and 70.65.0 do."""
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, match[0].split("."))) if match else ()


def build(driver: str) -> Version:
    """Returns the build of a driver by its version in Level Zero, 1.15.39122+12, or OpenCL, 26.27.39122.12."""
    match = re.match(r"\d+\.\d+\.(\d+)(?:[+.](\d+))?", driver)
    return tuple(int(word) for word in match.groups() if word) if match else ()


def versions_of(card: Card, facts: Facts) -> dict[str, tuple[str, Version]]:
    """Returns what is known of a card's software, as texts and as numbers."""
    devices = facts.probe.get("core", {}).get("devices", [])
    drivers = [str(x.get("driver", "")) for x in devices if x.get("arch") == card.platform]
    texts = {GUC: facts.guc.get(card.platform, ""), LINUX: facts.kernel, DRIVER: drivers[0] if drivers else ""}
    known = {name: (text, build(text) if name == DRIVER else version(text)) for name, text in texts.items()}
    return {**known, WINDOW: (f"{card.window} MiB", (card.window,))}


def known_faults(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yields the text of each fault that this machine has, and its remedy."""
    for card in facts.cards:
        alike = [other for other in facts.cards if other.platform == card.platform]
        versions = versions_of(card, facts)
        for fault in FAULTS:
            fits = card.platform in fault.platforms and fault.module in ("", card.module) and len(alike) >= fault.cards
            ranges = fault.versions.items()
            if fits and all(versions[name][1] and since <= versions[name][1] < end for name, (since, end) in ranges):
                found = " and ".join(f"{name} {versions[name][0]}" for name in fault.versions)
                yield f"{card}: {found}: {fault.effect} ({fault.source})", fault.remedy
