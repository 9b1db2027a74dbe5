"""A line on a terminal while something takes longer than half a second."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

_DELAY = 0.5


@contextlib.contextmanager
def progress(what: str) -> Iterator[None]:
    """Shows `what` and the seconds so far on stderr, if it is a terminal; the line is gone at the end."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()

    def show() -> None:
        start = time.monotonic()
        if done.wait(_DELAY):
            return
        while True:
            print(
                f"\r\x1b[Kxeflash: {what} ... {time.monotonic() - start:.1f} s",
                end="",
                file=sys.stderr,
                flush=True,
            )
            if done.wait(0.1):
                break
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
