"""One query against a cache on an Intel GPU, its keys in 1 to 8 splits: `pytest --sim pvc tests/attention/test_gpu_decode.py`.

A kernel takes seconds to compile, so there are some 20, and 7 in the long set; every other choice meets every kernel.
"""

import pytest
import torch
import xeflash
from cover import few
from pairwise import pairwise
from specs import run
from tolerance import check_attention
from xeflash.selftest.attention.spec import Spec, is_possible
from xeflash.selftest.reference import Features

usm = pytest.importorskip("usm", reason="dpctl is not installed")

pytestmark = pytest.mark.gpu

# (dtype, head dims, heads, variant, layout): each number of heads and variant on each device (dealing.py).
OF_FEW_KEYS = [
    ("bf16", (128, 128), (12, 1), "alibi", "bhsd"),
    ("bf16", (128, 128), (8, 1), "alibi", "bhsd"),
    ("fp32", (576, 512), (8, 2), "plain", "bshd"),
    ("fp32", (64, 64), (10, 2), "mask", "bshd"),
    ("bf16", (576, 512), (8, 1), "plain", "bshd"),
    ("fp32", (64, 64), (20, 1), "bias", "odd"),
    ("fp16", (80, 80), (12, 1), "mask", "bhsd"),
    ("bf16", (64, 64), (8, 1), "bias", "bshd"),
]
OF_MANY_KEYS = [  # which threads take in turns: this is compiled in
    ("fp32", (128, 128), (2, 2), "softcap+alibi+bias32", "sliced"),
    ("fp16", (80, 80), (20, 1), "bias", "odd"),
    ("bf16", (80, 80), (10, 2), "mask", "bshd"),
    ("bf16", (128, 128), (2, 2), "softcap+alibi+bias32", "sliced"),
    ("bf16", (128, 128), (8, 2), "softcap+alibi+bias32", "sliced"),
    ("fp16", (192, 128), (12, 1), "alibi", "bhsd"),
    ("fp16", (64, 64), (20, 1), "plain", "bshd"),
    ("fp16", (64, 64), (10, 2), "plain", "bshd"),
    ("fp16", (128, 128), (8, 2), "softcap+alibi+bias32", "odd"),
    ("fp32", (256, 256), (2, 2), "alibi", "sliced"),
]
KERNELS = OF_FEW_KEYS + OF_MANY_KEYS
LONG_KERNELS = [
    ("bf16", (64, 64), (2, 2), "plain", "bshd"),
    ("bf16", (32, 512), (2, 2), "plain", "bshd"),
    ("bf16", (64, 64), (8, 2), "softcap", "bhsd"),
    ("fp16", (24, 24), (8, 1), "plain", "bshd"),
    ("fp16", (128, 128), (10, 2), "plain", "bshd"),
    ("fp16", (256, 256), (8, 1), "softcap", "bshd"),
    ("fp16", (512, 512), (10, 2), "alibi", "bhsd"),
]
CHOICES = {
    "kind": ["gpu", "usm"],
    "keys": [1, 63, 255, 600, 1000],
    "splits": [0, 1, 3, 8],
    "entry": ["func", "attention", "varlen", "varlen-used"],
    "window": ["full", "31,5", "50,-1", "causal-tl"],
    "slopes": ["h", "bh"],
    "sinks": [False, True],
    "lse": [True, False],
}


def case_of(row):
    row = dict(row)
    (dtype, (dim, dim_v), heads, variant, layout), _ = row.pop("kernel"), row.pop("splits")
    return Spec(dtype, dim, dim_v, heads, 1, variant=variant, layout=layout, **row)


def is_wanted(row):
    few = row["kernel"] in OF_FEW_KEYS
    return is_possible(case_of(row)) and (row["kernel"] in LONG_KERNELS or (row["keys"] < 512) == few)


def cases_of(kernels):
    rows = pairwise({"kernel": kernels} | CHOICES, is_wanted)
    return [(row["splits"], case_of(row)) for row in rows]


CASES = cases_of(KERNELS)
# A kernel of its own for each unit: the sign is compiled in.
CASES += [
    (3, Spec(heads=(2, 2), rows=1, keys=255, scale=-0.2, entry="attention", kind="gpu")),
    (3, Spec("fp16", heads=(8, 2), rows=1, keys=255, scale=-0.2, entry="attention", kind="gpu")),
    (3, Spec("fp32", heads=(10, 2), rows=1, keys=255, scale=-0.2, entry="attention", kind="gpu")),
]
# What the kernels above leave to the wide set: many keys, or few.
WIDE = [
    (3, Spec("bf16", 128, 128, rows=1, keys=1000, heads=(8, 1), variant="alibi", kind="gpu")),
    (3, Spec("bf16", 128, 128, rows=1, keys=255, variant="softcap+alibi+bias32", layout="sliced", entry="attention",
             kind="gpu")),
    (3, Spec("fp16", rows=1, keys=255, heads=(10, 2), kind="gpu")),
]  # fmt: skip


def launches():
    """What was launched, oldest first; None on a real GPU."""
    from xeflash import sim

    return [record.kernel for record in sim.last_launches()] if sim.enabled() else None


def with_splits(cases):
    return pytest.mark.parametrize("splits, case", cases, ids=[f"s{splits}-{case.id}" for splits, case in cases])


@with_splits(CASES)
def test_matches_reference(gpu, split, splits, case):
    split(splits)
    run(case)
    if (launched := launches()) is not None:
        assert len(launched) == (2 if splits > 1 else 1) or splits == 0
        assert "flash_decode" in launched[0]


@pytest.mark.wide
@with_splits(WIDE)
def test_matches_reference_wide(gpu, split, splits, case):
    test_matches_reference(gpu, split, splits, case)


@pytest.mark.long
@with_splits(cases_of(LONG_KERNELS))
def test_matches_reference_long(gpu, split, splits, case):
    test_matches_reference(gpu, split, splits, case)


def make(keys=1000, heads=(4, 2), dim=64):
    """q, k, v of (2, H, S, dim)."""
    return [
        torch.randn(2, n, length, dim).bfloat16() for n, length in ((heads[0], 1), (heads[1], keys), (heads[1], keys))
    ]


def call(*arrays):
    return xeflash.attention(*(usm.UsmArray(x, usm.gpu_queue()) for x in arrays), enable_gqa=True, return_lse=True)


@pytest.mark.parametrize("heads", [(2, 2), (4, 2)], ids=["vector-unit", "matrix-unit"])
def test_a_bad_value_spoils_only_the_heads_that_see_it(gpu, split, heads):
    """Rows beyond the keys in use of a block, and of the other splits, are not read."""
    split(3)
    q, k, v = make(keys=77, heads=heads)
    v[1, 1, 76, 5] = torch.nan
    out, lse = (usm.read(x) for x in call(q, k, v))
    assert torch.isnan(out[1, heads[0] // 2 :, 0, 5]).all()
    v[1, 1, 76, 5] = 0
    out[1, heads[0] // 2 :, 0, 5] = usm.read(call(q, k, v)[0])[1, heads[0] // 2 :, 0, 5]
    check_attention("nan", q, k, v, Features(), out, lse, gpu=True)


@pytest.mark.parametrize("heads", [(2, 2), (4, 2)], ids=["vector-unit", "matrix-unit"])
@pytest.mark.parametrize("layout", ["plain", "odd"])
def test_an_infinite_last_value_reaches_its_column_only(gpu, heads, layout):
    """The rows that a block has beyond the last key are not that key again."""
    q, k, v = make(keys=77, heads=heads)
    v[1, 1, 76, 5] = torch.inf
    if layout == "odd":
        k, v = (torch.cat([x, x[..., :1]], -1)[..., :-1] for x in (k, v))
    out = usm.read(call(q, k, v)[0])
    infinite = torch.zeros_like(out, dtype=torch.bool)
    infinite[1, heads[0] // 2 :, 0, 5] = True
    assert torch.equal(out == torch.inf, infinite) and torch.isfinite(out[~infinite]).all()


@pytest.mark.parametrize("heads", [(2, 2), (4, 2)], ids=["vector-unit", "matrix-unit"])
def test_what_lies_behind_the_keys_in_use_is_not_seen(gpu, split, heads):
    split(2)
    q, k, v = make(keys=100, heads=heads)
    used = torch.tensor([61, 100], dtype=torch.int32)
    k[0, :, 61:], v[0, :, 61:] = torch.nan, torch.inf
    packed = [x.transpose(1, 2).flatten(0, 1).contiguous() for x in (q, k, v)]
    starts = [torch.tensor([0, n, 2 * n], dtype=torch.int32) for n in (1, 100)]
    on_gpu = [usm.UsmArray(x, usm.gpu_queue()) for x in (*packed, *starts)]
    out = usm.read(xeflash.flash_attn_varlen_func(*on_gpu, 1, 100, seqused_k=usm.UsmArray(used, usm.gpu_queue())))
    for i, n in enumerate(used.tolist()):
        check_attention(f"sequence {i}", q[i : i + 1], k[i : i + 1, :, :n], v[i : i + 1, :, :n], Features(),
                        out[i : i + 1, None].transpose(1, 2), gpu=True)  # fmt: skip


def test_keys_are_split_until_the_device_is_full(gpu):
    """Those of a Xe-core's threads first, which merge in its shared memory."""
    for keys in (128, 1000, 5000):
        call(*make(keys=keys, heads=(2, 1)))
    if (launched := launches()) is not None:
        assert ["combine" in kernel for kernel in launched] == [False, False, False, True]


def test_keys_that_a_window_hides_are_not_split(gpu):
    q, k, v = make(keys=1000, heads=(2, 1))
    on_gpu = [usm.UsmArray(x.transpose(1, 2), usm.gpu_queue()) for x in (q, k, v)]
    out = usm.read(xeflash.flash_attn_func(*on_gpu, window_size=(99, 0))).transpose(1, 2)
    check_attention("window", q, k[:, :, -100:], v[:, :, -100:], Features(), out, gpu=True)
    if (launched := launches()) is not None:
        assert len(launched) == 1


@pytest.mark.parametrize("dims", few([(64, 64), (128, 128), (256, 256), (576, 512)], (128, 128)), ids=str)
@pytest.mark.parametrize("heads", few([5, 8, 16], 8, 16))
def test_keys_and_values_are_read_once_for_all_heads(gpu, split, heads, dims):
    from xeflash import sim

    if not sim.enabled():
        pytest.skip("only a simulator counts bytes")
    split(2)
    keys = 1024
    q, k, v = (torch.randn(1, n, length, dim).bfloat16()
               for n, length, dim in ((heads, 1, dims[0]), (1, keys, dims[0]), (1, keys, dims[1])))  # fmt: skip
    out = usm.read(call(q, k, v)[0])
    check_attention("once", q, k, v, Features(), out, gpu=True)
    takes_turns = max(dims) <= 256  # tiles have 8 rows then, else 16 up to 128 columns, and on dg2
    tiles = -(-heads // 8) if takes_turns else 1 if gpu == "dg2" or heads <= 8 else 2
    parts = 2 if takes_turns and gpu == "dg2" and dims[0] > 128 else 1  # of O, for which scores are made again
    needed = keys * (dims[0] * tiles * parts + dims[1] * tiles) * 2
    of_q = 2 * heads * dims[0] * 2 * (32 if takes_turns and gpu != "dg2" else 8) * parts  # by each thread of two splits
    assert needed <= sim.last_launches()[0].global_read <= 1.01 * needed + of_q


@pytest.mark.parametrize("splits", [-1, 1025])
def test_impossible_numbers_of_splits_are_refused(gpu, split, splits):
    split(splits)
    with pytest.raises(ValueError, match=f"attention: num_splits must be 0 .automatic. to 128, got {splits}"):
        call(*make())


@pytest.mark.parametrize("dim", few([64, 72], 64))
@pytest.mark.parametrize("q_layout", ["shifted", "far heads"])
def test_heads_of_a_query_may_lie_where_blocks_cannot_be_read(gpu, q_layout, dim):
    """Keys and values lie as 2D block messages want them, queries do not."""
    q, k, v = make(keys=77, heads=(8, 2), dim=dim)
    if q_layout == "shifted":  # the first head begins 16 bytes after a multiple of 64
        around = torch.full((q.numel() + 8,), torch.nan, dtype=q.dtype)
        q = around[8:].view(q.shape).copy_(q)
    else:  # a distance that is no multiple of 16 bytes
        around = torch.full((*q.shape[:-1], dim + 2), torch.nan, dtype=q.dtype)
        q = around[..., :dim].copy_(q)
    out, lse = (usm.read(x) for x in call(q, k, v))
    check_attention(q_layout, q, k, v, Features(), out, lse, gpu=True)
