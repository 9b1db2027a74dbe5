"""Attention on a cache that lies on all ranks, beside one process and the reference."""

import random

import pytest
from kv_shards import shards

UNEVEN = (40, 0, 131)

PLAIN = [
    shards((100, 100), length="number", calls=3),
    shards(UNEVEN, page=1, calls=2),
    shards((1, 15), owners="ranges", calls=2),  # ranks without a key
    shards((0, 0), length="number", owners="ranges"),
    shards(UNEVEN, place="paged", page=32, dtype="bf16", heads=(8, 1), calls=20),
    shards((70, 70), length="number", place="paged", dtype="fp16", sinks=True, variant="softcap=5"),
    shards(UNEVEN, place="index", owners="ranges", sinks=True, dtype="bf16", variant="gain"),
    shards((47, 47), length="number", place="index", rotary="halves", calls=2),
    shards(UNEVEN, rotary="pairs", dtype="bf16", place="paged", rows=3, new=3),
    shards(UNEVEN, new=0, splits=3, unified=0.0),
]  # fmt: skip
EIGHT_BITS = [
    shards((50, 50), length="number", format="e4m3", dtype="bf16", calls=2),
    shards(UNEVEN, format="int8.array", dtype="bf16", place="paged", calls=2),
    shards(UNEVEN, format="e5m2.none", dtype="fp16", owners="ranges", place="index"),
    shards((31, 31), length="number", format="e4m3.array", dtype="bf16", rows=4, new=4),
    shards(UNEVEN, format="int8", dtype="fp16", rows=4, new=4),
]
SEVERAL = [
    shards(UNEVEN, rows=4, new=4, calls=2),
    shards((30, 30), length="number", rows=37, new=37, dtype="bf16", sinks=True, calls=2),
    shards(UNEVEN, rows=37, new=37, page=4, place="paged", variant="softcap=3"),
    shards(UNEVEN, rows=2, new=5),  # queries of the last new keys
    shards((30, 30), length="number", rows=5, new=3, window="full", page=2),
    shards(UNEVEN, rows=5, new=18, window="full", owners="ranges"),
    shards((20, 20), length="number", rows=3, new=0, window="full"),
]
BY_POSITION = [
    shards(UNEVEN, owners="ranges", window="20,causal", calls=2),
    shards((90, 90), length="number", owners="ranges", window="33,causal", dtype="bf16", rows=4, new=4, place="paged"),
    shards(UNEVEN, owners="ranges", format="int8", dtype="bf16", variant="alibi"),
    shards(UNEVEN, owners="ranges", rows=4, new=4, place="index", variant="softcap=5+alibi"),
    shards((50, 90, 131), owners="ranges", variant="slope", rows=37, new=37, sinks=True),
    shards((60, 60), length="number", owners="ranges", rows=37, new=37, dtype="fp16", calls=2),
    shards((200, 217), owners="ranges", window="100,causal", rows=4, new=4),  # wider than a range
    shards((60, 77), owners="ranges", rows=9, new=0),  # keys that are there already
    shards((60, 77), owners="ranges", rows=9, new=3, window="30,5"),
    shards((47, 47), length="number", owners="ranges", rotary="pairs", rows=3, new=3, window="40,causal"),
    shards(UNEVEN, owners="ranges", format="e4m3.array", dtype="bf16", rows=4, new=4, window="50,causal"),
]


CASES = PLAIN + EIGHT_BITS + SEVERAL + BY_POSITION
# What nothing here treats in a way of its own, and what takes more kernels than others; the wide set has them.
RARE = ("fp16", "e5m2", "index", "int8", "softcap", "slope", "gain", "unified", ".array")


@pytest.mark.parametrize("case", [x for x in CASES if not any(word in str(x) for word in RARE)], ids=str)
def test_results_are_those_of_one_process(case):
    case.run(3)


@pytest.mark.wide
@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_on_any_number_of_ranks(case, world):
    case.run(world)


def test_two_ranks_and_one():
    shards(UNEVEN, sinks=True, calls=2).run(2)
    shards((30, 30), length="number", rows=4, new=4).run(1)


def test_same_bits_twice():
    case = shards((700, 131), dtype="bf16", rows=4, new=4, sinks=True)
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
    scales = draw.choice(("", ".array") if form == "int8" else (".none", "", ".array")) if form else ""
    window = f"{draw.choice((3, 100, 1000))},0" if positional and draw.random() < 0.5 else "full"
    words = ["softcap=5"] * (draw.random() < 0.5) + ["alibi"] * (positional and draw.random() < 0.3)
    return shards(
        tuple(lengths), length="number" if as_int else "array", owners="ranges" if by_range else "pages",
        page=draw.choice((1, 16, 24, 256)), dtype=dtype, format=form + scales, rows=rows, new=new,
        place=draw.choice(("plain", "paged", "index")), heads=draw.choice(((4, 2), (4, 4), (8, 1))),
        window="causal" if window == "full" and (positional or not by_range or rows == 1) else window,
        variant="+".join(words) or "plain", sinks=draw.random() < 0.3, calls=draw.randint(1, 3),
    )  # fmt: skip


@pytest.mark.wide
@pytest.mark.parametrize("seed", range(60))
def test_drawn(seed):
    drawn(seed).run(2 + seed % 3)
