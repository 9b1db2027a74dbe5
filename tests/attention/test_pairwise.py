"""Every pair of choices (type and size, variant, window, layout, entry point ...) against the reference.

Some 100 kernels are compiled on a cold cache. `pytest -m long` adds every dtype with every size.
"""

from dataclasses import replace
from itertools import cycle, product

import pytest
from arrays import LAYOUTS
from cases import (
    BROADCASTS,
    DIMS,
    ENTRIES,
    HEADS,
    SCALES,
    VARIANTS,
    WINDOWS,
    Case,
    is_possible,
    run,
)
from pairwise import pairwise

KERNELS = [("fp32", 64, 64), ("fp32", 111, 111), ("fp16", 40, 40), ("fp16", 59, 59), ("fp16", 192, 128)]
KERNELS += [("bf16", 64, 64), ("bf16", 128, 128), ("bf16", 256, 256), ("bf16", 576, 512)]
SIZES = [
    (127, 127),
    (1, 4000),
    (23, 63),
    (63, 23),
    (300, 1000),
    (1000, 300),
    (500, 600),
    (7, 7),
    (300, 1),
    (1, 127),
]
CHOICES = {
    "kernel": KERNELS,
    "sizes": SIZES,
    "variant": VARIANTS,
    "entry": ENTRIES,
    "window": list(WINDOWS),
    "broadcast": list(BROADCASTS),
    "heads": list(HEADS),
    "layout": LAYOUTS,
    "scale": list(SCALES),
    "batch": [2, 1],
    "alibi_batch": [False, True],
    "sinks": [False, True],
    "kind": ["torch", "numpy"],
    "lse": [True, False],
}


def case_of(row):
    row = dict(row)
    (dtype, dim, dim_v), (rows, keys) = row.pop("kernel"), row.pop("sizes")
    return Case(dtype=dtype, dim=dim, dim_v=dim_v, rows=rows, keys=keys, **row)


def compiled(row):
    """What a kernel is compiled for, about: the tile's height goes by the rows, decoding has its own."""
    rows, dropout = row["sizes"][0], row["variant"] == "dropout"
    tile = row["heads"] if rows == 1 and not dropout else min(64, max(16, 1 << (rows - 1).bit_length()))
    return row["kernel"], row["variant"], tile


def long_cases():
    """Every dtype, size and variant, the other choices in turn (their numbers are coprime or shifted)."""
    turns = {name: cycle(values) for name, values in CHOICES.items() if name not in ("kernel", "variant")}
    turns["sizes"] = cycle((1000, 1000) if sizes == (500, 600) else sizes for sizes in SIZES)
    cases = []
    for number, ((dim, dim_v), dtype, variant) in enumerate(product(DIMS, ("fp32", "fp16", "bf16"), VARIANTS)):
        for _ in range(200):  # the next turn that the public functions can say
            if number % 5 == 4:
                next(turns["layout"]), next(turns["sizes"])
            row = {name: next(turn) for name, turn in turns.items()}
            case = case_of(row | {"kernel": (dtype, dim, dim_v), "variant": variant})
            if is_possible(case):
                cases.append(case)
                break
            next(turns["entry"]), next(turns["window"])
        else:
            cases.append(replace(case, entry="attention", window="causal", scale="default"))
    return cases


PAIRWISE = [case_of(row) for row in pairwise(CHOICES, lambda row: is_possible(case_of(row)), compiled)]
LONG = [case for case in long_cases() if case not in PAIRWISE]


@pytest.mark.parametrize("case", PAIRWISE, ids=lambda case: case.id)
def test_matches_reference(case):
    run(case)


@pytest.mark.long
@pytest.mark.parametrize("case", LONG, ids=lambda case: case.id)
def test_matches_reference_long(case):
    run(case)
