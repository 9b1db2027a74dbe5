"""Calls by which sizes are chosen, in the order of their use, and the rows of candidates that they decide about."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from xeflash.bench.cases import Case
from xeflash.bench.shares import call_of
from xeflash.jit.calls import kernels_of
from xeflash.tune.desc import Desc
from xeflash.tune.models import SHAPES
from xeflash.tune.table import candidates
from xeflash.tune.tuned import key_of
from xeflash.tuner import PHASES

_HEADS = ((32, 8), (32, 32), (64, 8))  # of queries, of keys
_QUERIES = (2, 4, 8, 16)  # of a sequence that are verified together
_MOST_CASES = 2  # that decide about a row

Shape = tuple[int, int, int]  # heads of queries, heads of keys, head dim


@dataclass(frozen=True)
class Sizes:
    """Batch and length of prompts and of training, batch and keys of decoding, and those that share out calls."""

    prefill: tuple[tuple[int, int], ...]
    decode: tuple[tuple[int, int], ...]
    train: tuple[tuple[int, int], ...]
    schedule: tuple[tuple[int, int], ...]


CPU = Sizes(((1, 1024),), ((1, 4096), (4, 1024)), ((1, 512),), ((1, 1024), (1, 8192), (4, 2048)))
GPU = Sizes(
    ((1, 2048), (4, 1024)), ((1, 8192), (16, 2048)), ((1, 1024),), ((1, 1024), (1, 8192), (1, 65536), (16, 4096))
)


@dataclass(frozen=True)
class Row:
    """The candidates of one key, the first of which is the tables', and the cases that decide.

    `kernels` are those of the key; a number of the schedule has none, as its candidates compile nothing.
    """

    key: str
    candidates: tuple[Any, ...]  # rows and keys of a tile, or a number
    cases: tuple[Case, ...]
    kernels: tuple[Desc, ...] = ()

    @property
    def trained(self) -> str:
        """Returns the algorithm of gradients, whose candidates are not tried together with others; else ""."""
        return next((desc.algorithm for desc in self.kernels if self.cases[0].gradients), "")


def shapes_of(models: Sequence[str], head_dims: Sequence[int]) -> list[Shape]:
    """Returns the shapes of these models, or usual ones with these head dims."""
    if not models:
        return [(*heads, dim) for dim in head_dims for heads in _HEADS]
    found: dict[Shape, None] = {}
    for name in models:
        for shape in SHAPES[name]:
            if shape.head_dim != shape.head_dim_v:
                dims = f"{shape.head_dim} and {shape.head_dim_v}"
                raise ValueError(f"--model-shapes must have one head dim for keys and values, {name} has {dims}")
            found[shape.heads_q, shape.heads_k, shape.head_dim] = None
    return list(found)


def cases_of(shapes: Sequence[Shape], phases: Sequence[str], dtypes: Sequence[str], sizes: Sizes) -> Iterator[Case]:
    """Yields the cases in the order of their use: a head dim's phases after each other, and training at the end.

    Of many queries, the number of heads makes no difference to a kernel: those of the first shape decide.
    """
    dims = list(dict.fromkeys(dim for *_, dim in shapes))
    order = [*itertools.product(dims, [x for x in PHASES[:3] if x in phases], dtypes)]
    order += itertools.product(dims, [x for x in PHASES[3:] if x in phases], dtypes)
    for dim, phase, dtype in order:
        heads_of_dim = [(q, k) for q, k, own in shapes if own == dim]
        for heads, kv_heads in heads_of_dim if phase in ("decode", "verify") else heads_of_dim[:1]:
            yield from _cases_of(phase, dtype, heads, kv_heads, dim, sizes)


def _cases_of(phase: str, dtype: str, heads: int, kv_heads: int, dim: int, sizes: Sizes) -> Iterator[Case]:
    if phase in ("prefill", "train"):
        for batch, length in sizes.prefill if phase == "prefill" else sizes.train:
            kind = "prefill" if phase == "prefill" else "backward"
            yield Case(kind, dtype, batch, heads, kv_heads, dim, length, length, causal=True)
    else:
        queries = _QUERIES if phase == "verify" else (1,)
        yield from _on_cache(dtype, heads, kv_heads, dim, queries, sizes.decode)


def _on_cache(
    dtype: str, heads: int, kv_heads: int, dim: int, queries: Iterable[int], sizes: Iterable[tuple[int, int]]
) -> Iterator[Case]:
    """Yields calls of few queries on many keys, all of which they see."""
    for count, (batch, keys) in itertools.product(queries, sizes):
        yield Case("decode" if count == 1 else "prefill", dtype, batch, heads, kv_heads, dim, count, keys, causal=False)


def rows_of(cases: Iterable[Case], arch: str, units: int, device: str = "", driver: str = "") -> list[Row]:
    """Returns the rows of the kernels that have candidates, in the order of the cases."""
    rows: dict[str, Row] = {}
    for case in cases:
        for desc in dict.fromkeys(kernels_of(call_of(case), arch, units, device, driver)):
            if not isinstance(desc, Desc) or len(candidates(desc)) < 2:
                continue
            key = key_of(desc)
            row = rows.get(key) or Row(key, candidates(desc), ())
            if case not in row.cases and len(row.cases) < _MOST_CASES:
                kernels = tuple(dict.fromkeys((*row.kernels, desc)))
                rows[key] = dataclasses.replace(row, cases=(*row.cases, case), kernels=kernels)
    return list(rows.values())


def cases_of_schedule(shape: Shape, phases: Sequence[str], dtype: str, sizes: Sizes) -> list[Case]:
    """Returns the cases that decide about the schedule: decoding and verifying, of few keys and many."""
    queries = [count for phase, count in (("decode", 1), ("verify", 4)) if phase in phases]
    heads, kv_heads, dim = shape
    return list(_on_cache(dtype, heads, kv_heads, dim, queries, sizes.schedule))
