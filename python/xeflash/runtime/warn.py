"""Warnings of what a process meets again and again."""

from __future__ import annotations

import threading
import warnings

_said: set[str] = set()
_guard = threading.Lock()


def warn_once(text: str) -> None:
    """Says it as a warning, but once in a process."""
    with _guard:
        if text in _said:
            return
        _said.add(text)
    warnings.warn(f"xeflash: {text}", RuntimeWarning, stacklevel=3)
