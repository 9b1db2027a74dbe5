"""The pairs of choices on an Intel GPU, a real or a simulated one: `pytest --sim pvc tests/attention/test_gpu.py`.

A kernel takes seconds to compile, so the default set has some 20: what happens to scores with each type, and in turn all
that kernels are compiled for besides: head dims, aligned or odd addresses, one, few or many rows, heads that share keys,
and negative scales. Every other choice meets every kernel. `-m wide` and `-m long` add every type and head dim with every
variant.
"""

from dataclasses import replace
from itertools import chain, cycle, product
from typing import NamedTuple

import plain
import pytest
import torch
from arrays import DTYPES
from axes import BROADCASTS, ENTRIES, FEW_HEADS, SCALES, VARIANTS, WINDOWS
from cover import few
from memory import SMALL_LAYOUTS
from pairwise import pairwise
from plain import call
from room import need_memory
from specs import run
from tolerance import check_attention
from xeflash.selftest.attention.spec import Spec, is_possible
from xeflash.selftest.reference import Features

usm = pytest.importorskip("usm", reason="dpctl is not installed")

pytestmark = pytest.mark.gpu

DIMS = [(16, 16), (24, 24), (64, 64), (72, 72), (80, 80), (96, 96), (128, 128), (192, 128), (256, 256), (576, 512)]
LONG_DIMS = [*DIMS, (8, 8), (40, 40), (64, 128), (112, 112), (320, 320)]
# (queries, keys) of kernels for one row, for few, for few with the keys shared out, and for many, which begin after 64
# rows or after 16 of wide heads.
SIZES = {
    "one": [(1, 300), (1, 1), (1, 63)],
    "few": [(7, 63), (5, 127), (9, 9)],
    "few of many keys": [(5, 700), (7, 1000)],
    "many": [(127, 127), (300, 127), (1000, 63), (300, 1)],
    "many of wide heads": [(127, 127), (63, 7), (300, 127), (1000, 63), (300, 1)],
}
LONG_SIZES = [*chain(*SIZES.values()), (63, 1000), (1000, 1000)]
LAYOUTS = {"aligned": ("bshd", "bhsd"), "sliced": ("sliced",), "odd": ("odd",)}
# Numbers of heads that share a kernel: where rows are few, one is for heads that share keys, or for a number of them.
HEADS = {
    "many": (FEW_HEADS,),
    "few": (((1, 1), (2, 2)), ((3, 1), (4, 2))),
    "one": (((1, 1), (2, 2)), ((4, 2),), ((3, 1),)),
}

# What must be refused, before anything is compiled: (dtype, head dims, what the message says).
REFUSED = [
    ("bf16", (59, 59), "q.head_dim .* multiple of 8, .* got 59"),
    ("fp16", (4, 4), "q.head_dim .* multiple of 8, .* got 4"),
    ("fp32", (111, 111), "q.head_dim .* multiple of 8, .* got 111"),
    ("bf16", (64, 60), "v.head_dim .* multiple of 8, .* got 60"),
]


class Kernel(NamedTuple):
    dtype: str
    dims: tuple[int, int]
    variant: str
    rows: str  # of SIZES
    addresses: str  # of LAYOUTS
    heads: tuple[tuple[int, int], ...]
    may_negate: bool


# With all that can happen to scores: what goes together is in one kernel, each with each type.
MIXED_VARIANTS = ("plain", "softcap+snippet", "mask", "softcap+alibi+bias32", "bias", "dropout")
# Head dims of the variants in turn, from which variant on; which have odd addresses, and few rows.
TURNS = {
    "bf16": ([(576, 512), (24, 24), (128, 128), (64, 64), (80, 80), (256, 256)], 0, (1, 3), (2, 3)),
    "fp16": ([(64, 64), (16, 16), (192, 128), (128, 128), (96, 96), (256, 256)], 2, (0, 3), (0, 1)),
    "fp32": ([(128, 128), (80, 80), (64, 64), (72, 72), (16, 16), (256, 256)], 4, (1, 2), (0, 2)),
}


def kernels():
    """The usual one, then types and variants."""
    found = [Kernel("bf16", (64, 64), "plain", "many", "aligned", FEW_HEADS, True)]
    found.append(Kernel("bf16", (64, 64), "softcap+snippet", "one", "aligned", ((4, 2),), False))  # bmg has no other
    odd, few = cycle(["odd", "sliced"]), cycle(["one", "few", "few of many keys"])
    heads = {name: cycle(ways) for name, ways in HEADS.items()}
    for dtype, (all_dims, first, odd_turns, few_turns) in TURNS.items():
        for number, dims in enumerate(all_dims):
            variant = MIXED_VARIANTS[(number + first) % len(MIXED_VARIANTS)]
            addresses = next(odd) if number % 4 in odd_turns else "aligned"
            rows = next(few) if number % 4 in few_turns else "many"
            ways = next(heads[rows.partition(" ")[0]])
            found.append(Kernel(dtype, dims, variant, rows, addresses, ways, number in (0, 2) and dims != (576, 512)))
    return found


OTHER_CHOICES = {
    "kind": ["gpu", "usm"],
    "entry": ENTRIES,
    "window": WINDOWS,
    "broadcast": BROADCASTS,
    "heads": FEW_HEADS,
    "scale": SCALES,
    "batch": [1, 2],
    "slopes": ["h", "bh"],
    "sinks": [False, True],
    "lse": [True, False],
}
# Numbers of the sizes and layouts that are for a kernel, in turn.
CHOICES = {"kernel": kernels(), "size": range(7), "layout": range(2)} | OTHER_CHOICES


def case_of(row):
    row = dict(row)
    kernel, size, layout = (row.pop(name) for name in ("kernel", "size", "layout"))
    sizes = SIZES["many of wide heads" if kernel.rows == "many" and kernel.dims[0] > 64 else kernel.rows]
    rows, keys = sizes[size % len(sizes)]
    layouts = LAYOUTS[kernel.addresses]
    return Spec(kernel.dtype, *kernel.dims, rows=rows, keys=keys, layout=layouts[layout % len(layouts)],
                variant=kernel.variant, **row)  # fmt: skip


def is_small(case):
    """At most some 0.3 M instructions of the GPU, a tenth of a second on a simulator."""
    multiply_adds = case.batch * case.heads[0] * case.rows * case.keys * sum(case.dims)
    return multiply_adds * (4 if case.dtype == "fp32" else 1) <= 32e6


def long_cases():
    """Every type, head dim and variant, the other choices in turn."""
    turns = {name: cycle(values) for name, values in OTHER_CHOICES.items()}
    sizes, layouts = cycle(LONG_SIZES), cycle(SMALL_LAYOUTS)
    cases = []
    for number, (dtype, (dim, dim_v), variant) in enumerate(product(DTYPES, LONG_DIMS, VARIANTS)):
        for attempt in range(200):
            if number % 3 == attempt % 5:
                next(layouts), next(sizes)
            (rows, keys), layout = next(sizes), next(layouts)
            others = {name: next(turn) for name, turn in turns.items()}
            case = Spec(dtype, dim, dim_v, rows=rows, keys=keys, layout=layout, variant=variant, **others)
            if is_possible(case) and is_small(case):
                cases.append(case)
                break
            next(turns["entry"]), next(turns["window"])
        else:
            plain = {"entry": "attention", "window": "causal", "scale": None, "batch": 1, "heads": (1, 1)}
            cases.append(replace(case, **plain, rows=63, keys=127))
    return cases


def is_wanted(row):
    kernel = row["kernel"]
    if row["heads"] not in kernel.heads or (row["scale"] == -0.2 and not kernel.may_negate):
        return False
    if kernel.rows == "few of many keys" and kernel.variant == "mask" and "h" in row["broadcast"]:
        return False  # one more kernel: heads that share keys are rows of a tile only where they share a mask
    return is_possible(case := case_of(row)) and is_small(case)


PAIRWISE = list(dict.fromkeys(case_of(row) for row in pairwise(CHOICES, is_wanted)))
LONG = [case for case in long_cases() if case not in PAIRWISE]
# Kernels that those of the default set are near to.
NEAR = [
    Spec(dim=128, dim_v=128, rows=300, window="causal", kind="gpu"),
    Spec(dim=576, dim_v=512, batch=1, heads=(1, 1), scale=-0.2, kind="gpu"),
    Spec("fp16", rows=7, keys=1000, heads=(3, 1), variant="mask", entry="attention", layout="odd", kind="gpu"),
    Spec(
        "fp32", 16, 16, rows=5, keys=700, heads=(4, 2), variant="mask", broadcast="1hqk", entry="attention", kind="gpu"
    ),
]


@pytest.mark.parametrize("case", PAIRWISE, ids=lambda case: case.id)
def test_matches_reference(gpu, case):
    run(case)


@pytest.mark.wide
@pytest.mark.parametrize("case", [*NEAR, *LONG[::8]], ids=lambda case: case.id)
def test_matches_reference_of_more_kernels(gpu, case):
    run(case)


@pytest.mark.long
@pytest.mark.parametrize("case", [case for i, case in enumerate(LONG) if i % 8], ids=lambda case: case.id)
def test_matches_reference_long(gpu, case):
    run(case)


# Outputs that some devices share out over threads: with all that happens to scores.
WIDE = Spec(dim=256, dim_v=256, rows=100, keys=150, batch=1, heads=(3, 1), window="causal", sinks=True, kind="gpu")


@pytest.mark.parametrize("variant", few(VARIANTS))
def test_wide_outputs_with_every_variant(gpu, variant):
    run(replace(WIDE, variant=variant, entry="attention", layout="bhsd"))


def test_wide_outputs_of_scores_that_grow(gpu):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, rows, 256).bfloat16() for heads, rows in ((2, 70), (1, 300), (1, 300)))
    k *= 2 ** (torch.arange(300) // 8 * 5 % 64 / 12)[:, None]  # the largest in any part of a block
    out, lse = call(*on_gpu(q, k, v))
    check_attention("growing", q, k, v, Features(), usm.read(out), usm.read(lse), gpu=True)


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: "{}-d{}x{}".format(refused[0], *refused[1]))
def test_what_gpus_cannot_do_is_refused(gpu, refused):
    dtype, dims, message = refused
    for variant, entry in (("plain", "func"), ("plain", "varlen"), ("dropout", "attention")):
        with pytest.raises(NotImplementedError, match=message):
            run(Spec(dtype, *dims, variant=variant, entry=entry, kind="gpu"))


# ---- arrays; these and the following tests share a kernel with the cases ------------------------


def make(rows=127, keys=127):
    return plain.make(rows, keys, dtype=torch.bfloat16)


def on_gpu(*arrays, **how):
    return [usm.UsmArray(x, usm.gpu_queue(), **how) for x in arrays]


@pytest.mark.parametrize("kind", ["device", "shared", "host"])
def test_kinds_of_memory(gpu, kind):
    q, k, v = make()
    out, lse = call(*on_gpu(q, k, v, kind=kind))
    check_attention(kind, q, k, v, Features(), usm.read(out), usm.read(lse))


@pytest.mark.parametrize("properties", [[], ["in_order"]], ids=["out-of-order", "in-order"])
def test_queues_of_the_caller(gpu, properties):
    q, k, v = make()
    queue = usm.dpctl.SyclQueue("level_zero:gpu", property=properties)
    out, _ = call(*(usm.UsmArray(x, queue) for x in (q, k, v)))
    assert out.__sycl_usm_array_interface__["syclobj"] == queue
    check_attention("queue", q, k, v, Features(), usm.read(out))


@pytest.mark.parametrize("offset", [1, 2, 4, 8, 32])
def test_any_start_in_memory(gpu, offset):
    q, k, v = make()
    out = torch.full(q.shape, 7.0, dtype=q.dtype)
    (result,) = on_gpu(out, offset=offset)
    call(*on_gpu(q, k, v, offset=offset), out=result)
    got = torch.from_numpy(result.memory.copy_to_host()).view(out.dtype)
    assert torch.all(got[:offset] == 77)
    check_attention("offset", q, k, v, Features(), got[offset:].view(out.shape))


@pytest.mark.parametrize("change", ["expanded", "expanded-heads", "rows-apart"])
def test_views(gpu, change):
    q, k, v = make()
    if change == "expanded":
        k, v = (x[:, :, :1].expand(2, 2, 127, 64) for x in (k, v))
    elif change == "expanded-heads":
        k, v = (x[:1, :1].expand(2, 2, 127, 64) for x in (k, v))
    else:
        q, k, v = (x.repeat_interleave(2, 2)[:, :, ::2] for x in (q, k, v))
    out, lse = call(*on_gpu(q, k, v))
    check_attention(change, q, k, v, Features(), usm.read(out), usm.read(lse))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("bytes_apart", [-64, 1 << 27])
def test_rows_that_are_not_near_are_refused(gpu, rows, bytes_apart):
    q, k, v = on_gpu(*make(rows, 40))
    for array, name in ((k, "k"), (v, "v")):
        plain = array.__sycl_usm_array_interface__
        strides = (2 * 40 * 64, 40 * 64, bytes_apart // 2, 1)
        array.__sycl_usm_array_interface__ = plain | {"strides": strides, "offset": 39 * 64}
        with pytest.raises(ValueError, match=rf"{name}\w* must have rows 0 to 2\^27 - 1 .*got {bytes_apart};"):
            call(q, k, v)
        array.__sycl_usm_array_interface__ = plain
    if rows == 1:  # whose heads are the rows of a tile
        plain = q.__sycl_usm_array_interface__
        q.__sycl_usm_array_interface__ = plain | {"strides": (4 * 64, bytes_apart // 2, 64, 1), "offset": 192}
        with pytest.raises(ValueError, match=r"q\w* must have heads 0 to 2\^27 - 1 bytes apart on a GPU"):
            call(q, k, v)


def test_no_keys_and_no_rows(gpu):
    for rows, keys in ((0, 5), (3, 0)):
        q, k, v = make(rows, keys)
        out, lse = call(*on_gpu(q, k, v))
        assert out.shape == q.shape and lse.shape == q.shape[:3]
        assert torch.all(usm.read(out) == 0) and torch.all(usm.read(lse) == -torch.inf)


def test_a_bad_query_spoils_its_own_row_only(gpu):
    q, k, v = make()
    want = usm.read(call(*on_gpu(q, k, v))[0])
    for bad in (torch.nan, torch.inf):
        spoilt = q.clone()
        spoilt[1, 2, 31, 3] = bad
        out = usm.read(call(*on_gpu(spoilt, k, v))[0])
        assert torch.isnan(out[1, 2, 31]).all()
        out[1, 2, 31] = want[1, 2, 31]
        assert torch.isfinite(out).all()
        assert (out - want).abs().max() <= 0.02  # the simulator moves results of math by a few ulp


def test_more_heads_than_16_bits(gpu):
    torch.manual_seed(0)
    q = torch.randn(1, 66000, 1, 16).half()
    k, v = (torch.randn(1, 66000, 3, 16).half() for _ in range(2))
    out, lse = call(*on_gpu(q, k, v))
    check_attention("heads", q, k, v, Features(), usm.read(out), usm.read(lse), gpu=True)


def test_strides_beyond_4_gib(gpu):
    torch.manual_seed(0)
    q = torch.randn(1, 2, 9, 64).half()
    k, v = (torch.randn(1, 2, 40, 64).half() for _ in range(2))
    queue, head_bytes = usm.gpu_queue(), 5 << 30
    need_memory(2 * head_bytes, "xpu")
    try:
        arrays = [usm.far_apart(x, queue, 1, head_bytes) for x in (k, v)]
    except usm.dpctl.memory.USMAllocationError:
        pytest.skip("the device has no 5 GiB in one allocation")
    out, lse = call(*on_gpu(q), *arrays)
    check_attention("far heads", q, k, v, Features(), usm.read(out), usm.read(lse), gpu=True)
