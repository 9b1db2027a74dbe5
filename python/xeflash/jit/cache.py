"""The disk cache: a folder per kernel with source.cpp, kernel.bin, build.log and meta.json.

An entry is built in a folder aside and renamed whole, under a lock of its own, so that processes may share the cache
and die at any moment. What is corrupt is built again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Built:
    """What a compiler made of a source."""

    binary: bytes
    log: str


def cache_folder() -> Path:
    """``XEFLASH_CACHE_DIR``, or the user's cache folder."""
    given = os.environ.get("XEFLASH_CACHE_DIR")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "xeflash"


def read(entry: Path) -> bytes | None:
    """The binary of an entry; None if there is none, or if it is not what was written."""
    try:
        binary = (entry / "kernel.bin").read_bytes()
        meta = json.loads((entry / "meta.json").read_text())
    except (OSError, ValueError):
        return None
    return binary if isinstance(meta, dict) and meta.get("sha256") == hashlib.sha256(binary).hexdigest() else None


def get_or_build(
    key: str, source: str, meta: dict[str, object], build: Callable[[], Built], again: bool = False
) -> bytes:
    """The binary of `key`, from disk or built now (`again`: in any case) and kept.

    A cache that cannot be written is only warned about.
    """
    folder = cache_folder()
    entry = folder / key
    binary = None if again else read(entry)
    if binary is not None:
        return binary
    built: Built | None = None
    try:
        with _locked(folder, key):
            binary = None if again else read(entry)  # another process may have been faster
            if binary is not None:
                return binary
            built = build()
            _write(folder, entry, source, meta, built)
    except OSError as error:
        warnings.warn(
            f"xeflash: the kernel cache {folder} cannot be used ({error}); kernels are compiled again in every "
            "process. Set XEFLASH_CACHE_DIR to a writable folder",
            RuntimeWarning,
            stacklevel=2,
        )
    return (built or build()).binary


@contextlib.contextmanager
def _locked(folder: Path, key: str) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f".{key}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released by the kernel when the process dies
        yield


def _write(folder: Path, entry: Path, source: str, meta: dict[str, object], built: Built) -> None:
    aside = Path(tempfile.mkdtemp(prefix=f".{entry.name}.", dir=folder))
    try:
        (aside / "source.cpp").write_text(source)
        (aside / "kernel.bin").write_bytes(built.binary)
        (aside / "build.log").write_text(built.log)
        digest = hashlib.sha256(built.binary).hexdigest()
        (aside / "meta.json").write_text(json.dumps({**meta, "sha256": digest}, indent=1) + "\n")
        if entry.exists():  # corrupt, or refused by the device
            shutil.rmtree(entry)
        aside.chmod(0o755)
        aside.rename(entry)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
