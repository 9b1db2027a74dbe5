"""Options that families share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from xeflash import sim
from xeflash.bench.cases import DTYPES, parse_choices, parse_size, parse_sizes
from xeflash.cli.arguments import converter

Parser = argparse.ArgumentParser


def add_devices(parser: Parser, choices: tuple[str, ...] = sim.DEVICES, default: tuple[str, ...] = ()) -> None:
    """Adds --device, a comma list, which is required if there is no default."""
    names = ", ".join(choices) + (f"; default: {','.join(default)}" if default else "")
    kind = converter(lambda text: parse_choices(text, choices))
    parser.add_argument("--device", required=not default, default=default, type=kind, help=names)


def add_attention(parser: Parser, head_dims: tuple[int, ...] = (64, 128, 256)) -> None:
    """Adds the types and head dims of calls."""
    kind = converter(lambda text: parse_choices(text, DTYPES))
    parser.add_argument("--dtype", type=kind, default=("bf16",), help=f"{', '.join(DTYPES)}; default: bf16")
    add_sizes(parser, "--head-dim", head_dims)


def add_sizes(parser: Parser, name: str, default: tuple[int, ...], what: str = "") -> None:
    """Adds an option that is a comma list of numbers."""
    words = f"{what}default: {','.join(map(str, default))}"
    parser.add_argument(name, type=converter(parse_sizes), default=default, help=words)


def add_heads(parser: Parser, default: tuple[tuple[int, int], ...]) -> None:
    """Adds --heads, a list of query heads and KV heads."""
    words = f"query heads / KV heads; default: {','.join('/'.join(map(str, heads)) for heads in default)}"
    parser.add_argument("--heads", type=converter(_heads), default=default, help=words)


def _heads(text: str) -> tuple[tuple[int, int], ...]:
    pairs = [tuple(parse_size(number) for number in pair.split("/")) for pair in text.split(",")]
    if any(len(pair) != 2 or pair[0] % pair[1] for pair in pairs):
        raise ValueError(f"'{text}' is no list of query heads / KV heads, these dividing those, as in 8/1,10/2")
    return tuple((query, kv) for query, kv in pairs)


def add_caches(parser: Parser, default: str | None = None) -> None:
    """Adds --caches, which says what stands between the threads and memory."""
    words = "between threads and memory: l2, l1+l2, or l2:24 for an L2 of 24 MiB; launches then run on one host thread"
    kind = converter(_caches)
    parser.add_argument("--caches", type=kind, default=default, help=f"{words}; default: {default or 'not counted'}")


def _caches(text: str) -> str:
    if not re.fullmatch(r"(l1\+)?l2(:[1-9]\d*)?", text):
        raise ValueError(f"'{text}' is none of l2, l1+l2, l2:MIB, l1+l2:MIB")
    return text


def cases(options: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Yields (device, dtype, head dim)."""
    for device in options.device:
        for dtype in options.dtype:
            yield from ((device, dtype, dim) for dim in options.head_dim)
