"""Faults that are known and not mended yet: what they look like."""

from __future__ import annotations

import re

# Name, and what is found in the text of a case that is one of them.
KNOWN: dict[str, str] = {}


def known_fault(text: str) -> str:
    """The name of the fault that this is; empty: of none."""
    return next((name for name, pattern in KNOWN.items() if re.search(pattern, text)), "")
