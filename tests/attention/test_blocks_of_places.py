"""Blocks that are left out, and conditions, of packed sequences and of caches, against float64."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from cover import with_wide
from specs import cached, run
from xeflash.selftest.attention.spec import Spec

OF_PLACES = (
    "blocks=64",
    "blocks=16x32.1h",
    "mask_mod",
    "blocks=32.lists+mask_mod",
    "blocks=16x128.lists+mask_mod",
    "blocks=32.11",
)
PLACES = (("plain", "full"), ("paged16", "causal"), ("pad", "causal"), ("beams", "full"), ("index", "full"))
PACKED: dict[str, Any] = {"heads": (4, 2), "rows": 127, "keys": 300}
RAGGED: dict[str, Any] = {
    "heads": (4, 2),
    "rows": (8, 0, 33, 1),
    "keys": (140, 9, 33, 300),
    "window": "causal",
    "place": "paged16",
}
SHARED = (
    [  # kernels of other tests, too
        Spec("fp32", entry="varlen", window=window, variant=variant, **PACKED)
        for window in ("full", "31,5")
        for variant in OF_PLACES[:4]
    ]
    + [cached("fp32", rows=rows, window="causal", variant=variant) for rows in (1, 5) for variant in OF_PLACES[:3]]
)
OF_THEIR_OWN = (
    [
        Spec(dtype, entry=entry, window="causal", variant=variant, **PACKED)
        for variant in OF_PLACES
        for dtype, entry in (("bf16", "varlen"), ("fp32", "varlen-used"))
    ]
    + [
        cached("fp32", rows=rows, place=place, variant=variant, splits=splits, window=window)
        for variant, (place, window) in product(OF_PLACES, PLACES)
        for rows, splits in ((1, 0), (1, 3), (5, 0), (33, 0))
    ]
    + [
        Spec("fp32", entry=entry, variant=variant, **RAGGED)
        for variant, entry in product(OF_PLACES, ("varlen", "varlen-alone", "varlen-used"))
    ]
    + [
        cached(
            "fp32",
            rows=4,
            new=4,
            place="paged16",
            keys=(129, 40, 700),
            window="causal",
            rotary="pairs",
            variant=variant,
        )
        for variant in OF_PLACES
    ]
    + [cached("bf16", format="e4m3", place="paged64", variant=variant) for variant in OF_PLACES]
)


@pytest.mark.parametrize("case", with_wide(SHARED + OF_THEIR_OWN, SHARED))
def test_packed_sequences_and_caches(case):
    run(case)
