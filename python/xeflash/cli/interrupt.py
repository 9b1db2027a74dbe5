"""Interrupts of long commands, which keep what they have."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def one_interrupt() -> Iterator[None]:
    """Makes SIGTERM an interrupt, too, and ignores those after the first until the end, as `timeout` sends two."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: handler for number, handler in before.items() if handler not in (None, signal.SIG_IGN)}

    def stop(*_: object) -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        before.clear()
        raise KeyboardInterrupt

    for number in tuple(before):
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in tuple(before.items()):
            signal.signal(number, handler)
