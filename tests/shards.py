"""Which part of a set a run is of, as its command says it: K/N; and what tells one test of a function from another."""

from __future__ import annotations

from collections.abc import Mapping

import pytest


def parse(text: str) -> tuple[int, int]:
    """The number and how many there are; ValueError names what is wrong."""
    number, slash, shards = text.partition("/")
    if not (slash and number.isdecimal() and shards.isdecimal() and 1 <= int(number) <= int(shards)):
        raise ValueError(f"--shard must be K/N with 1 <= K <= N, got {text!r}")
    return int(number), int(shards)


def parameters_of(item: pytest.Item) -> Mapping[str, object]:
    return item.callspec.params if hasattr(item, "callspec") else {}
