"""Every pair of choices (type and size, variant, window, layout, entry point ...) against the reference.

Some 30 kernels of the default set are in no other test; `pytest -m wide` has more of all pairs, and `-m long` every type with every size.
"""

from dataclasses import replace
from itertools import cycle, product

import pytest
from axes import BROADCASTS, DIMS, ENTRIES, HEADS, SCALES, VARIANTS, WINDOWS
from cover import cover, each, elements, kind_of_dims, with_wide
from memory import LAYOUTS
from pairwise import pairwise
from specs import attention, run
from xeflash.selftest.attention.spec import Spec, is_possible

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
    "window": WINDOWS,
    "broadcast": BROADCASTS,
    "heads": HEADS,
    "layout": LAYOUTS,
    "scale": SCALES,
    "batch": [2, 1],
    "slopes": ["h", "bh"],
    "sinks": [False, True],
    "kind": ["torch", "numpy"],
    "lse": [True, False],
}


def case_of(row):
    row = dict(row)
    return Spec(*row.pop("kernel"), rows=row["sizes"][0], keys=row.pop("sizes")[1], **row)


def algorithm_of(case):
    return "decode" if case.rows == 1 and not case.has("dropout") else "forward"


def kernel_of(case):
    """What a kernel is compiled for, about: the tile's height goes by the rows, decoding has its own."""
    heads, heads_k = case.heads
    decode = algorithm_of(case) == "decode"
    packed = heads > heads_k and case.rows <= 16 and case.variant in ("plain", "mask", "bias") and not decode
    negative = case.scale == -0.2 and case.variant in ("plain", "dropout")
    tile = heads // heads_k if decode else min(64, max(16, 1 << (case.rows - 1).bit_length()))
    return (case.dtype, *case.dims), case.variant, decode, packed, negative, tile


# What changes a kernel, or which keys a query sees.
FEATURES = ("dtype", "dims", "rows", "variant", "window", "sinks", "heads")


def choices_of(case):
    """In the words of a user, who knows no tiles."""
    same = ("dtype", "variant", "window", "sinks", "heads", "entry", "layout", "scale", "batch", "kind", "lse")
    found = {name: getattr(case, name) for name in same}
    found["algorithm"] = algorithm_of(case)
    found["dims"] = kind_of_dims(*case.dims)
    found["rows"] = "one" if case.rows == 1 else "few" if case.rows <= 16 else "many"
    found |= {"broadcast": case.broadcast} if case.masks else {}
    return found | ({"slopes": case.slopes} if case.has("alibi") else {})


def work(case):
    return case.rows * case.keys * case.batch * case.heads[0] * sum(case.dims) / 2e8


def pair(dims):
    return dims if isinstance(dims, tuple) else (dims, dims)


def long_cases():
    """Every dtype, size and variant, the other choices in turn (their numbers are coprime or shifted)."""
    turns = {name: cycle(values) for name, values in CHOICES.items() if name not in ("kernel", "variant")}
    turns["sizes"] = cycle((1000, 1000) if sizes == (500, 600) else sizes for sizes in SIZES)
    cases = []
    for number, (dims, dtype, variant) in enumerate(product(DIMS, ("fp32", "fp16", "bf16"), VARIANTS)):
        for _ in range(200):  # the next turn that the public functions can say
            if number % 5 == 4:
                next(turns["layout"]), next(turns["sizes"])
            row = {name: next(turn) for name, turn in turns.items()}
            case = case_of(row | {"kernel": (dtype, *pair(dims)), "variant": variant})
            if is_possible(case):
                cases.append(case)
                break
            next(turns["entry"]), next(turns["window"])
        else:
            cases.append(replace(case, entry="attention", window="causal", scale=None))
    return cases


PAIRWISE = [
    case_of(row)
    for row in pairwise(CHOICES, lambda row: is_possible(case_of(row)), lambda row: kernel_of(case_of(row)))
]
# Few sizes have one row, which is an algorithm of its own: it is given every type with every variant.
PAIRWISE += [
    attention(dtype, dim, dim, heads=heads, rows=1, keys=1000, window=window, variant=variant)
    for dtype, dim in (("fp32", 64), ("fp16", 40), ("bf16", 128))
    for variant, heads, window in zip(VARIANTS, cycle(HEADS), cycle(WINDOWS), strict=False)
    if variant != "dropout"
]

# The default set: what goes together is in one kernel, which each kind of head dim has, and each type. A query that is
# alone has kernels of its own. Every other choice meets what these are compiled for.
USUAL = [("fp32", 64, 64), ("bf16", 64, 64), ("fp16", 64, 64)]
OTHER_DIMS = [("bf16", 59, 59), ("fp32", 256, 256), ("fp16", 192, 128)]  # odd, wide, two
MIXTURE = "softcap+alibi+bias32+snippet"
COMPILED = [*product(USUAL, ("plain", "mask", "bias")), (USUAL[0], "dropout"), (USUAL[0], MIXTURE)]
COMPILED += [*product(OTHER_DIMS, ("plain", "mask+dropout", MIXTURE))]


OF_OTHERS = {"fp32": ("plain", "mask", "bias", "dropout", MIXTURE), "bf16": ("plain", "mask"), "fp16": ("plain",)}


def is_shared(kernel):
    """Whether other tests have it, too."""
    (dtype, dim, _), variant, _, packed, negative, _ = kernel
    return dim == 64 and variant in OF_OTHERS[dtype] and not negative and not (packed and variant == "bias")


OTHERS = {name: values for name, values in CHOICES.items() if name not in ("kernel", "variant")}


def default_case_of(row):
    kernel, variant = row["compiled"]
    return case_of({name: row[name] for name in OTHERS} | {"kernel": kernel, "variant": variant})


CANDIDATES = [
    default_case_of(row)
    for row in pairwise({"compiled": COMPILED} | OTHERS, lambda row: is_possible(default_case_of(row)))
]
# So that no other choice asks for a kernel, the usual ones meet each.
for dtype, rows, variant in product(("fp32", "bf16", "fp16"), (1, 127), ("plain", "mask")):
    usual = attention(dtype, 64, 64, rows=rows, variant=variant)
    CANDIDATES += filter(is_possible, each(usual, {name: OTHERS[name] for name in OTHERS if name != "sizes"}))
DEFAULT = cover(CANDIDATES, lambda case: elements(choices_of(case), FEATURES), kernel_of, work, is_shared)
LONG = [case for case in long_cases() if case not in PAIRWISE]


@pytest.mark.parametrize("case", with_wide(dict.fromkeys([*DEFAULT, *PAIRWISE]), DEFAULT))
def test_matches_reference(case):
    run(case)


@pytest.mark.long
@pytest.mark.parametrize("case", LONG, ids=lambda case: case.id)
def test_matches_reference_long(case):
    run(case)
