"""Attention on caches of every kind against the reference, over every pair of choices."""

from dataclasses import replace
from itertools import product

import pytest
import torch
import xeflash
from arrays import DTYPES, ArraysOf, from_array, is_on_gpu, to_array
from axes import CACHE_HEADS, CACHE_WINDOWS, FORMATS, LENGTHS
from cover import cover, each, elements, few, few_rows, kind_of_dims, with_wide
from memory import sparse
from pairwise import pairwise
from plain import check_rows_first
from room import need_memory
from specs import cached, run
from tolerance import by_rule
from xeflash.selftest.arrays import TorchArrays
from xeflash.selftest.attention.drawn import draw
from xeflash.selftest.attention.spec import is_possible
from xeflash.selftest.reference import Features
from xeflash.selftest.values import Values

KERNELS = [("fp32", 64, 64), ("bf16", 80, 80), ("bf16", 128, 128), ("bf16", 576, 512), ("fp16", 64, 64)]
KERNELS += [("fp16", 256, 256)]
PLACES = {
    "plain": ("plain", "index", "pad", "pad"),
    "paged": ("paged16", "paged64", "paged256", "paged48"),
    "beam": ("beams1", "beams2", "beams4", "beams5"),
}
CHOICES = {
    "kernel": [(*kernel, rows) for kernel in KERNELS for rows in (1, 5)],  # which are algorithms of their own
    "keys": LENGTHS,
    "heads": CACHE_HEADS,
    "cache": list(PLACES),
    "place": [0, 1, 2, 3],
    "format": ["", *FORMATS, "e4m3.array", "int8.array", "int8.nibbles"],
    "new": [0, 1, 5],
    "rotary": ["", "pairs", "halves"],
    "window": CACHE_WINDOWS,
    "variant": ["plain", "softcap", "alibi"],
    "sinks": [False, True],
    "splits": [0, 1, 2, 3, 7, 32],
    "length": ["array", "number"],
    "kind": ["torch", "numpy"],
    "lse": [True, False],
}


def case_of(row):
    row = dict(row)
    dtype, dim, dim_v, rows = row.pop("kernel")
    place = PLACES[row.pop("cache")][row.pop("place")]
    scale = -0.2 if row["splits"] == 3 else None
    return cached(dtype, dim, dim_v, rows=rows, place=place, scale=scale, **row)


def kind_of_place(case):
    return next((name for name in ("paged", "beam") if case.place.startswith(name)), "plain")


def kernel_of(case):
    """What a kernel is compiled for, about."""
    tile = case.heads if case.rows == 1 else case.rows
    return case.dtype, case.dim, kind_of_place(case), case.format, case.variant, tile


FEATURES = ("dtype", "dims", "rows", "place", "format", "variant")


def choices_of(case):
    same = ("dtype", "rows", "variant", "keys", "heads", "rotary", "window", "sinks", "splits", "length")
    found = {name: getattr(case, name) for name in (*same, "kind", "lse")}
    found["algorithm"] = "decode" if case.rows == 1 else "forward"
    found["format"], _, scales = case.format.partition(".")
    found["scales"] = scales or "number"
    return found | {"place": kind_of_place(case), "dims": kind_of_dims(*case.dims), "new": case.new > 0}


CASES = [
    case_of(row)
    for row in pairwise(CHOICES, lambda row: is_possible(case_of(row)), lambda row: kernel_of(case_of(row)))
]

# The default set: each type with each format, for one query and for several, as these are kernels of their own. What else is
# compiled comes in turn, so that each format meets each place; most of fp32, and what is plain, are kernels of other tests.
OF_TYPES = {
    ("fp32", 64, 64): "plain- plain--softcap plain--alibi paged- beam- beam-e5m2 plain-int8.array paged-e4m3.array",
    ("bf16", 64, 64): "plain- paged-e5m2-softcap+alibi",
    ("bf16", 576, 512): "plain-e4m3-softcap+alibi beam-int8.array-softcap+alibi",
    ("fp16", 64, 64): "plain- plain-e5m2-softcap+alibi",
    ("fp16", 256, 256): "paged-int8 beam-e4m3.array-softcap+alibi",
}
COMPILED = [
    dict(zip(("kernel", "cache", "format", "variant"), ((*kernel, rows), *f"{word}-plain".split("-")), strict=False))
    for kernel, words in OF_TYPES.items()
    for word in words.split()
    for rows in (1, 5)
]
OTHERS = {name: values for name, values in CHOICES.items() if name not in COMPILED[0]}


def default_case_of(row):
    return case_of({name: value for name, value in row.items() if name != "compiled"} | row["compiled"])


def is_wanted(case):
    """Few of them append, have negative scales, or share no heads: each is one more kernel."""
    same = not case.format
    few = case.splits != 3 or case.variant != "plain" or (same and case.dtype == "fp32" and case.place == "plain")
    few = few and (same or case.rows == 1 or case.heads != (32, 32))
    return is_possible(case) and few and (not case.new or same or (case.dtype == "fp32" and case.format != "e5m2"))


CANDIDATES = [
    default_case_of(row)
    for row in pairwise({"compiled": COMPILED} | OTHERS, lambda row: is_wanted(default_case_of(row)))
]
# So that no other choice asks for a kernel, the usual ones meet each.
for dtype, rows, new in product(DTYPES, (1, 5), (0, 5)):
    usual = cached(dtype, 64, 64, heads=(8, 1), rows=rows, keys=LENGTHS[-1] if not new else (70, 9), new=new)
    CANDIDATES += filter(is_wanted, each(usual, {name: OTHERS[name] for name in OTHERS if name != "place"}))


def is_shared(kernel):
    """Whether other tests have it, too."""
    dtype, dim, place, form, variant, tile = kernel
    return (dim, form) == (64, "") and (place != "beam" or tile != 5) and (variant == "plain" or dtype == "fp32")


DEFAULT = cover(CANDIDATES, lambda case: elements(choices_of(case), FEATURES), kernel_of, is_shared=is_shared)


@pytest.mark.parametrize("case", with_wide(dict.fromkeys([*DEFAULT, *CASES]), DEFAULT))
def test_matches_reference(case):
    run(case)


# ---- on GPUs ------------------------------------------------------------------------------------

# (dtype, head dims, place, format, rows, heads, what else is compiled for it; "many": keys that threads take in turns): each
# place with each format, which dealing.py deals so that each device has all of both and all types; each type has all of both on some device.
GPU_KERNELS = [
    ("fp32", 64, 64, "paged16", "e4m3", 1, (6, 2), "append unified"),
    ("fp16", 576, 512, "paged64", "int8", 1, (8, 1), "unified"),
    ("bf16", 256, 256, "paged256", "e5m2", 1, (8, 1), "many"),
    ("fp32", 80, 80, "paged32", "", 1, (6, 2), "negative many"),
    ("bf16", 64, 64, "beams5", "e4m3.array", 1, (6, 2), "append negative"),
    ("fp32", 64, 64, "beams4", "int8.array", 1, (2, 2), "unified"),
    ("fp16", 96, 96, "beams2", "e5m2.array", 5, (6, 2), "append"),
    ("bf16", 64, 64, "beams2", "", 5, (8, 1), "many"),
    ("fp16", 128, 128, "index", "e4m3", 1, (8, 1), "append negative"),
    ("bf16", 80, 80, "plain", "int8.array", 5, (6, 2), ""),
    ("fp32", 192, 128, "pad", "e5m2", 5, (6, 2), "append"),
    ("fp16", 80, 80, "pad", "", 5, (6, 2), "append"),
]
GPU_CHOICES = {
    "kernel": GPU_KERNELS,
    "keys": LENGTHS[1:5],
    "new": [0, 1, 5],
    "rotary": ["", "pairs", "halves"],
    "window": CACHE_WINDOWS,
    "sinks": [False, True],
    "splits": [0, 1, 2, 3],
    "unified": [None, 5.0],
    "length": ["array", "number"],
    "lse": [True, False],
}


def gpu_case_of(row):
    row = dict(row)
    dtype, dim, dim_v, place, form, rows, heads, _ = row.pop("kernel")
    variant = "softcap" if dim == 96 else "alibi" if place == "index" else "plain"
    row["scale"] = -0.2 if row["splits"] == 3 else None
    return cached(
        dtype, dim, dim_v, heads=heads, rows=rows, place=place, format=form, variant=variant, kind="gpu", **row
    )


def is_wanted_on_gpu(row):
    case, more = gpu_case_of(row), row["kernel"][-1]
    if case.new and "append" not in more:
        return False
    compiled = {
        "negative": case.splits == 3,
        "unified": case.unified is not None,
        "many": max(case.keys) > 512,
    }
    return is_possible(case) and all((name in more) == wanted for name, wanted in compiled.items())


GPU_CASES = [gpu_case_of(row) for row in pairwise(GPU_CHOICES, is_wanted_on_gpu)]


@pytest.mark.gpu
@pytest.mark.parametrize("case", GPU_CASES, ids=lambda case: case.id)
def test_matches_reference_on_gpu(gpu, case):
    run(case)


QUANTISED = cached("fp16", 128, 128, heads=(8, 1), keys=(70, 9), place="index", format="e4m3", variant="alibi")


@pytest.mark.gpu
@pytest.mark.parametrize("keys", few([480, 960], 480))  # threads take more in turns
@pytest.mark.parametrize("case", [QUANTISED], ids=lambda case: case.id)  # whose kernel this is
def test_a_quantised_cache_is_read_once_on_gpu(gpu, case, keys):
    """As the bytes that it has, for all heads that share it."""
    from xeflash import sim

    if not sim.enabled():
        pytest.skip("only a simulator counts bytes")
    dim = case.dim
    q, k, v = torch.randn(1, 1, 8, dim), torch.randn(1, keys, 1, dim), torch.randn(1, keys, 1, dim)
    arrays = [to_array(x, "gpu") for x in (q.half(), k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn))]
    slopes = to_array(torch.zeros(8), "gpu")
    from_array(xeflash.flash_attn_with_kvcache(*arrays, num_splits=1, alibi_slopes=slopes), "gpu")
    (launch,) = sim.last_launches()
    needed = 2 * keys * dim
    of_q = launch.threads * 8 * dim * 2
    assert needed <= launch.global_read <= 1.01 * needed + of_q


@pytest.mark.gpu
@pytest.mark.parametrize("place", ["q", "k", "v"])
@pytest.mark.parametrize("case", [QUANTISED], ids=lambda case: case.id)  # whose kernel this is
def test_a_nan_beside_keys_and_values_in_fp8_on_gpu(gpu, case, place):
    """Which are multiplied as if it were a number: it still reaches what it belongs to, and nothing else."""
    dim = case.dim
    q, k, v = torch.randn(1, 1, 8, dim), torch.randn(1, 480, 1, dim), torch.randn(1, 480, 1, dim)
    {"q": q, "k": k, "v": v}[place][0, 0 if place == "q" else 470, 3 if place == "q" else 0, 9] = float("nan")
    arrays = [to_array(x, "gpu") for x in (q.half(), k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn))]
    slopes = to_array(torch.zeros(8), "gpu")
    out = from_array(xeflash.flash_attn_with_kvcache(*arrays, num_splits=1, alibi_slopes=slopes), "gpu")
    want = torch.zeros(1, 1, 8, dim, dtype=torch.bool)
    want[{"q": (..., 3, slice(None)), "k": ..., "v": (..., 9)}[place]] = True
    assert torch.equal(out.isnan(), want)


@pytest.mark.wide
@pytest.mark.gpu
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
@pytest.mark.parametrize("name", ["int8", "e4m3"])
def test_scales_of_any_size_on_gpu(gpu, name, scale):
    """Also where those of the first rows are 0."""
    keys, dim = 70, 64
    q, k, v = torch.randn(1, 1, 8, dim).bfloat16(), torch.randn(1, keys, 2, dim), torch.randn(1, keys, 2, dim)
    k, v = ((x * 30).round().clamp(-127, 127).to(torch.int8 if name == "int8" else torch.float8_e4m3fn) for x in (k, v))
    scales = torch.full((1, keys, 2), scale)
    scales[:, :40] *= 1e-3
    of_keys = torch.full_like(scales, 0.01)
    arrays = [to_array(x, "gpu") for x in (q, k, v, of_keys, scales)]
    got = xeflash.flash_attn_with_kvcache(*arrays[:3], k_scale=arrays[3], v_scale=arrays[4])
    numbers = [(x.double() * f.double()[..., None]).repeat_interleave(4, 2)[0] for x, f in ((k, of_keys), (v, scales))]
    weights = (torch.einsum("hd,khd->hk", q[0, 0].double(), numbers[0]) / dim**0.5).softmax(-1)
    want = torch.einsum("hk,khd->hd", weights, numbers[1])
    error = (from_array(got, "gpu")[0, 0].double() - want).abs().max()
    assert error <= 2**-7 * want.abs().max()


# ---- paged variable-length sequences ------------------------------------------------------------


PACKED = [
    cached(dtype, rows=(rows, 0, min(rows, 33)), place="paged16", entry=entry, window=window)
    for dtype, rows in (("fp32", 9), ("bf16", 70), ("bf16", 1))
    for entry in ("varlen", "varlen-used", "varlen-alone")
    for window in ("causal", "31,5")
]
PACKED_ON_GPU = [replace(PACKED[10], kind="gpu"), replace(PACKED[3], dtype="fp16", kind="gpu")]


@pytest.mark.parametrize("case", PACKED, ids=lambda case: case.id)
def test_varlen_pages(case):
    run(case)


@pytest.mark.gpu
@pytest.mark.parametrize("spec", with_wide(PACKED_ON_GPU, PACKED_ON_GPU[:1]))
def test_packed_queries_on_gpu(gpu, spec):
    run(spec)


# ---- splits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("splits", [2, 5, 31, 128])
def test_any_number_of_splits_gives_the_same(splits):
    q, k, v = torch.randn(2, 1, 6, 64), torch.randn(2, 777, 2, 64), torch.randn(2, 777, 2, 64)
    options = {"cache_seqlens": torch.tensor([777, 20], dtype=torch.int32), "return_softmax_lse": True}
    one = xeflash.flash_attn_with_kvcache(q, k, v, num_splits=1, **options)
    many = xeflash.flash_attn_with_kvcache(q, k, v, num_splits=splits, **options)
    for a, b in zip(one, many, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("splits", "sinks"), [(1, True), (4, False)])
@pytest.mark.parametrize("dtype", few(DTYPES, "fp32", "bf16"))
@pytest.mark.parametrize("far", [0.0, 12.0, 60.0, -60.0, 200.0, -200.0])
def test_unified_maximum_is_as_exact_wherever_the_scores_are(far, dtype, splits, sinks):
    check_unified_maximum(far, dtype, splits, sinks, "torch")


@pytest.mark.parametrize("dtype", few(DTYPES, "fp32", "bf16"))
@pytest.mark.parametrize("far", [1e4, -1e4])
def test_unified_maximum_far_away(far, dtype):
    check_unified_maximum(far, dtype, 4, False, "torch")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "splits", "sinks"), few_rows([("fp32", 4, False), ("bf16", 1, True)], ("bf16", 1, True))
)
def test_unified_maximum_is_as_exact_on_gpu(gpu, dtype, splits, sinks):
    for far in (0.0, 12.0, 60.0, -60.0, 200.0, -200.0):
        check_unified_maximum(far, dtype, splits, sinks, "gpu")


def check_unified_maximum(far, dtype, splits, sinks, kind):
    """Scores are moved away from the assumed maximum, for one of two sequences; the other sees no key in most splits."""
    q, k, v = torch.randn(2, 1, 4, 64), torch.randn(2, 333, 2, 64), torch.randn(2, 333, 2, 64)
    q[..., 0], k[..., 0] = 1.0, 0.0
    k[0, :, :, 0] = far
    q, k, v = (x.to(DTYPES[dtype]) for x in (q, k, v))
    lengths, f = [333, 20], Features(scale=1.0, sinks=torch.randn(4) if sinks else None)
    out, lse = xeflash.flash_attn_with_kvcache(
        *(to_array(x, kind) for x in (q, k, v)),
        cache_seqlens=to_array(torch.tensor(lengths, dtype=torch.int32), kind),
        softmax_scale=1.0,
        num_splits=splits,
        s_aux=to_array(f.sinks, kind),
        return_softmax_lse=True,
        unified_max=5.0,
    )
    out, lse = from_array(out, kind), from_array(lse, kind)
    for b, n in enumerate(lengths):
        qkv, part = (q[b : b + 1], k[b : b + 1, :n], v[b : b + 1, :n]), slice(b, b + 1)
        check_rows_first(f"far {far}, sequence {b}", qkv, out[part], lse[part], f, is_on_gpu(kind))


# ---- memory far apart ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "rows"),
    few_rows(product(("plain", "paged16", "beams2"), (1, 6)), ("plain", 6), ("paged16", 6), ("beams2", 1)),
)
def test_cache_beyond_4_gib(place, rows):
    """Places of the cache are more than 4 GiB apart; only what is used exists."""
    case = cached("fp32", place=place, keys=(70, 9), rows=rows, new=2)
    drawn, arrays = draw(case), ArraysOf(case)
    put = drawn.put(arrays)
    for name in ("k_cache", "v_cache"):
        near = put[name]
        put[name] = sparse(near.shape, ((2**32 + 64) // 4, *near.stride()[1:]), near.dtype).copy_(near)
    judge(drawn, arrays, put, drawn.call(put))


def judge(drawn, arrays, put, result):
    for finding in drawn.check(arrays, put, result, by_rule):
        assert finding.ok, finding


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [
        replace(QUANTISED, new=2, kind="usm"),
        cached("fp32", place="paged16", format="e4m3", keys=(70, 9), new=2, unified=5.0, kind="usm"),
        pytest.param(cached("fp32", 80, 80, place="paged32", keys=(70, 9), kind="usm"), marks=pytest.mark.wide),
        pytest.param(
            cached("bf16", place="beams2", heads=(8, 1), keys=(70, 9), rows=5, new=2, kind="usm"),
            marks=pytest.mark.wide,
        ),
    ],
    ids=lambda case: case.id,
)
def test_cache_beyond_4_gib_on_gpu(gpu, case):
    """Keys are used that lie 4.1 GiB behind the beginning of a pool."""
    import usm

    drawn, arrays = draw(case), ArraysOf(case)
    cache, near = drawn.cache, {f"{x}_cache": drawn.values[f"{x}_cache"] for x in "kv"}
    gap = int(4.1 * 2**30 / max(i.max() for i, _ in cache.places)) // 64 * 64
    need_memory(2 * gap * (len(cache.arrays[0].bits) - 1), "xpu")
    put = drawn.put(arrays)
    try:
        far = {n: usm.far_apart(TorchArrays("cpu").put(x), usm.gpu_queue(), 0, gap) for n, x in near.items()}
    except usm.dpctl.memory.USMAllocationError:
        pytest.skip("the device has no 5 GiB in one allocation")
    result = drawn.call(put | far)
    for name, scale in zip("kv", cache.scales, strict=True):  # which nobody reads back
        held = near[f"{name}_cache"]
        for b, (i, j) in enumerate(cache.places if case.new else []):
            new = drawn.values[name].numbers.reshape(len(cache.places), case.new, *held.bits.shape[2:])[b]
            held.bits[i[-2:], j[-2:]] = Values.of(new / (scale or 1.0), held.dtype).bits
    judge(drawn, arrays, put | {name: arrays.put(x) for name, x in near.items()}, result)


def test_strided_cache_is_used_where_it_is():
    """Heads outside of rows, as other libraries keep their caches: nothing is copied, new keys arrive."""
    k_cache, v_cache = (torch.randn(2, 2, 40, 64).transpose(1, 2) for _ in range(2))
    q, k, v = torch.randn(2, 1, 6, 64), torch.randn(2, 1, 2, 64), torch.randn(2, 1, 2, 64)
    out = xeflash.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=30)
    assert torch.equal(k_cache[:, 30], k[:, 0]) and torch.equal(v_cache[:, 30], v[:, 0])
    check_rows_first("strided", (q, k_cache[:, :31], v_cache[:, :31]), out)


def test_beams_begin_behind_their_padding():
    q, k_cache, v_cache = torch.randn(2, 1, 4, 64), torch.randn(2, 40, 2, 64), torch.randn(2, 40, 2, 64)
    beams = torch.randint(0, 2, (2, 40)).int()
    lengths, pad = torch.tensor([30, 37]).int(), torch.tensor([4, 9]).int()
    out = xeflash.flash_attn_with_kvcache(
        q, k_cache, v_cache, cache_seqlens=lengths, cache_leftpad=pad, beam_index=beams
    )
    for b in range(2):
        i = torch.arange(int(pad[b]), int(lengths[b]))
        k, v = (x[beams[b, i].long(), i][None] for x in (k_cache, v_cache))
        check_rows_first(f"sequence {b}", (q[b : b + 1], k, v), out[b : b + 1])
