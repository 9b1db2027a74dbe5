"""Converters for argparse that keep the text of our errors."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def converter(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Returns `parse` with its ValueError turned into argparse's error, which keeps the text."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert
