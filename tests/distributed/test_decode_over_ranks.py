"""Attention on a cache that lies on all ranks, beside one process and the reference."""

import random

import pytest
from kv_shards import MODS, Case

UNEVEN = (40, 0, 131)
BY_POSITION_OF_KEYS, BY_HEAD = MODS

PLAIN = [
    Case((100, 100), as_int=True, calls=3),
    Case(UNEVEN, page=1, calls=2),
    Case((1, 15), owners="ranges", calls=2),  # ranks without a key
    Case((0, 0), as_int=True, owners="ranges"),
    Case(UNEVEN, place="paged", page=32, dtype="bf16", heads=(8, 1), calls=20),
    Case((70, 70), as_int=True, place="paged", dtype="fp16", softcap=5.0, sinks=True),
    Case(UNEVEN, place="index", owners="ranges", sinks=True, dtype="bf16", score_mod=BY_HEAD),
    Case((47, 47), as_int=True, place="index", rotary="halves", calls=2),
    Case(UNEVEN, rotary="pairs", dtype="bf16", place="paged", rows=3, new=3),
    Case(UNEVEN, new=0, options={"num_splits": 3, "unified_max": 0.0}),
]  # fmt: skip
EIGHT_BITS = [
    Case((50, 50), as_int=True, format="e4m3", scales="number", dtype="bf16", calls=2),
    Case(UNEVEN, format="int8", scales="array", dtype="bf16", place="paged", calls=2),
    Case(UNEVEN, format="e5m2", dtype="fp16", owners="ranges", place="index"),
    Case((31, 31), as_int=True, format="e4m3", scales="array", dtype="bf16", rows=4, new=4),
    Case(UNEVEN, format="int8", scales="number", dtype="fp16", rows=4, new=4),
]
SEVERAL = [
    Case(UNEVEN, rows=4, new=4, calls=2),
    Case((30, 30), as_int=True, rows=37, new=37, dtype="bf16", sinks=True, calls=2),
    Case(UNEVEN, rows=37, new=37, page=4, place="paged", softcap=3.0),
    Case(UNEVEN, rows=2, new=5),  # queries of the last new keys
    Case((30, 30), as_int=True, rows=5, new=3, causal=False, page=2),
    Case(UNEVEN, rows=5, new=18, causal=False, owners="ranges"),
    Case((20, 20), as_int=True, rows=3, new=0, causal=False),
]
BY_POSITION = [
    Case(UNEVEN, owners="ranges", window=(20, 0), calls=2),
    Case((90, 90), as_int=True, owners="ranges", window=(33, 0), dtype="bf16", rows=4, new=4, place="paged"),
    Case(UNEVEN, owners="ranges", alibi=True, format="int8", scales="number", dtype="bf16"),
    Case(UNEVEN, owners="ranges", alibi=True, rows=4, new=4, place="index", softcap=5.0),
    Case((50, 90, 131), owners="ranges", score_mod=BY_POSITION_OF_KEYS, rows=37, new=37, sinks=True),
    Case((60, 60), as_int=True, owners="ranges", rows=37, new=37, dtype="fp16", calls=2),
    Case((200, 217), owners="ranges", window=(100, 0), rows=4, new=4),  # wider than a range
    Case((60, 77), owners="ranges", rows=9, new=0),  # keys that are there already
    Case((60, 77), owners="ranges", rows=9, new=3, window=(30, 5), causal=False),
    Case((47, 47), as_int=True, owners="ranges", rotary="pairs", rows=3, new=3, window=(40, 0)),
    Case(UNEVEN, owners="ranges", format="e4m3", scales="array", dtype="bf16", rows=4, new=4, window=(50, 0)),
]


CASES = PLAIN + EIGHT_BITS + SEVERAL + BY_POSITION
# What nothing here treats in a way of its own, and what takes more kernels than others; the wide set has them.
RARE = ("fp16", "e5m2", "index", "int8", "softcap", "score_mod", "unified_max", "scales=array")


@pytest.mark.parametrize("case", [x for x in CASES if not any(word in str(x) for word in RARE)], ids=str)
def test_results_are_those_of_one_process(case):
    case.run(3)


@pytest.mark.wide
@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_on_any_number_of_ranks(case, world):
    case.run(world)


def test_two_ranks_and_one():
    Case(UNEVEN, sinks=True, calls=2).run(2)
    Case((30, 30), as_int=True, rows=4, new=4).run(1)


def test_same_bits_twice():
    case = Case((700, 131), dtype="bf16", rows=4, new=4, sinks=True)
    assert case.run(3) == case.run(3)


def drawn(seed):
    """Any case that is valid."""
    draw = random.Random(seed)
    by_range = draw.random() < 0.5
    as_int, several = draw.random() < 0.4, draw.random() < 0.5
    new = draw.choice((2, 4, 37, 100)) if several else draw.choice((0, 1))
    lengths = [draw.choice((0, 1, 15, 16, 17, 130, 700, 3000)) for _ in range(draw.randint(1, 4))]
    lengths = [draw.choice(lengths)] * len(lengths) if as_int else lengths
    least = min(lengths) + new
    rows = draw.randint(2, new) if new > 1 else 1
    positional = by_range and rows <= least
    form = draw.choice(("", "", "e4m3", "e5m2", "int8"))
    dtype = draw.choice(("bf16", "fp16") if form else ("fp32", "bf16", "fp16"))
    scales = (
        draw.choice(("number", "array")) if form == "int8" else draw.choice(("", "number", "array")) if form else ""
    )
    return Case(
        tuple(lengths), as_int=as_int, owners="ranges" if by_range else "pages", page=draw.choice((1, 16, 24, 256)),
        dtype=dtype, format=form, scales=scales, place=draw.choice(("plain", "paged", "index")), rows=rows, new=new,
        heads=draw.choice(((4, 2), (4, 4), (8, 1))), causal=positional or not by_range or rows == 1,
        window=(draw.choice((3, 100, 1000)), 0) if positional and draw.random() < 0.5 else (-1, -1),
        softcap=draw.choice((0.0, 5.0)), sinks=draw.random() < 0.3, alibi=positional and draw.random() < 0.3,
        calls=draw.randint(1, 3),
    )  # fmt: skip


@pytest.mark.wide
@pytest.mark.parametrize("seed", range(60))
def test_drawn(seed):
    drawn(seed).run(2 + seed % 3)
