"""Puts a package ``flash_attn`` into site-packages that imports ``xeflash.integrations.flash_attn``, and takes it out.

It is a distribution as pip writes them: programs that ask for the version of flash_attn find one, and ``pip uninstall
flash_attn`` removes it, too. It is never put over one that somebody else installed.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

VERSION = "2.8.3+xeflash"  # the release whose functions and signatures these are
_OURS = "xeflash.integrations.flash_attn"
_INSTALLER = "xeflash"
_INFO = f"flash_attn-{VERSION}.dist-info"
_HEADER = '"""By xeflash: `xeflash flash-attn install` wrote it, and `xeflash flash-attn remove` deletes it."""'
_MODULES = ("", "bert_padding", "flash_attn_interface", "layers", "layers.rotary")


class State(NamedTuple):
    """The package that a Python has under the name flash_attn."""

    version: str  # empty: nothing; "?" where nothing tells it
    place: Path
    ours: bool
    whole: bool = False  # ours, and nothing of it is missing


def site_packages() -> Path:
    """Returns the folder into which pip puts packages of this Python."""
    return Path(sysconfig.get_path("purelib"))


def state(folder: Path | None = None) -> State:
    """Returns what `folder` has under the name flash_attn; with None, what this Python would import."""
    paths = [str(folder)] if folder else [str(site_packages()), *sys.path]
    found = next(iter(metadata.distributions(name="flash_attn", path=paths)), None)
    spec = PathFinder.find_spec("flash_attn", paths)
    if found is None and spec is None:
        return State("", folder or site_packages(), False)
    ours = found is not None and (found.read_text("INSTALLER") or "").strip() == _INSTALLER
    place = Path(str(found.locate_file("flash_attn"))) if found is not None else folder or site_packages()
    if spec is not None:
        at = Path(next(iter(spec.submodule_search_locations or [str(spec.origin)])))
        ours = ours and at.resolve() == place.resolve() if found is not None else _is_ours(at / "__init__.py")
        place = at
    whole = ours and found is not None and all((place.parent / _path(module)).is_file() for module in _MODULES)
    return State(found.version if found is not None else "?", place, ours, whole)


def install(folder: Path | None = None) -> Path:
    """Writes the package into `folder`, by default where pip would; returns its path."""
    before = state(folder)
    if before.version and not before.ours:
        raise FileExistsError(
            f"flash_attn must not be installed by others, got version {before.version} in {before.place}: "
            "pip uninstall flash_attn removes it"
        )
    if before.ours:
        remove(folder)
    folder = folder or site_packages()
    files = {f"{_INFO}/{name}": text for name, text in _metadata().items()}
    files |= {_path(module): _source(module) for module in _MODULES}
    record = [f"{name},{_digest(text)},{len(text.encode())}" for name, text in files.items()]
    files = {f"{_INFO}/RECORD": "\n".join([*record, f"{_INFO}/RECORD,,", ""])} | files
    for name, text in files.items():  # RECORD first: what is there in part can be removed
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "flash_attn"


def remove(folder: Path | None = None) -> Path | None:
    """Deletes what ``install`` has written, and nothing else; returns where it was, or None."""
    before = state(folder)
    if not before.version:
        return None
    if not before.ours:
        raise FileExistsError(
            f"flash_attn must be installed by xeflash to be removed by it, got version {before.version} "
            f"in {before.place}"
        )
    root = before.place.parent.resolve()
    recorded = metadata.Distribution.at(root / _info_in(root)).files or () if before.version != "?" else ()
    written = [root / str(file) for file in recorded]
    written += [file for file in (root / _path(module) for module in _MODULES) if _is_ours(file)]
    written = [file for file in written if file.resolve().is_relative_to(root)]
    folders = {file.parent for file in written}
    for file in written:
        file.unlink(missing_ok=True)
    for each in folders:
        shutil.rmtree(each / "__pycache__", ignore_errors=True)
    for each in sorted(folders | {before.place}, key=lambda x: len(x.parts), reverse=True):
        if each != root and each.is_dir() and not any(each.iterdir()):
            each.rmdir()
    return before.place


def _is_ours(file: Path) -> bool:
    return file.is_file() and file.read_bytes().startswith(_HEADER.encode())


def _info_in(root: Path) -> str:
    """Returns the name of the package's metadata folder, which another release of ours may have named."""
    for found in sorted(root.glob("flash_attn-*.dist-info")):
        if (found / "INSTALLER").is_file() and (found / "INSTALLER").read_text().strip() == _INSTALLER:
            return found.name
    raise FileNotFoundError(f"flash_attn has no metadata of xeflash in {root}")


def _metadata() -> dict[str, str]:
    lines: Sequence[str] = (
        "Metadata-Version: 2.1",
        "Name: flash_attn",
        f"Version: {VERSION}",
        "Summary: The functions of flash-attn 2, by xeflash",
        "License: Apache-2.0",
        "Requires-Dist: xeflash",
        "",
    )
    return {
        "INSTALLER": f"{_INSTALLER}\n",
        "METADATA": "\n".join(lines),
        "WHEEL": "Wheel-Version: 1.0\nGenerator: xeflash\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "top_level.txt": "flash_attn\n",
    }


def _path(module: str) -> str:
    parts = ["flash_attn", *filter(None, module.split("."))]
    return "/".join(parts) + ("/__init__.py" if module in ("", "layers") else ".py")


def _source(module: str) -> str:
    name = ".".join(filter(None, (_OURS, module)))
    lines = [_HEADER, "", f"from {name} import *  # noqa: F403"]
    if not module:
        lines.append(f"from {name} import __version__  # noqa: F401")
    return "\n".join([*lines, ""])


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).decode().rstrip("=")
