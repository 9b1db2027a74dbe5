"""Intel's graphics cards as Linux shows them: kernel driver, memory within the CPU's reach, firmware."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# PCI devices by compute-runtime's shared/source/dll/devices/devices_base.inl. Integrated GPUs are not among them.
_PLATFORMS = {"e2": "bmg", "56": "dg2", "0bd": "pvc", "0b6": "pvc"}
_LOGS = (["dmesg"], ["journalctl", "--dmesg", "--boot", "--no-pager", "--output=cat"])
_SECONDS = 5


@dataclass(frozen=True)
class Card:
    """One graphics card."""

    address: str  # on the PCI bus
    device: str  # four digits
    module: str  # of the kernel, which drives it; "" without one
    window: int  # MiB of its memory that the CPU reaches at once, 0 if that is not known

    @property
    def platform(self) -> str:
        """Returns the architecture of the card."""
        return next(name for prefix, name in _PLATFORMS.items() if self.device.startswith(prefix))

    def __str__(self) -> str:
        """Returns what a report calls it."""
        return f"{self.platform} {self.device} at {self.address}"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def window_of(resource: str) -> int:
    """Returns the MiB of BAR 2 in the text of a PCI device's file `resource`: begin, end and flags a line."""
    lines = resource.splitlines()
    try:
        begin, end, _ = (int(word, 16) for word in lines[2].split())
    except (IndexError, ValueError):
        return 0
    return (end - begin + 1) >> 20 if end else 0


def find_cards(root: Path = Path("/")) -> tuple[Card, ...]:
    """Finds the cards on the PCI bus."""
    return tuple(_cards(root))


def _cards(root: Path) -> Iterator[Card]:
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        device = _text(folder / "device").strip().removeprefix("0x")
        is_gpu = _text(folder / "vendor").strip() == "0x8086" and _text(folder / "class").startswith("0x03")
        if is_gpu and device.startswith(tuple(_PLATFORMS)):
            module = folder / "driver"
            name = module.resolve().name if module.exists() else ""
            yield Card(folder.name, device, name, window_of(_text(folder / "resource")))


def guc_versions(text: str) -> dict[str, str]:
    """Returns the versions of the GuC by platform in the text of debugfs' guc_info, or of the kernel's log."""
    in_log = r"GuC firmware (?:from )?\S*?(\w+)_guc_\S+ version (\d[\d.]*\d)"
    in_debugfs = r"GuC firmware: \S*?(\w+)_guc_\S+\n(?:\t.*\n)*?\t.*\bfound (?:release )?(\d[\d.]*\d)"
    return dict(re.findall(in_log, text)) | dict(re.findall(in_debugfs, text))


def read_guc(root: Path = Path("/")) -> dict[str, str]:
    """Reads which GuC the cards have, where this user may know it: debugfs, or the kernel's log."""
    try:
        folder = root / "sys/kernel/debug/dri"
        files = [*folder.glob("*/gt*/uc/guc_info"), *folder.glob("*/tile*/gt*/uc/guc_info")]
    except OSError:
        files = []
    found = guc_versions("".join(map(_text, files)))
    for command in _LOGS:
        if found:
            break
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            continue
        found = guc_versions(done.stdout)
    return found
