"""Files of results: whether one can be written, and writing it so that it is whole at every moment."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def grows(file: Path) -> bool:
    """Returns whether a file can be replaced again and again; a pipe gets the end alone."""
    return file.is_file() or not file.exists()


def cannot_write(file: Path) -> str:
    """Returns why a file cannot be written there, or "" if it can; leaves no file behind."""
    try:
        if file.exists():
            file.open("a").close()
        if grows(file):
            tempfile.TemporaryFile(dir=file.resolve().parent).close()
    except OSError as error:
        return f"{file}: {error.strerror}"
    return ""


def write_whole(file: Path, text: str) -> None:
    """Writes a text aside and renames it; a reader, or a machine that stops, has the older text or this one."""
    if not grows(file):
        file.write_text(text, encoding="utf-8")
        return
    file = file.resolve()  # a link stays one
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with aside.open("w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        aside.replace(file)
    finally:
        aside.unlink(missing_ok=True)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
