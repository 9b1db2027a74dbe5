"""The disk cache: a folder per kernel with source.cpp, kernel.bin, build.log and meta.json.

An entry is built in a folder aside and renamed whole, under a lock of its own, so that processes may share the cache
and die at any moment. An entry is built again if it is corrupt, if it was made from other inputs, or if somebody else
may have written it (see runtime.cache_folder).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from xeflash.runtime.cache_folder import Folder, Refused, cache_folder, is_makeshift, open_folder
from xeflash.runtime.warn import warn_once

__all__ = ["Built", "cache_folder", "get_or_build", "keep_log", "read", "why_nothing_is_kept"]

_MOST_BYTES = {"kernel.bin": 1 << 28, "meta.json": 1 << 20}


@dataclass(frozen=True)
class Built:
    """A binary that a compiler has made of a source, with the compiler's log."""

    binary: bytes
    log: str


def read(key: str, meta: Mapping[str, object]) -> bytes | None:
    """Reads the binary of `key` that was made from `meta`; returns None if there is none, or if it has changed."""
    try:
        with open_folder(cache_folder()) as folder:
            return _read(folder, key, meta)
    except OSError:
        return None


def get_or_build(
    key: str, source: str, meta: Mapping[str, object], build: Callable[[], Built], again: bool = False
) -> bytes:
    """Returns the binary of `key`, from disk or built now and kept; `again` builds it in any case.

    `meta` is all that the binary depends on, in types of JSON. A cache that cannot be used is only warned about.
    """
    built: Built | None = None
    try:
        with open_folder(cache_folder(), make=True) as folder:
            if is_makeshift():
                warn_once(
                    f"no home folder was found, and kernels are kept in {folder.path}. Set HOME or XEFLASH_CACHE_DIR"
                )
            binary = None if again else _read(folder, key, meta)
            if binary is not None:
                return binary
            with folder.lock(f".{key}.lock"):
                binary = None if again else _read(folder, key, meta)  # another process may have been faster
                if binary is not None:
                    return binary
                built = build()
                _write(folder, key, source, meta, built)
    except OSError as error:
        warn_once(
            f"the kernel cache {cache_folder()} cannot be used ({_reason(error)}); kernels are compiled again in every "
            "process. Set XEFLASH_CACHE_DIR to a writable folder of your own"
        )
    return (built or build()).binary


def why_nothing_is_kept() -> str:
    """Returns why the cache cannot be filled, or "" if it can."""
    try:
        with open_folder(cache_folder(), make=True) as folder:
            return "" if folder.is_writable() else f"{folder.path} must be writable"
    except OSError as error:
        return f"{cache_folder()} cannot be used: {_reason(error)}"


def keep_log(name: str, text: str) -> Path:
    """Keeps a text beside the entries; raises OSError if it cannot be kept."""
    with open_folder(cache_folder(), make=True) as folder:
        folder.write(name, text.encode())
        return folder.path / name


def _read(folder: Folder, key: str, meta: Mapping[str, object]) -> bytes | None:
    try:
        with folder.folder(key) as entry:
            binary, text = (entry.read(name, most) for name, most in _MOST_BYTES.items())
        found = json.loads(text)
    except Refused as error:
        warn_once(f"{error}; the kernel is compiled again")
        return None
    except (OSError, ValueError, RecursionError):
        return None
    return binary if found == _stamped(meta, binary) else None


def _write(folder: Folder, key: str, source: str, meta: Mapping[str, object], built: Built) -> None:
    aside = folder.unused(key)
    try:
        with folder.make(aside) as entry:
            entry.write("source.cpp", source.encode())
            entry.write("kernel.bin", built.binary)
            entry.write("build.log", built.log.encode())
            entry.write("meta.json", (json.dumps(_stamped(meta, built.binary), indent=1) + "\n").encode())
        folder.move(aside, key)  # the entry there is corrupt, or the device has refused it
    finally:
        folder.remove(aside)


def _stamped(meta: Mapping[str, object], binary: bytes) -> dict[str, object]:
    """Returns the content of meta.json for a binary."""
    return {**meta, "sha256": hashlib.sha256(binary).hexdigest()}


def _reason(error: OSError) -> str:
    """Returns an error's text without the names of files, which differ from kernel to kernel."""
    return str(error) if isinstance(error, Refused) or error.strerror is None else error.strerror
